"""A pool: the sandboxes of one node and the agent loops that play in them. Ray-free; `cluster.py` makes it an actor.

Invariants: it holds only public halves of tasks; it keeps no backlog, so a lease is playing or it is not here;
a lease's deadline covers its whole life cycle, tear-down included; a rollout that raises costs only itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.metrics import PoolMetrics
from orchestrator.players import Players
from orchestrator.types import Lease, Played
from workers.agent.budget import Budget
from workers.errors import Boundary
from workers.play import Rollout, rollout
from workers.sandbox.protocol import SandboxBackend
from workers.task import PublicTask
from workers.trajectory import Failure, Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What one call to a pool tells at once: the leases that ended, in the order of the batch, and the free slots."""

    ended: tuple[Lease, ...]
    free: int
    policy_version: int


class SandboxPool:
    """`slots` rollouts at a time. Use: `start`, then one `turn` after another, then `close`."""

    def __init__(
        self, slots: int, backend: SandboxBackend, players: Players, budget: Budget, metrics: PoolMetrics
    ) -> None:
        self.slots = slots
        self._backend, self._players, self._budget, self._metrics = backend, players, budget, metrics
        self._tasks: dict[str, PublicTask] = {}
        self._live: dict[str, asyncio.Task[None]] = {}
        self._ended: list[Played] = []
        self._has_ended = asyncio.Event()

    async def start(self) -> None:
        """Make the backend and the policy ready. Raises SandboxError or PolicyError with the remedy."""
        await self._backend.start()
        await self._players.start()

    async def turn(
        self, leases: Sequence[Lease], tasks: Mapping[str, PublicTask], wait_s: float
    ) -> tuple[TurnReport, list[Played]]:
        """Begin `leases`, wait at most `wait_s` for something to end, return what has ended.

        `tasks` are those that this pool was not given before.
        """
        self._tasks.update(tasks)
        for lease in leases:
            self._live[lease.episode_id] = asyncio.create_task(self._play(lease), name=lease.episode_id)
        if not self._ended and self._live:
            try:
                async with asyncio.timeout(wait_s):
                    await self._has_ended.wait()
            except TimeoutError:
                pass
        ended, self._ended = self._ended, []
        self._has_ended.clear()
        self._metrics.busy(len(self._live))
        report = TurnReport(
            tuple(played.lease for played in ended),
            self.slots - len(self._live),
            await self._players.version(),
        )
        return report, ended

    async def close(self) -> None:
        """End every rollout and give back all that the pool owns. Safe twice."""
        for task in self._live.values():
            task.cancel()
        await asyncio.gather(*self._live.values(), return_exceptions=True)
        await self._players.close()
        await self._backend.close()

    async def _play(self, lease: Lease) -> None:
        try:
            async with asyncio.timeout(max(0.0, lease.deadline_s - time.time())):
                task, agent = self._tasks[lease.task_id], self._players.agent(lease)
                result = await rollout(task, agent, self._backend, self._budget, lease.seed)
        except TimeoutError:
            result = _failed("deadline", "the lease's deadline passed before the rollout had ended")
        except asyncio.CancelledError:
            result = _failed("cancelled", "the rollout was cancelled from outside")
        except Exception as error:
            logger.exception("episode %s: the rollout raised", lease.episode_id)
            result = _failed("rollout_raised", f"{type(error).__name__}: {error}")
        finally:
            del self._live[lease.episode_id]
        self._metrics.ended(result.trajectory)
        self._ended.append(Played(lease, result.trajectory, result.state, result.state_too_large))
        self._has_ended.set()


def _failed(cause: str, detail: str) -> Rollout:
    return Rollout(Trajectory(failure=Failure(Boundary.INFRASTRUCTURE, cause, detail)), None, "")
