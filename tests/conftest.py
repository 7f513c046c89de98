"""What holds for the whole suite: no silent skips in CI, and nothing left behind."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

IS_CI = os.environ.get("CI", "").lower() == "true"
GONE_WITHIN_S = 15.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """In CI everything that a test needs is there: a skip is a failure that hides."""
    report = yield
    if IS_CI and report.skipped and not hasattr(report, "wasxfail"):  # type: ignore[attr-defined]
        report.outcome = "failed"  # type: ignore[attr-defined]
        report.longrepr = f"skipped, which CI does not allow: {call.excinfo and call.excinfo.value}"  # type: ignore[attr-defined]
    return report


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No process, mount or folder of ours outlives the suite."""
    mounts = _mounts()
    folders = _folders()
    yield
    deadline = time.monotonic() + GONE_WITHIN_S
    while _children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _children(), f"processes left: {_children()}"
    assert _mounts() == mounts
    assert _folders() <= folders, f"folders left: {_folders() - folders}"


def _children() -> list[str]:
    """Live processes under this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    found: set[int] = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [_command(pid) for pid in found - {os.getpid()}]


def _command(pid: int) -> str:
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()[:120]}"
    except OSError:
        return f"{pid} (gone)"


def _mounts() -> list[str]:
    """All but a Docker engine's own, which others on the machine may use: our containers are counted by label."""
    lines = [line.split(" ", 4)[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [line for line in lines if not line.startswith(("/var/lib/docker/", "/run/docker/"))]


def _folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"rollcage-{os.getuid()}-*"))
