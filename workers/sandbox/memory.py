"""How much memory the processes of a slot use, read from its own /proc or by a way to that. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator

_FAST = (b"RssAnon:", b"RssShmem:")
_FAIR = (b"Pss_Anon:", b"Pss_Shmem:")


def processes(proc: str = "/proc") -> list[str]:
    """The pids in the slot but its first."""
    try:
        return [name for name in os.listdir(proc) if name.isdigit() and name != "1"]
    except OSError:
        return []  # the slot is gone


def used_bytes(enough_bytes: int, proc: str = "/proc") -> int:
    """Anonymous and shared memory of all processes.

    The quick sum counts pages shared after a fork once for each process; past `enough_bytes` the fair shares
    are summed instead, so that forking a large process is not taken for a bomb.
    """
    quick = sum(_sum(f"{proc}/{pid}/status", _FAST) for pid in processes(proc))
    if quick <= enough_bytes:
        return quick
    return sum(_sum(f"{proc}/{pid}/smaps_rollup", _FAIR) for pid in processes(proc))


def _sum(path: str, keys: tuple[bytes, ...]) -> int:
    return sum(_kilobytes(path, keys)) << 10


def _kilobytes(path: str, keys: tuple[bytes, ...]) -> Iterator[int]:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(keys):
                    yield int(line.split()[1])
    except OSError:
        return  # it ended meanwhile
