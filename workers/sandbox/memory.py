"""How much memory the processes of a slot use, read from its own /proc or by a way to that. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator

_FAST = (b"RssAnon:", b"RssShmem:")
_FAIR = (b"Pss_Anon:", b"Pss_Shmem:")
_SOCKET_TABLES = ("unix", "tcp", "tcp6", "udp", "udp6")
SOCKET_BYTES = 212_992  # Linux's default send buffer (net.core.wmem_default); larger ones are not given


def processes(proc: str = "/proc") -> list[str]:
    """The pids in the slot but its first."""
    try:
        return [name for name in os.listdir(proc) if name.isdigit() and name != "1"]
    except OSError:
        return []  # the slot is gone


def used_bytes(enough_bytes: int, proc: str = "/proc") -> int:
    """Anonymous and shared memory of all processes, and what their sockets may hold at most.

    The quick sum counts pages shared after a fork once for each process; past `enough_bytes` the fair shares
    are summed instead, so that forking a large process is not taken for a bomb.
    """
    held = _sockets(proc) * SOCKET_BYTES
    quick = sum(_sum(f"{proc}/{pid}/status", _FAST) for pid in processes(proc)) + held
    if quick <= enough_bytes:
        return quick
    return sum(_sum(f"{proc}/{pid}/smaps_rollup", _FAIR) for pid in processes(proc)) + held


def _sockets(proc: str) -> int:
    """How many sockets there are in the slot's own network namespace, which every process in it shows."""
    for pid in processes(proc):
        try:
            return sum(_lines(f"{proc}/{pid}/net/{table}") for table in _SOCKET_TABLES)
        except OSError:
            continue  # it ended meanwhile
    return 0


def _lines(path: str) -> int:
    """The lines of a table without its heading."""
    with open(path, "rb") as file:
        return sum(1 for _ in file) - 1


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
