"""Whether a program's output is the wanted one, in four degrees of strictness.

`exact`: the same bytes. `trimmed`: the same lines, white space at their ends and blank lines at the end
aside. `tokens`: the same words, whatever lies between. `numeric`: the same words, where two decimal numbers
are the same if they differ by at most `tol` times the wanted one's size (or `tol`, where that is below 1).
"""

from __future__ import annotations

import re
from enum import StrEnum

MAX_NUMBER_CHARS = 400
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)


class Compare(StrEnum):
    EXACT = "exact"
    TRIMMED = "trimmed"
    TOKENS = "tokens"
    NUMERIC = "numeric"

    def holds(self, want: str, got: bytes, tol: float) -> bool:
        if self is Compare.EXACT:
            return got == want.encode()
        text = got.decode(errors="surrogateescape")
        match self:
            case Compare.TRIMMED:
                return _lines(want) == _lines(text)
            case Compare.TOKENS:
                return want.split() == text.split()
            case Compare.NUMERIC:
                wanted, found = want.split(), text.split()
                return len(wanted) == len(found) and all(
                    _is_near(one, other, tol) for one, other in zip(wanted, found, strict=True)
                )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _is_near(want: str, got: str, tol: float) -> bool:
    if want == got:
        return True
    if max(len(want), len(got)) > MAX_NUMBER_CHARS:
        return False
    if not _DECIMAL.fullmatch(want) or not _DECIMAL.fullmatch(got):
        return False
    wanted = float(want)
    return abs(wanted - float(got)) <= tol * max(1.0, abs(wanted))
