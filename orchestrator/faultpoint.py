"""Where a crash may come: writers name each step to a collaborator, for which tests put one that kills."""

from __future__ import annotations

from collections.abc import Callable

FaultPoint = Callable[[str], None]


def no_fault(_step: str) -> None:
    """Go on."""
