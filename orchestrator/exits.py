"""The exit codes of `rollcage`."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    RED = 3
    INTERRUPTED = 130
