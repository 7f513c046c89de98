"""tasks.parquet: a row a task, with what is known of it, in what state it is and why.

A rating belongs to a policy, a task digest and a verifier digest; when one of them differs, it is not used.
`attempts`, `passes`, `pass_rate` and its 95 % Wilson `interval` are of fresh rollouts where there are any, for a
task that was chosen by lucky probes looks better than it is; else of the probes. `rating` is the logit-normal
belief (mean and variance on the logit scale), `state` is null while a task is not decided.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.config import PolicyConfig
from orchestrator.ratings import Rating
from orchestrator.scheduler import TaskRecord
from orchestrator.stats import pass_rate
from orchestrator.types import TaskState
from workers.errors import ConfigError
from workers.task import Task

Known = tuple[Rating, TaskState, str]

_INTERVAL = pa.struct([pa.field("low", pa.float64()), pa.field("high", pa.float64())])
_RATING = pa.struct([pa.field("mean", pa.float64()), pa.field("variance", pa.float64())])

TASKS_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("task_digest", pa.string(), nullable=False),
        pa.field("verifier_digest", pa.string(), nullable=False),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("state", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("measured_on", pa.string(), nullable=False),
        pa.field("attempts", pa.int64(), nullable=False),
        pa.field("passes", pa.int64(), nullable=False),
        pa.field("pass_rate", pa.float64()),
        pa.field("interval", _INTERVAL, nullable=False),
        pa.field("rating", _RATING, nullable=False),
        pa.field("probes", pa.int64(), nullable=False),
        pa.field("probe_passes", pa.int64(), nullable=False),
        pa.field("failures", pa.int64(), nullable=False),
    ]
)
FILE = "tasks.parquet"


def lineage(policy: PolicyConfig) -> str:
    """What tells one policy from another: which model it is, not where it is served."""
    return ":".join(part for part in (policy.kind, policy.model, policy.gguf, policy.script) if part)


def write_tasks(run_dir: Path, tasks: Mapping[str, Task], policy: str, records: Iterable[TaskRecord]) -> None:
    """Write the table anew, in one step."""
    rows = [_row(tasks[record.task_id], policy, record) for record in records]
    table = pa.Table.from_pylist(rows, schema=TASKS_SCHEMA)
    unfinished = run_dir / f".{FILE}.tmp"
    pq.write_table(table, unfinished)
    os.replace(unfinished, run_dir / FILE)


def read_known(path: Path, tasks: Mapping[str, Task], policy: str) -> dict[str, Known]:
    """The decided tasks of an earlier measurement of the same policy, whose digests are still the same.

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
        was = (row["task_digest"], row["verifier_digest"], row["policy"])
        if was == (task.public.digest, task.verifier.digest, policy):
            rating = Rating(row["rating"]["mean"], row["rating"]["variance"])
            known[task.task_id] = (rating, TaskState(row["state"]), row["reason"] + " (measured before)")
    return known


def _row(task: Task, policy: str, record: TaskRecord) -> dict[str, object]:
    is_fresh = record.rollouts > 0
    rate = pass_rate(
        record.passes if is_fresh else record.probe_passes, record.rollouts if is_fresh else record.probes
    )
    return {
        "task_id": task.task_id,
        "task_digest": task.public.digest,
        "verifier_digest": task.verifier.digest,
        "policy": policy,
        "state": record.state.value if record.state else None,
        "reason": record.reason,
        "measured_on": "rollouts" if is_fresh else "probes",
        "attempts": rate.attempts,
        "passes": rate.passes,
        "pass_rate": rate.rate,
        "interval": {"low": rate.low, "high": rate.high},
        "rating": {"mean": record.rating.mean, "variance": record.rating.variance},
        "probes": record.probes,
        "probe_passes": record.probe_passes,
        "failures": record.failures,
    }
