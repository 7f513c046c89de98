"""Pools and scorers without Ray or sandboxes, for the loop: they fail on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from orchestrator.pool import TurnReport
from orchestrator.rows import scored
from orchestrator.scoring import Ended, facts_of
from orchestrator.types import Lease, Scored
from workers.archive import EMPTY
from workers.errors import InfrastructureError
from workers.task import PublicTask, Split, Task, VerifierSpec
from workers.trajectory import (
    Branch,
    Failure,
    LogprobsMode,
    Protection,
    Segment,
    StopReason,
    Trajectory,
    Verdict,
)

Passes = Callable[[Lease], bool]


def make_task(task_id: str) -> Task:
    return Task(
        PublicTask(task_id, "fakes", Split.TRAIN, f"do {task_id}", EMPTY, digest=f"task-{task_id}"),
        VerifierSpec("calls", digest=f"verifier-{task_id}"),
    )


def make_trajectory() -> Trajectory:
    ids = np.arange(6, dtype=np.int32)
    mask = np.array([0, 0, 1, 1, 1, 1], dtype=np.uint8)
    logprobs = np.array([np.nan, np.nan, -1, -1, -1, -1], dtype=np.float32)
    segments = (Segment(0, 2, 0, "user", False), Segment(2, 6, 1, "assistant", True, 0, "r", "stop"))
    return Trajectory(
        branches=(Branch(ids, 2, mask, logprobs, segments),),
        stop_reason=StopReason.SUBMITTED,
        logprobs_mode=LogprobsMode.RAW,
        tokenizer_sha256="t",
        num_turns=1,
        reset_digest="r",
        state_digest="s",
        metrics={"reset_s": 0.01, "tokens_sampled": 4.0},
    )


class FakePool:
    """Ends every lease in the next turn. `die_at` turns raise instead, with everything that it held."""

    def __init__(self, name: str = "pool-0", slots: int = 4, die_at: Sequence[int] = ()) -> None:
        self.name, self.slots, self.die_at = name, slots, set(die_at)
        self.turns = self.starts = 0
        self.known: set[str] = set()
        self.leases: list[Lease] = []

    async def start(self) -> int:
        self.starts += 1
        self.known = set()
        return self.slots

    async def turn(
        self, leases: Sequence[Lease], tasks: Mapping[str, PublicTask], wait_s: float
    ) -> tuple[TurnReport, object]:
        self.turns += 1
        self.known |= set(tasks)
        assert {lease.task_id for lease in leases} <= self.known
        assert len(leases) <= self.slots
        if self.turns in self.die_at:
            raise InfrastructureError("pool_lost", "killed")
        self.leases += leases
        return TurnReport(tuple(leases), self.slots, 0), None


class FakeScorer:
    """Judges by `passes`; raises what `failing` says for a lease, as often as it says it."""

    def __init__(self, passes: Passes, failing: Callable[[Lease], Exception | None] = lambda _: None) -> None:
        self._passes, self._failing = passes, failing
        self.calls = 0

    async def score(self, ended: Ended, task: Task, is_last: bool) -> Scored:
        self.calls += 1
        facts = facts_of(task)
        if (error := self._failing(ended.lease)) is not None:
            if not is_last or isinstance(error, InfrastructureError):
                raise error
            boundary, cause = error.boundary, error.cause  # type: ignore[attr-defined]
            failed = Trajectory(failure=Failure(boundary, cause))
            return scored(ended.lease, facts, failed, None, time.time())
        value = float(self._passes(ended.lease))
        verdict = Verdict(value, value, bool(value), Protection.VALUES)
        return scored(ended.lease, facts, make_trajectory(), verdict, time.time())
