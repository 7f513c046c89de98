"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where none is near. The last part of a dotted name counts too."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.75)
    if not near:
        tails = {name.rpartition(".")[2]: name for name in reversed(names)}
        near = [
            tails[tail]
            for tail in difflib.get_close_matches(word.rpartition(".")[2], tails, n=1, cutoff=0.75)
        ]
    return f"; did you mean {near[0]}?" if near else ""
