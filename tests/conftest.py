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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What only root can show is left to a run by root, which CI makes as well."""
    if os.getuid() != 0:
        roots = [item for item in items if item.get_closest_marker("root")]
        config.hook.pytest_deselected(items=roots)
        items[:] = [item for item in items if item not in roots]


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
    folders = _abandoned()
    yield
    deadline = time.monotonic() + GONE_WITHIN_S
    while _children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _children(), f"processes left: {_children()}"
    assert _mounts() <= mounts, f"mounts left: {_mounts() - mounts}"
    assert _abandoned() <= folders, f"folders left: {_abandoned() - folders}"


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
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return f"{pid} (gone)"
    return f"{pid} {command.replace(bytes(1), b' ').decode(errors='replace')[:400]}"


def _mounts() -> set[str]:
    """Where something is mounted, but for what a container engine on this machine does meanwhile."""
    places = (line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {place for place in places if "docker" not in place}


def _abandoned() -> set[Path]:
    """Folders of runs that nobody clears away any more: no living process was started with their name."""
    commands = [_command(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found = Path(tempfile.gettempdir()).glob(f"rollcage-{os.getuid()}-*")
    return {folder for folder in found if not any(str(folder) in command for command in commands)}
