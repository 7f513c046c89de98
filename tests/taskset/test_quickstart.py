"""The quickstart set: its shape, and that a spread of its tasks tells right from wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from workers.archive import unpack
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.task import Split, Task
from workers.taskset import Caps, load
from workers.validate import Options, validate

SHIPPED = Path(__file__).parents[2] / "orchestrator" / "tasksets" / "quickstart"
TASKS = load(SHIPPED, caps=Caps(memory_mb=65_536, cpus=64)).tasks
KINDS = ("data", "fix", "shell", "sum", "write")


def test_there_are_five_kinds_of_several_tasks_and_both_splits() -> None:
    kinds = Counter(task.task_id.partition("-")[0] for task in TASKS)
    assert len(TASKS) >= 44
    assert tuple(sorted(kinds)) == KINDS
    assert min(kinds.values()) >= 8
    assert {task.public.split for task in TASKS} == set(Split)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)
def test_each_has_a_solution_an_attack_and_a_strong_check(task: Task) -> None:
    assert task.solution is not None
    assert task.attacks
    assert task.verifier.kind in ("calls", "stdio", "match")
    assert len(task.public.instruction) < 500
    assert list(unpack(task.public.workspace))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)
def test_no_instruction_gives_more_than_one_of_the_hidden_cases_away(task: Task) -> None:
    cases = [entry.data for entry in unpack(task.protected) if entry.path == "calls.json"]
    assert all(data.count(b'"module"') >= 3 for data in cases)


async def test_gold_passes_and_nothing_and_attacks_fail() -> None:
    sandboxes = BubblewrapBackend()
    await sandboxes.start()
    try:
        for task in TASKS[::8]:
            report = await validate(task, sandboxes, Options(gold_runs=1))
            assert report.is_ok, report
    finally:
        await sandboxes.close()
