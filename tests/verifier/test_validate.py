"""The gate: what is red, what is quarantined, and that it says which."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.verifier.making import task_of, tree
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.protocol import Sandbox, SandboxSpec
from workers.task import Task
from workers.validate import Check, Options, Report, validate, validate_all

GOLD = "echo 'def double(x): return 2 * x' > solution.py\n"
CASES = json.dumps([{"module": "solution", "function": "double", "args": [n], "want": 2 * n} for n in (1, 2)])
FAST = Options(gold_runs=2)


@pytest.fixture
async def sandboxes() -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend()
    await backend.start()
    yield backend
    await backend.close()


def doubling(
    solution: str | None = GOLD,
    workspace: dict[str, str | bytes] | None = None,
    attacks: dict[str, str] | None = None,
    honest: dict[str, str] | None = None,
) -> Task:
    protected: dict[str, str | bytes] = {"calls.json": CASES}
    return task_of("calls", {}, workspace, protected, solution=solution, attacks=attacks, honest=honest)


def red(report: Report) -> dict[str, Check]:
    return {check.name: check for check in report.checks if not check.is_ok}


async def test_a_sound_task_has_no_red_and_its_checks_come_in_order(sandboxes: BubblewrapBackend) -> None:
    task = doubling(
        attacks={"guess": "echo 'def double(x): return 4' > solution.py"},
        honest={"lambda": "echo 'double = lambda x: x + x' > solution.py"},
    )
    report = await validate(task, sandboxes, FAST)
    assert report.is_ok
    assert not report.is_quarantined
    assert [check.name for check in report.checks] == [
        "solution",
        "no-op",
        "attack guess",
        "honest lambda",
        "reset",
        "protected files",
    ]


async def test_each_fault_of_a_task_is_red_by_its_name(sandboxes: BubblewrapBackend) -> None:
    task = doubling(
        solution="echo 'def double(x): return x' > solution.py",
        workspace={"solution.py": "def double(x): return 2 * x\n"},
        attacks={"works": GOLD},
        honest={"fails": "rm solution.py"},
    )
    found = red(await validate(task, sandboxes, FAST))
    assert set(found) == {"solution", "no-op", "attack works", "honest fails"}
    assert found["solution"].got == "0 of 2 pass"
    assert "returned 1" in found["solution"].detail


async def test_a_task_without_a_solution_is_red(sandboxes: BubblewrapBackend) -> None:
    assert set(red(await validate(doubling(solution=None), sandboxes, FAST))) == {"solution"}


async def test_a_solution_that_flickers_puts_its_task_in_quarantine(sandboxes: BubblewrapBackend) -> None:
    flicker = "import os\nby = 2 * (os.urandom(1)[0] % 2)\ndef double(x):\n    return by * x\n"
    solution = f"cat > solution.py <<'E'\n{flicker}E\n"
    report = await validate(doubling(solution=solution), sandboxes, Options(gold_runs=12))
    assert report.is_quarantined
    assert 0 < report.flake_rate < 1
    assert set(red(report)) == {"solution"}


async def test_a_protected_file_that_lies_anywhere_inside_is_found(sandboxes: BubblewrapBackend) -> None:
    class Leaking:
        async def start(self) -> None: ...

        async def create(self, spec: SandboxSpec) -> Sandbox:
            layers = (*spec.layers, tree({"deep/notes.txt": CASES}))
            return await sandboxes.create(replace(spec, layers=layers))

        async def close(self) -> None: ...

    found = red(await validate(doubling(), Leaking(), FAST))
    assert found["protected files"].got == "tests/calls.json at /workspace/deep/notes.txt"


async def test_a_judge_that_fails_is_red_and_never_a_zero(sandboxes: BubblewrapBackend) -> None:
    task = task_of("script", {}, {}, {"test.sh": "exit 1\n"}, solution="true")
    found = red(await validate(task, sandboxes, FAST))
    assert "judge_crashed" in found["no-op"].got
    assert "judge_crashed" in found["solution"].detail


async def test_what_a_script_prints_is_its_answer_where_a_message_is_judged(
    sandboxes: BubblewrapBackend,
) -> None:
    options = {"source": "message", "gold": "blue whale", "how": "normalised"}
    task = task_of("match", options, solution="echo Blue Whale", attacks={"list": "echo blue whale or cat"})
    assert (await validate(task, sandboxes, FAST)).is_ok


async def test_reports_keep_the_order_of_the_tasks(sandboxes: BubblewrapBackend) -> None:
    tasks = [doubling(), doubling(solution=None), doubling()]
    told: list[Report] = []
    reports = await validate_all(tasks, sandboxes, Options(gold_runs=1, concurrency=3), told.append)
    assert [report.is_ok for report in reports] == [True, False, True]
    assert sorted(map(id, told)) == sorted(map(id, reports))
