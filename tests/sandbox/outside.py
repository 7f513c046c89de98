"""What the host sees of sandboxes: processes and mounts."""

from __future__ import annotations

import time
from pathlib import Path

from workers.sandbox.bubblewrap import BubblewrapBackend


def descendants(root: int) -> set[int]:
    """Every living process below `root`."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    layer = {root}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found |= layer
    return found


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def wait_until_gone(pids: set[int], timeout_s: float = 10.0) -> set[int]:
    deadline = time.monotonic() + timeout_s
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive(pids)


def host_mounts() -> int:
    """Mounts but Docker's own, which come and go beside us."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sum("/docker/" not in line for line in lines)


def keeper_inside(backend: BubblewrapBackend) -> int:
    """The first keeper's pid, as the host sees it: the outer bubblewrap's child."""
    outer = backend._keepers[0].pid
    return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])


def mounts_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
