"""Where tables are printed: as wide as the terminal, or of one fixed width where there is none."""

from __future__ import annotations

import sys

from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 120


def output() -> Console:
    """Standard output."""
    return Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)
