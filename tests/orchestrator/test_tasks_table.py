from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.ratings import Rating
from orchestrator.scheduler import TaskRecord
from orchestrator.tasks_table import read_known, write_tasks
from orchestrator.types import TaskState
from tests.orchestrator.fakes import make_task
from workers.errors import ConfigError

TASKS = {name: make_task(name) for name in ("a", "b", "c")}


def records() -> list[TaskRecord]:
    return [
        TaskRecord(
            "a", Rating(0.5, 0.4), TaskState.ACTIVE, "1 of 2", probes=2, probe_passes=1, rollouts=8, passes=2
        ),
        TaskRecord("b", Rating(-2.0, 1.0), TaskState.TOO_HARD, "0 of 4", probes=4),
        TaskRecord("c"),
    ]


def test_a_chosen_task_is_reported_by_its_fresh_rollouts_and_another_by_its_probes(tmp_path: Path) -> None:
    write_tasks(tmp_path, TASKS, "local", records())
    rows = {row["task_id"]: row for row in pq.read_table(tmp_path / "tasks.parquet").to_pylist()}
    assert (rows["a"]["measured_on"], rows["a"]["attempts"], rows["a"]["passes"]) == ("rollouts", 8, 2)
    assert (rows["b"]["measured_on"], rows["b"]["attempts"], rows["b"]["passes"]) == ("probes", 4, 0)
    assert rows["a"]["interval"]["low"] < 0.25 < rows["a"]["interval"]["high"]
    assert rows["c"]["state"] is None


def test_ratings_are_taken_up_again_while_the_digests_are_the_same(tmp_path: Path) -> None:
    write_tasks(tmp_path, TASKS, "local", records())
    known = read_known(tmp_path, TASKS, "local")
    assert set(known) == {"a", "b"}
    assert known["a"][0] == Rating(0.5, 0.4)
    assert known["b"][1] is TaskState.TOO_HARD
    changed = {**TASKS, "a": replace(TASKS["a"], public=replace(TASKS["a"].public, digest="other"))}
    assert set(read_known(tmp_path, changed, "local")) == {"b"}
    assert read_known(tmp_path, TASKS, "local:another.gguf") == {}


def test_a_file_that_is_no_table_of_ratings_is_told(tmp_path: Path) -> None:
    (tmp_path / "tasks.parquet").write_text("not parquet")
    with pytest.raises(ConfigError, match=r"scheduler\.ratings"):
        read_known(tmp_path, TASKS, "local")
