"""The scorers' bench: hands ended episodes to scorers, so many at a time, and insists on an answer.

Invariants: each ended episode gives exactly one `Scored`; a scorer that dies or gives no verdict is asked no
more than `attempts` times in all, the next time another one; a lost batch is a failure of the infrastructure,
never a reward.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

from orchestrator.rows import TaskFacts, scored
from orchestrator.types import Lease, Scored
from workers.errors import Boundary, BoundaryError
from workers.task import Task
from workers.trajectory import Failure, Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """An episode that ended: its place in the batch that `batch` refers to."""

    lease: Lease
    batch: object
    index: int


class ScorerHandle(Protocol):
    """A scorer as the bench sees it. Calls have a deadline; a lost scorer or batch is an InfrastructureError."""

    async def score(self, ended: Ended, task: Task, is_last: bool) -> Scored:
        """Judge an episode. Without a verdict it raises, or at the last attempt returns the episode as failed."""
        ...


def facts_of(task: Task) -> TaskFacts:
    """What a row says of its task."""
    public = task.public
    return TaskFacts(
        task_set=public.task_set,
        split=public.split.value,
        task_digest=public.digest,
        verifier_digest=task.verifier.digest,
        image_digest=public.image,
        harness_version=version("rollcage"),
    )


def unplayed(lease: Lease, task: Task, failure: Failure) -> Scored:
    """The row of an episode of which nothing but its failure is known."""
    return scored(lease, facts_of(task), Trajectory(failure=failure), None, time.time())


class Bench:
    """Ended episodes wait here for a verdict. `room` more may be leased before scoring would fall behind."""

    def __init__(
        self, scorers: Sequence[ScorerHandle], concurrency: int, backlog: int, attempts: int
    ) -> None:
        self.width = concurrency * len(scorers)
        self._scorers = tuple(scorers)
        self._busy = [0] * len(self._scorers)
        self._queue: asyncio.Queue[tuple[Ended, Task]] = asyncio.Queue()
        self._backlog, self._attempts = backlog, attempts

    @property
    def waiting(self) -> int:
        """Episodes that ended and have no verdict yet."""
        return self._queue.qsize() + sum(self._busy)

    @property
    def room(self) -> int:
        return max(0, self._backlog - self.waiting)

    def put(self, ended: Ended, task: Task) -> None:
        """Let an episode wait. Bounded by `room`, which leases heed: what was leased must have a place."""
        self._queue.put_nowait((ended, task))

    async def next(self) -> Scored:
        """The next waiting episode, judged. Call it from `width` tasks at once."""
        ended, task = await self._queue.get()
        return await self._insist(ended, task)

    async def _insist(self, ended: Ended, task: Task) -> Scored:
        failure = Failure(Boundary.INFRASTRUCTURE, "not_scored")
        for attempt in range(self._attempts):
            chosen = self._freshest(attempt)
            self._busy[chosen] += 1
            try:
                return await self._scorers[chosen].score(ended, task, attempt + 1 == self._attempts)
            except BoundaryError as error:
                failure = Failure(error.boundary, error.cause, error.detail)
                logger.warning("episode %s: scorer %d: %s", ended.lease.episode_id, chosen, error)
            finally:
                self._busy[chosen] -= 1
        return unplayed(ended.lease, task, failure)

    def _freshest(self, attempt: int) -> int:
        """The least busy scorer; on a retry, ties go to another one than before."""
        order = range(len(self._scorers))
        return min(order, key=lambda n: (self._busy[n], (n - attempt) % len(self._scorers)))
