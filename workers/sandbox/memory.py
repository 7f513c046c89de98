"""How much memory the processes of a joined slot use, read from the slot's own /proc. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator

_FAST = (b"RssAnon:", b"RssShmem:")
_FAIR = (b"Pss_Anon:", b"Pss_Shmem:")


def processes() -> list[str]:
    """The pids in the slot but its first."""
    try:
        return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    except OSError:
        return []  # the slot is gone


def used_bytes(enough_bytes: int) -> int:
    """Anonymous and shared memory of all processes.

    The quick sum counts pages shared after a fork once for each process; past `enough_bytes` the fair shares
    are summed instead, so that forking a large process is not taken for a bomb.
    """
    quick = sum(_sum(pid, "status", _FAST) for pid in processes())
    if quick <= enough_bytes:
        return quick
    return sum(_sum(pid, "smaps_rollup", _FAIR) for pid in processes())


def _sum(pid: str, name: str, keys: tuple[bytes, ...]) -> int:
    return sum(_kilobytes(pid, name, keys)) << 10


def _kilobytes(pid: str, name: str, keys: tuple[bytes, ...]) -> Iterator[int]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            for line in file:
                if line.startswith(keys):
                    yield int(line.split()[1])
    except OSError:
        return  # it ended meanwhile
