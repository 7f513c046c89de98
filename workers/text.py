"""Text of agents made fit for people's eyes: control characters are shown, not obeyed."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_CONTROLS_AND_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Escapes, bells and direction marks spelt out; line breaks and tabs kept."""
    return _CONTROLS.sub(_spelt, text)


def one_line(text: str) -> str:
    """The same on one line."""
    return _CONTROLS_AND_BREAKS.sub(_spelt, text)


def _spelt(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
