"""The desk decides and remembers: it owns the scheduler, the open groups and the run's record.

Invariants: a lease is journalled before it leaves; an outcome is journalled before its member may be played
again; a group is finished once, by `RunRecord`, whatever arrives later; after a crash, everything that was
journalled holds and everything that was not is played again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from orchestrator.advantages import Estimator
from orchestrator.breaker import Breaker
from orchestrator.groups import Group, GroupBuffer, decide
from orchestrator.journal import OpenGroup
from orchestrator.record import RunRecord
from orchestrator.scheduler import GroupPlan, Scheduler
from orchestrator.store import read_groups
from orchestrator.tally import Tally
from orchestrator.types import Lease, Purpose, Scored
from workers.errors import ConfigError
from workers.task import PublicTask, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeskSettings:
    """`deadline_s` is for an episode's whole life; `concurrency` episodes are in flight at most."""

    run_id: str
    run_dir: Path
    seed: int
    deadline_s: float
    concurrency: int
    estimator: Estimator


@dataclass(frozen=True, slots=True)
class _Seat:
    """A member of a group that is still to be played."""

    group_id: str
    sample_index: int
    attempt: int


class Desk:
    """Gives out leases and takes in scored episodes. All methods run in one event loop.

    `began_s` and `probed_s` are when the first lease left and when the last task was decided (monotonic).
    """

    def __init__(
        self,
        settings: DeskSettings,
        tasks: Mapping[str, Task],
        scheduler: Scheduler,
        buffer: GroupBuffer,
        record: RunRecord,
        tally: Tally,
        breaker: Breaker,
    ) -> None:
        self.tasks, self.policy_version = tasks, 0
        self._settings, self._scheduler, self._buffer = settings, scheduler, buffer
        self._record, self._tally, self._breaker = record, tally, breaker
        self._plans: dict[str, GroupPlan] = {}
        self._seats: deque[_Seat] = deque()
        self._out: dict[str, tuple[Lease, float]] = {}
        self._is_draining = False
        self.began_s: float | None = None
        self.probed_s: float | None = None
        self._news = asyncio.Event()

    @property
    def is_done(self) -> bool:
        """Nothing in flight, and nothing more to begin."""
        if self._out:
            return False
        return self._is_draining or (self._scheduler.is_exhausted and not self._plans)

    @property
    def in_flight(self) -> tuple[tuple[Lease, float], ...]:
        """What is being played or scored, with the seconds since it was leased."""
        now = time.monotonic()
        return tuple((lease, now - since) for lease, since in self._out.values())

    def drain(self) -> None:
        """Lease nothing more; what is in flight may end."""
        self._is_draining = True
        self._news.set()

    async def changed(self, wait_s: float) -> None:
        """Wait until an outcome came in or `wait_s` have passed."""
        self._news.clear()
        try:
            async with asyncio.timeout(wait_s):  # wait_for of Python 3.11 may swallow a cancellation
                await self._news.wait()
        except TimeoutError:
            pass

    async def take(self, count: int) -> tuple[Lease, ...]:
        """At most `count` leases, journalled. Retries and members of open groups come first."""
        count = min(count, self._settings.concurrency - len(self._out))
        leases: list[Lease] = []
        while len(leases) < count and not self._is_draining and (self._seats or self._open_next()):
            leases.append(self._lease(self._seats.popleft()))
        if leases:
            now = time.monotonic()
            self.began_s = self.began_s or now
            self._out.update({lease.episode_id: (lease, now) for lease in leases})
            await asyncio.to_thread(self._record.journal.lease, leases)
        return tuple(leases)

    async def saw_version(self, version: int) -> None:
        """A pool tells the policy version in force; leases carry the newest one seen."""
        if version > self.policy_version:
            self.policy_version = version
            await asyncio.to_thread(self._record.journal.set_version, version)

    def public_tasks(self, leases: Iterable[Lease], known: set[str]) -> dict[str, PublicTask]:
        """The public halves that these leases need and the pool does not know yet."""
        return {
            lease.task_id: self.tasks[lease.task_id].public for lease in leases if lease.task_id not in known
        }

    async def settle(self, scored: Scored) -> None:
        """Take in one scored episode. Raises RunStopped when failures pass their share."""
        lease = scored.lease
        current = self._out.get(lease.episode_id)
        if current is None or current[0] != lease:
            logger.warning("episode %s attempt %d: arrived late, dropped", lease.episode_id, lease.attempt)
            return
        await asyncio.to_thread(self._keep, scored)
        await self._admit(scored)
        del self._out[lease.episode_id]
        self._breaker.count(scored.failure)
        self._news.set()

    async def resume(self) -> bool:
        """Take up what an earlier life of this run left, if anything: finished groups teach, open ones go on."""
        unfinished = self._record.journal.unfinished()
        is_resumed = bool(unfinished)
        self.policy_version = self._record.journal.version or 0
        for batch in read_groups(self._settings.run_dir):
            is_resumed = True
            first = batch.filter(pc.equal(batch["branch_index"], 0))
            task_id, digest = first["task_id"][0].as_py(), first["task_digest"][0].as_py()
            self._check_known(task_id, digest)
            plan = _plan_of(first["group_id"][0].as_py(), task_id, first["group_size"][0].as_py())
            self._scheduler.restore(plan)
            self._scheduler.record(plan, first["passed"].to_pylist())
            self._tally.restored(first, plan.purpose)
        for group in unfinished:
            self._check_known(group.task_id, None)
            await self._reopen(group)
        self._tally.failures = Counter(
            {
                (boundary.value, cause): n
                for (boundary, cause), n in self._record.journal.failure_counts().items()
            }
        )
        return is_resumed

    def _check_known(self, task_id: str, digest: str | None) -> None:
        task = self.tasks.get(task_id)
        if task is None or digest not in (None, task.public.digest):
            what = "is not in the task set any more" if task is None else "has changed since"
            raise ConfigError(
                f"task {task_id} of this run {what}",
                "put it back as it was, or begin a new run with its config.yaml",
            )

    async def _reopen(self, group: OpenGroup) -> None:
        """Go on with a group: outcomes that were journalled count, every other member is played again."""
        plan = _plan_of(group.group_id, group.task_id, group.group_size)
        self._scheduler.restore(plan)
        begun = {member.lease.sample_index: member for member in group.members}
        self._open(group.group_id, plan, (index for index in range(plan.size) if index not in begun))
        for index, member in begun.items():
            attempt = member.lease.attempt
            self._buffer.expect(group.group_id, index, attempt)
            if member.scored is None:
                self._seats.append(_Seat(group.group_id, index, attempt))
            else:
                await self._admit(member.scored)

    def _open_next(self) -> bool:
        plan = self._scheduler.next_group() if self._buffer.room else None
        if plan is None:
            return False
        self._open(_group_id(plan), plan, range(plan.size))
        return True

    def _open(self, group_id: str, plan: GroupPlan, seats: Iterable[int]) -> None:
        self._plans[group_id] = plan
        self._buffer.open(group_id, plan.task_id, plan.purpose, plan.size)
        self._seats.extend(_Seat(group_id, index, 0) for index in seats)

    def _lease(self, seat: _Seat) -> Lease:
        plan, settings = self._plans[seat.group_id], self._settings
        name = f"{settings.seed}/{seat.group_id}/{seat.sample_index}/{seat.attempt}"
        return Lease(
            run_id=settings.run_id,
            group_id=seat.group_id,
            task_id=plan.task_id,
            purpose=plan.purpose,
            sample_index=seat.sample_index,
            group_size=plan.size,
            attempt=seat.attempt,
            dispatch_version=self.policy_version,
            seed=int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1,
            deadline_s=time.time() + settings.deadline_s,
            nonce=secrets.token_hex(8),
        )

    def _keep(self, scored: Scored) -> None:
        self._record.journal.outcome(scored)
        self._record.add_turns(scored)

    async def _admit(self, scored: Scored) -> None:
        added = self._buffer.add(scored)
        self._tally.ended(scored, is_retried=added.retry is not None)
        if added.retry is not None:
            self._seats.appendleft(_Seat(added.retry.group_id, added.retry.sample_index, added.retry.attempt))
        if added.group is not None:
            await self._finish(added.group)

    async def _finish(self, group: Group) -> None:
        decision = decide(group, self._settings.estimator)
        await asyncio.to_thread(self._record.finish_group, group, decision)
        plan = self._plans.pop(group.group_id)
        self._scheduler.record(plan, [member.passed for member in group.members])
        self._tally.group(plan.purpose, decision)
        if self.probed_s is None and self._scheduler.is_probing_done:
            self.probed_s = time.monotonic()


def _group_id(plan: GroupPlan) -> str:
    return f"{'p' if plan.purpose is Purpose.PROBE else 'g'}{plan.index:06d}"


def _plan_of(group_id: str, task_id: str, size: int) -> GroupPlan:
    purpose = Purpose.PROBE if group_id[0] == "p" else Purpose.TRAIN
    return GroupPlan(task_id, purpose, size, int(group_id[1:]))
