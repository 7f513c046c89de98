"""The facts that the parts of the orchestrator hand to each other. A leaf: imports nothing of the orchestrator."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from workers.archive import Archive
from workers.trajectory import Failure, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa


class Fate(StrEnum):
    """What became of a complete group. Only `delivered` groups have a `group_seq`."""

    DELIVERED = "delivered"
    ZERO_VARIANCE = "zero_variance"
    STALE = "stale"
    CANCELLED = "cancelled"


class Purpose(StrEnum):
    """What a group is for: probes choose tasks and are never trained on."""

    PROBE = "probe"
    TRAIN = "train"


class TaskState(StrEnum):
    ACTIVE = "active"
    TOO_EASY = "too_easy"
    TOO_HARD = "too_hard"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Lease:
    """Leave to play one member of one group once.

    The episode is (run_id, group_id, sample_index); `attempt` counts retries from 0 and is not part of its
    name. `nonce` is told only to the pool that got the lease. `deadline_s` is seconds since the epoch and
    covers the whole life cycle, tear-down included.
    """

    run_id: str
    group_id: str
    task_id: str
    purpose: Purpose
    sample_index: int
    group_size: int
    attempt: int
    dispatch_version: int
    seed: int
    deadline_s: float
    nonce: str

    @property
    def episode_id(self) -> str:
        return f"{self.run_id}/{self.group_id}/{self.sample_index}"


@dataclass(frozen=True, slots=True)
class Played:
    """A rollout as its pool returns it: not scored yet. `state` is None where there is none to grade."""

    lease: Lease
    trajectory: Trajectory
    state: Archive | None
    state_too_large: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """An episode as its scorer returns it: rows of the schema (one a branch) without the group's columns.

    `reward`, `passed` are None exactly where `failure` is set. `turns` is one row of the trajectory schema:
    what was said and done in full, and the state diff.
    """

    lease: Lease
    reward: float | None
    passed: bool | None
    failure: Failure | None
    rows: pa.RecordBatch
    turns: pa.RecordBatch | None = None
