"""Finds episodes of a run by a condition, and one of them turn by turn.

The condition is the user's own SQL expression over one row an attempt: the facts of the episode, and where it
names them the columns of its state diff (`path`, `kind`, `diff`), of its tool calls (`tool`, `arguments`,
`output`, `exit_code`), of its messages (`role`, `content`) and of its stream row (`fate`, `advantage`, …).
It runs in a memory of its own, without access to files, network or Python, and within a deadline.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.schema import SCHEMA
from orchestrator.store import EPISODES, PartReader
from orchestrator.trajectories import TRAJECTORIES, TRAJECTORY_SCHEMA, EpisodeRecord, record
from workers.errors import ConfigError

_FACTS = (
    *(
        "episode_id",
        "attempt",
        "group_id",
        "sample_index",
        "task_id",
        "purpose",
        "seed",
        "status",
        "stop_reason",
    ),
    *("failure_boundary", "failure_cause", "error", "reward", "passed", "num_turns", "created_at"),
)
_STREAM = ("group_seq", "fate", "advantage", "task_set", "split", "protection", "policy_version_min")


@dataclass(frozen=True, slots=True)
class _Detail:
    """A list column whose elements may be named in a condition, each field under the name given here."""

    column: str
    fields: dict[str, str]


_DETAILS = (
    _Detail("changes", {"path": "path", "kind": "kind", "diff": "text"}),
    _Detail(
        "tool_calls",
        {
            "tool": "name",
            "arguments": "arguments",
            "output": "output",
            "exit_code": "exit_code",
            "turn": "turn",
        },
    ),
    _Detail("messages", {"role": "role", "content": "content"}),
)


def search(run_dir: Path, where: str = "true", limit: int = 20, timeout_s: float = 60.0) -> pa.Table:
    """The attempts for which `where` holds, newest first: their facts, and the stream's where it has them.

    Columns of a list (a change, a call, a message) that `where` names are matched element by element; the
    attempt comes once. Raises ConfigError on a condition that can't be understood or is too slow.
    """
    with duckdb.connect(":memory:", config=dict(_SEALED)) as connection:
        connection.register("trajectories", _trajectories(run_dir))
        connection.register("stream", _stream(run_dir))
        connection.execute("SET lock_configuration = true")
        timer = threading.Timer(timeout_s, connection.interrupt)
        timer.start()
        try:
            return connection.sql(_query(where), params=[limit]).to_arrow_table()
        except duckdb.Error as error:
            raise ConfigError(
                f"--where {where!r} can't be used: {str(error).splitlines()[0]}",
                f"columns: {', '.join(columns())}; for example: reward = 1 and path like '%test%'",
            ) from error
        finally:
            timer.cancel()


def columns() -> tuple[str, ...]:
    """Every name that a condition may use."""
    return (*_FACTS, *_STREAM, *(name for detail in _DETAILS for name in detail.fields))


def episode(run_dir: Path, episode_id: str, attempt: int | None = None) -> EpisodeRecord:
    """One attempt at an episode, the last one unless told. Raises ConfigError where the run has none such."""
    found: EpisodeRecord | None = None
    for batch in PartReader(run_dir / TRAJECTORIES, TRAJECTORY_SCHEMA).batches():
        is_wanted = pc.equal(batch["episode_id"], episode_id)
        if attempt is not None:
            is_wanted = pc.and_(is_wanted, pc.equal(batch["attempt"], attempt))
        for index in pc.indices_nonzero(is_wanted).to_pylist():
            candidate = record(batch, index)
            found = candidate if found is None or candidate.attempt >= found.attempt else found
    if found is None:
        which = "" if attempt is None else f", attempt {attempt}"
        raise ConfigError(
            f"{run_dir} holds no episode {episode_id!r}{which}", "list them with `rollcage show RUN`"
        )
    return found


_SEALED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "memory_limit": "1GB",
    "threads": "2",
}


def _trajectories(run_dir: Path) -> pa.Table:
    folder = run_dir / TRAJECTORIES
    if not folder.is_dir():
        raise ConfigError(f"{run_dir} holds no run", "give a run's folder, such as runs/NAME")
    return PartReader(folder, TRAJECTORY_SCHEMA).table()


def _stream(run_dir: Path) -> pa.Table:
    """The stream's facts of each episode, from its first branch."""
    names = ("episode_id", "attempt", *_STREAM)
    batches = [
        batch.filter(pc.equal(batch["branch_index"], 0)).select(names)
        for batch in PartReader(run_dir / EPISODES, SCHEMA).batches()
    ]
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.Table.from_batches(
        [batch.cast(schema) for batch in batches], schema=schema
    ).unify_dictionaries()


def _query(where: str) -> str:
    """One row an attempt: the last that was written, since a resumed run may write one again."""
    named = set(re.findall(r"\w+", where.lower()))
    used = [detail for detail in _DETAILS if named & set(detail.fields)]
    joins = " ".join(_join(detail) for detail in used)
    details = "".join(f", {detail.column}_.{name}" for detail in used for name in detail.fields)
    facts = ", ".join(f"t.{name}" for name in _FACTS)
    stream = ", ".join(f"s.{name}" for name in _STREAM)
    return f"""
        WITH attempts AS (
            SELECT * FROM trajectories
            QUALIFY row_number() OVER (PARTITION BY episode_id, attempt ORDER BY created_at DESC) = 1
        ), found AS (
            SELECT {facts}, {stream}{details} FROM attempts AS t
            LEFT JOIN stream AS s USING (episode_id, attempt) {joins}
        )
        SELECT DISTINCT {", ".join((*_FACTS, *_STREAM))} FROM found WHERE ({where}\n)
        ORDER BY created_at DESC, episode_id, attempt DESC LIMIT ?"""


def _join(detail: _Detail) -> str:
    fields = ", ".join(f"e.{field} AS {name}" for name, field in detail.fields.items())
    return (
        f"LEFT JOIN (SELECT episode_id, attempt, {fields} FROM"
        f" (SELECT episode_id, attempt, unnest({detail.column}) AS e FROM attempts)) AS {detail.column}_"
        " USING (episode_id, attempt)"
    )
