"""Text that Arrow and JSON can hold: valid UTF-8, whatever the sandbox printed."""

from __future__ import annotations

import re

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def escape(text: str | bytes) -> str:
    r"""Valid text. A byte that is not UTF-8 (raw, or kept by surrogateescape) becomes `\xff`, any other lone
    surrogate `\ud800`."""
    if isinstance(text, bytes):
        return text.decode("utf-8", "backslashreplace")
    if _SURROGATE.search(text) is None:
        return text
    named = _ESCAPED_BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)
    return named.encode("utf-8", "backslashreplace").decode()
