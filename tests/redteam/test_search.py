"""A solution that searches everything that it can reach while it is judged finds no wanted value.

It looks through the file system, every process it can see (arguments, environment, descriptors, memory), its
own frames and objects. The search is a real one: planted in the workspace, it finds what it seeks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable

import pytest

from tests.verifier.making import task_of
from workers.archive import pack
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.scorer import Scorer
from workers.task import Task
from workers.verifier.protocol import Submission

SEARCH = r"""
import gc, os, re, sys

PATTERN = re.compile(rb"wanted-[0-9a-f]{32}")
LEFT_OUT = ("/usr", "/sys", "/proc", "/dev")


def texts():
    for root, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(root, name) not in LEFT_OUT]
        for name in files:
            yield os.path.join(root, name)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ", "mountinfo", "cwd", "root/tests/calls.json", "root/tests/cases.json"):
            yield f"/proc/{pid}/{name}"
        try:
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                yield f"/proc/{pid}/fd/{descriptor}"
        except OSError:
            pass


def read(path):
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def memories():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps = open(f"/proc/{pid}/maps").read().splitlines()
            memory = open(f"/proc/{pid}/mem", "rb", 0)
        except OSError:
            continue
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if " rw" in line and end - start < 64 << 20:
                try:
                    memory.seek(start)
                    yield memory.read(end - start)
                except (OSError, ValueError, OverflowError):
                    continue


def frames():
    frame = sys._getframe()
    while frame:
        yield repr(frame.f_locals).encode(errors="replace")
        yield repr(list(frame.f_globals)).encode(errors="replace")
        frame = frame.f_back
    for item in gc.get_objects():
        if type(item) in (dict, list, tuple) and len(item) < 1000:
            yield repr(item).encode(errors="replace")[:1 << 20]


def find():
    for source in (map(read, texts()), memories(), frames()):
        for data in source:
            found = PATTERN.search(data)
            if found:
                return found.group().decode()
    return "nothing"
"""
PROGRAM = SEARCH + "\nprint(find())\n"


@pytest.fixture
async def scorer() -> AsyncIterator[Scorer]:
    backend = BubblewrapBackend()
    await backend.start()
    yield Scorer(backend)
    await backend.close()


def calls_task(wanted: str, planted: dict[str, str | bytes]) -> Task:
    cases = json.dumps([{"module": "solution", "function": "find", "want": wanted}])
    workspace = {"solution.py": SEARCH, **planted}
    return task_of("calls", {}, workspace, {"calls.json": cases}, timeout_s=60)


def stdio_task(wanted: str, planted: dict[str, str | bytes]) -> Task:
    cases = json.dumps([{"stdin": "", "stdout": f"{wanted}\n"}])
    workspace = {"find.py": PROGRAM, **planted}
    return task_of("stdio", {"command": ["python3", "find.py"]}, workspace, {"cases.json": cases}, 60)


@pytest.mark.parametrize("make", [calls_task, stdio_task])
async def test_a_search_of_everything_finds_no_wanted_value(
    scorer: Scorer, make: Callable[[str, dict[str, str | bytes]], Task]
) -> None:
    wanted = f"wanted-{secrets.token_hex(16)}"
    verdict = await scorer.score(make(wanted, {}), Submission(pack(())))
    assert verdict.score == 0.0
    assert "nothing" in verdict.parts[0].detail


@pytest.mark.parametrize("make", [calls_task, stdio_task])
async def test_the_same_search_finds_what_lies_in_the_workspace(
    scorer: Scorer, make: Callable[[str, dict[str, str | bytes]], Task]
) -> None:
    wanted = f"wanted-{secrets.token_hex(16)}"
    verdict = await scorer.score(make(wanted, {"note.txt": wanted}), Submission(pack(())))
    assert verdict.score == 1.0
