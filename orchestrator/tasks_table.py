"""tasks.parquet: a row a task, with what is known of it, in what state it is and why.

A rating belongs to a policy, a task digest and a verifier digest; when one of them differs, it is not used.
Probes and fresh rollouts are counted apart: the pass rate of a task that was chosen is that of fresh rollouts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.ratings import Rating
from orchestrator.scheduler import TaskRecord
from orchestrator.stats import pass_rate
from orchestrator.types import TaskState
from workers.errors import ConfigError
from workers.task import Task

Known = tuple[Rating, TaskState, str]

TASKS_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("task_digest", pa.string(), nullable=False),
        pa.field("verifier_digest", pa.string(), nullable=False),
        pa.field("state", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("probes", pa.int64(), nullable=False),
        pa.field("probe_passes", pa.int64(), nullable=False),
        pa.field("attempts", pa.int64(), nullable=False),
        pa.field("passes", pa.int64(), nullable=False),
        pa.field("failures", pa.int64(), nullable=False),
        pa.field("pass_rate", pa.float64()),
        pa.field("pass_rate_low", pa.float64(), nullable=False),
        pa.field("pass_rate_high", pa.float64(), nullable=False),
        pa.field("rating_mean", pa.float64(), nullable=False),
        pa.field("rating_variance", pa.float64(), nullable=False),
    ]
)
FILE = "tasks.parquet"


def write_tasks(run_dir: Path, tasks: Mapping[str, Task], records: Iterable[TaskRecord]) -> None:
    """Write the table anew, in one step."""
    table = pa.Table.from_pylist([_row(tasks[r.task_id], r) for r in records], schema=TASKS_SCHEMA)
    unfinished = run_dir / f".{FILE}.tmp"
    pq.write_table(table, unfinished)
    os.replace(unfinished, run_dir / FILE)


def read_known(path: Path, tasks: Mapping[str, Task]) -> dict[str, Known]:
    """The decided tasks of an earlier measurement whose digests are still the same.

    `path` is a tasks.parquet or the run folder that holds one. Raises ConfigError when it can't be read.
    """
    file = path / FILE if path.is_dir() else path
    try:
        rows = pq.read_table(file, schema=TASKS_SCHEMA).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"scheduler.ratings = {path}: can't be read: {error}", "give a run folder of `rollcage measure`"
        ) from error
    known: dict[str, Known] = {}
    for row in rows:
        task = tasks.get(row["task_id"])
        if task is None or row["state"] is None:
            continue
        if (row["task_digest"], row["verifier_digest"]) == (task.public.digest, task.verifier.digest):
            rating = Rating(row["rating_mean"], row["rating_variance"])
            known[task.task_id] = (rating, TaskState(row["state"]), row["reason"] + " (measured before)")
    return known


def _row(task: Task, record: TaskRecord) -> dict[str, str | int | float | None]:
    is_fresh = record.rollouts > 0
    rate = pass_rate(
        record.passes if is_fresh else record.probe_passes, record.rollouts if is_fresh else record.probes
    )
    return {
        "task_id": task.task_id,
        "task_digest": task.public.digest,
        "verifier_digest": task.verifier.digest,
        "state": record.state.value if record.state else None,
        "reason": record.reason,
        "probes": record.probes,
        "probe_passes": record.probe_passes,
        "attempts": record.rollouts,
        "passes": record.passes,
        "failures": record.failures,
        "pass_rate": rate.rate,
        "pass_rate_low": rate.low,
        "pass_rate_high": rate.high,
        "rating_mean": record.rating.mean,
        "rating_variance": record.rating.variance,
    }
