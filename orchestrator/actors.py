"""What lives inside a pool's and a scorer's process: the parts put together from the config.

Each actor serves its own metrics and writes its own log file; it gets the sections of the config that it
needs and nothing of other actors. Free of Ray: `cluster.py` makes actors of these classes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.build import make_backend, make_budget, make_players
from orchestrator.config import Config
from orchestrator.logs import log_to
from orchestrator.metrics import MetricsServer, PoolMetrics, ScorerMetrics
from orchestrator.players import Scripts
from orchestrator.pool import SandboxPool, TurnReport
from orchestrator.rows import scored
from orchestrator.scoring import facts_of
from orchestrator.types import Lease, Played, Scored
from workers.errors import BoundaryError, InfrastructureError
from workers.scorer import Scorer
from workers.task import PublicTask, Task
from workers.trajectory import Failure
from workers.verifier.protocol import Submission


class PoolActor:
    """A pool with its backend, agent and metrics."""

    def __init__(self, name: str, config: Config, run_dir: Path) -> None:
        log_to(run_dir / "logs" / f"{name}.log", config.log_level)
        self._config, self._run = config, run_dir.name
        self._metrics = PoolMetrics(name, config.sandbox.backend, config.sandbox.pool_size)
        self._server = MetricsServer(self._metrics.registry, config.metrics.host, 0)
        self._pool: SandboxPool | None = None

    async def start(self, scripts: Scripts) -> int:
        """Make ready, anew where it was before; tell how many slots there are."""
        if self._pool is not None:
            await self._pool.close()
        config = self._config
        backend, players = make_backend(config.sandbox, self._run), make_players(config, scripts)
        slots = config.sandbox.pool_size
        self._pool = SandboxPool(slots, backend, players, make_budget(config), self._metrics)
        await self._pool.start()
        return slots

    async def metrics_address(self) -> str:
        """Serve /metrics and tell where; empty where metrics are off."""
        config = self._config.metrics
        return f"{config.host}:{self._server.start()}" if config.enabled else ""

    async def turn(
        self, leases: Sequence[Lease], tasks: Mapping[str, PublicTask], wait_s: float
    ) -> tuple[TurnReport, list[Played]]:
        if self._pool is None:
            raise InfrastructureError("pool_lost", "the pool was made anew and not started")
        return await self._pool.turn(leases, tasks, wait_s)

    async def close(self) -> None:
        self._server.close()
        if self._pool is not None:
            await self._pool.close()


class ScorerActor:
    """A scorer with sandboxes of its own."""

    def __init__(self, name: str, config: Config, run_dir: Path) -> None:
        log_to(run_dir / "logs" / f"{name}.log", config.log_level)
        self._metrics = ScorerMetrics(name)
        self._server = MetricsServer(self._metrics.registry, config.metrics.host, 0)
        self._serving = config.metrics
        self._backend = make_backend(config.sandbox, run_dir.name)
        self._scorer = Scorer(self._backend)
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Make ready. Safe to repeat."""
        async with self._starting:
            await self._backend.start()

    async def metrics_address(self) -> str:
        """Serve /metrics and tell where; empty where metrics are off."""
        return f"{self._serving.host}:{self._server.start()}" if self._serving.enabled else ""

    async def score(
        self, batch: Sequence[Played], index: int, lease: Lease, task: Task, is_last: bool
    ) -> Scored:
        """Judge one episode of a batch. Without a verdict it raises, or at the last attempt returns it as failed."""
        played = batch[index]
        if played.lease != lease:
            raise ValueError(f"the batch's episode {index} is not that of the lease {lease.episode_id}")
        facts, began_s = facts_of(task), time.monotonic()
        if played.trajectory.failure is not None:
            return scored(lease, facts, played.trajectory, None, time.time())
        await self.start()  # Ray may have made this actor again since
        submission = Submission(played.state, played.trajectory.messages, played.trajectory.tool_calls)
        try:
            verdict = await self._scorer.score(task, submission)
        except BoundaryError as error:
            self._metrics.judged(time.monotonic() - began_s, None)
            if not is_last:
                raise
            failure = Failure(error.boundary, error.cause, error.detail)
            return scored(lease, facts, replace(played.trajectory, failure=failure), None, time.time())
        self._metrics.judged(time.monotonic() - began_s, verdict)
        return scored(lease, facts, played.trajectory, verdict, time.time())

    async def close(self) -> None:
        self._server.close()
        await self._backend.close()
