"""Runs the command as a user would, in a process of its own, and reads what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from orchestrator.store import read_groups

COMMAND = (sys.executable, "-m", "orchestrator")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def rollcage(*arguments: str, cwd: Path, timeout_s: float = 240.0, env: dict[str, str] | None = None) -> Done:
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def groups(run_dir: Path) -> list[pa.RecordBatch]:
    return list(read_groups(run_dir))


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [row for batch in read_groups(run_dir) for row in batch.to_pylist()]


def summary(run_dir: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return loaded


def wait_for(
    condition: Callable[[], object], timeout_s: float, what: str, process: subprocess.Popen[str] | None = None
) -> None:
    """Wait for a condition; a process that ends before it is told with what it printed."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended by {process.returncode} before {what}: {process.communicate()[0]}")
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def descendants(pid: int) -> set[int]:
    """Every live process under `pid`, found from outside by its parents."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    found, todo = set[int](), [pid]
    while todo:
        parent = todo.pop()
        children = {child for child, of in parents.items() if of == parent} - found
        found |= children
        todo += children
    return found


def title(pid: int) -> str:
    """How a process calls itself; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def alive(pids: set[int]) -> set[int]:
    left = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            left.add(pid)
    return left


def kill(process: subprocess.Popen[str]) -> set[int]:
    """SIGKILL a command; returns what was under it, to see it gone."""
    under = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    if process.stdout:
        process.stdout.close()
    return under
