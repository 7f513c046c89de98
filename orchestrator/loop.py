"""The whole system on one page. Read this first.

    scheduler → lease → pool[ restore → reset → (act → step)* → final state ] → scorer[ verify ]
              → group → advantages → store and stream (Arrow) → trainer

Values flow right; only free slots and the policy version flow left. The desk decides and remembers (it owns
the scheduler, the open groups, the journal and the store); pools play; scorers judge. One call is in flight
for each pool, so that pulling is work stealing and not leasing is the backpressure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from orchestrator.desk import Desk
from orchestrator.pool import TurnReport
from orchestrator.scoring import Bench, Ended, unplayed
from orchestrator.types import Lease
from workers.errors import InfrastructureError
from workers.task import PublicTask
from workers.trajectory import Failure

logger = logging.getLogger(__name__)

WAIT_S = 0.25


class PoolHandle(Protocol):
    """A pool as the loop sees it. Both calls have a deadline and raise InfrastructureError when the pool is lost."""

    @property
    def name(self) -> str: ...

    async def start(self) -> int:
        """Make (or remake) the pool and tell how many slots it has."""
        ...

    async def turn(
        self, leases: Sequence[Lease], tasks: Mapping[str, PublicTask], wait_s: float
    ) -> tuple[TurnReport, object]:
        """One turn. The second value refers to the batch of what ended, for a scorer to fetch."""
        ...


async def roll_out(desk: Desk, pools: Sequence[PoolHandle], bench: Bench) -> None:
    """Run until the desk has nothing more to do. Raises what stops a run: a broken circuit, a full disk."""
    async with asyncio.TaskGroup() as judging:
        judges = [judging.create_task(_judge(desk, bench), name=f"judge-{n}") for n in range(bench.width)]
        async with asyncio.TaskGroup() as driving:
            for pool in pools:
                driving.create_task(_drive(desk, pool, bench), name=pool.name)
        for judge in judges:
            judge.cancel()


async def _drive(desk: Desk, pool: PoolHandle, bench: Bench) -> None:
    free = await pool.start()
    known: set[str] = set()
    out: dict[str, Lease] = {}
    while not desk.is_done:
        leases = await desk.take(min(free, bench.room))
        out.update({lease.episode_id: lease for lease in leases})
        if not out:
            await desk.changed(WAIT_S)
            continue
        try:
            news = desk.public_tasks(leases, known)
            report, batch = await pool.turn(leases, news, WAIT_S)
        except InfrastructureError as lost:
            logger.warning("pool %s lost with %d leases: %s", pool.name, len(out), lost)
            failure = Failure(lost.boundary, lost.cause, lost.detail)
            for lease in out.values():
                await desk.settle(unplayed(lease, desk.tasks[lease.task_id], failure))
            free, known, out = await pool.start(), set(), {}
            continue
        known.update(news)
        free = report.free
        await desk.saw_version(report.policy_version)
        for index, lease in enumerate(report.ended):
            if out.pop(lease.episode_id, None) == lease:
                bench.put(Ended(lease, batch, index), desk.tasks[lease.task_id])


async def _judge(desk: Desk, bench: Bench) -> None:
    while True:
        await desk.settle(await bench.next())
