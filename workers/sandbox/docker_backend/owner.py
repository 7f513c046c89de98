"""Who owns a container, told by its labels, and whether that owner still lives.

Invariants: an owner is one process of one boot, named by its pid, its start time and its pid namespace, so that a
later process with the same pid is not taken for it; an owner in a pid namespace that can't be seen from here is
never called dead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

OWNER, RUN = "rollcage.owner", "rollcage.run"
_START_TIME = 19  # field of /proc/PID/stat, counted from the state


def labels(run: str) -> dict[str, str]:
    """Those of a container that this process makes."""
    owner = f"{os.getpid()} {_start_time(os.getpid())} {_boot_id()} {_pid_namespace()}"
    return {OWNER: owner, RUN: run}


def is_dead(found: Mapping[str, str]) -> bool:
    """Whether the owner that the labels name is known to be gone."""
    parts = found.get(OWNER, "").split(" ")
    if len(parts) != 4 or not parts[0].isdigit():
        return False
    pid, started, boot, namespace = parts
    if boot != _boot_id():
        return True
    return namespace == _pid_namespace() and _start_time(int(pid)) != started


def _start_time(pid: int) -> str:
    """In clock ticks since boot; empty where there is no such process, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[_START_TIME]


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)
