"""How much memory the processes of a joined slot use, read from the slot's own /proc. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator

_FAST = (b"RssAnon:", b"RssShmem:")
_FAIR = (b"Pss_Anon:", b"Pss_Shmem:")
_SOCKET_TABLES = ("unix", "tcp", "tcp6", "udp", "udp6")
SOCKET_BYTES = 212_992  # Linux's default send buffer (net.core.wmem_default); larger ones are not given


def processes() -> list[str]:
    """The pids in the slot but its first."""
    try:
        return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    except OSError:
        return []  # the slot is gone


def used_bytes(enough_bytes: int) -> int:
    """Anonymous and shared memory of all processes, and what their sockets may hold at most.

    The quick sum counts pages shared after a fork once for each process; past `enough_bytes` the fair shares
    are summed instead, so that forking a large process is not taken for a bomb.
    """
    pids = processes()
    held = _sockets(pids) * SOCKET_BYTES
    quick = sum(_sum(pid, "status", _FAST) for pid in pids)
    if quick + held <= enough_bytes:
        return quick + held
    return sum(_sum(pid, "smaps_rollup", _FAIR) for pid in pids) + held


def _sockets(pids: list[str]) -> int:
    """How many sockets there are in the slot's own network namespace, which every process in it shows."""
    for pid in pids:
        try:
            return sum(_lines(f"/proc/{pid}/net/{table}") for table in _SOCKET_TABLES)
        except OSError:
            continue  # it ended meanwhile
    return 0


def _lines(path: str) -> int:
    """The lines of a table without its heading."""
    with open(path, "rb") as file:
        return sum(1 for _ in file) - 1


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
