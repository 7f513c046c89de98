"""Makes what a program printed fit to be read by a model.

The text that leaves here is valid Unicode without lone surrogates, terminal escapes or control characters
other than tab and newline, and never longer than the limit by more than the notice that names what was cut.
"""

from __future__ import annotations

import re

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # operating system commands: titles, links
    r"|\x1b[ -/]*[0-~]"  # two-character escapes and character-set choices
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def whole_unicode(text: str) -> str:
    """The text with every lone surrogate replaced, so that any encoder takes it."""
    return _SURROGATES.sub(REPLACEMENT, text)


def clean_output(data: bytes) -> str:
    """What a terminal would show in the end: no escapes, progress lines collapsed to their last state."""
    text = _ESCAPES.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _CONTROLS.sub("", text)


def clean_file(data: bytes) -> str:
    """A file's text as it stands, but for bytes that no model can be shown."""
    return data.decode("utf-8", "replace").replace("\0", REPLACEMENT)


def clip(text: str, limit_bytes: int) -> tuple[str, int]:
    """Keep the first and the last half of `limit_bytes` of UTF-8; also say how many bytes were dropped."""
    data = text.encode()
    if len(data) <= limit_bytes:
        return text, 0
    half = limit_bytes // 2
    # Cutting inside a character would make replacement characters: leave the broken one out.
    head = data[:half].decode("utf-8", "ignore")
    tail = data[len(data) - half :].decode("utf-8", "ignore")
    dropped = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {dropped} bytes dropped ...]\n{tail}", dropped


def _last_state(line: str) -> str:
    """A carriage return starts the line again: the last one that wrote something is what stays to be seen."""
    states = [state for state in line.split("\r") if state]
    return states[-1] if states else ""
