"""The conductor: one run's memory and will. Ray-free; `cluster.py` makes it an actor that is always restarted.

Invariant: everything that it must not forget is in the run folder before anything depends on it, so that a
conductor that was killed goes on by opening the folder again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.advantages import Estimator
from orchestrator.breaker import Breaker, RunStopped
from orchestrator.config import Config
from orchestrator.cursor import cursors
from orchestrator.desk import Desk, DeskSettings
from orchestrator.groups import GroupBuffer
from orchestrator.logs import log_to
from orchestrator.loop import PoolHandle, roll_out
from orchestrator.metrics import ConductorMetrics, MetricsServer, Target, remove_targets, write_targets
from orchestrator.players import Scripts
from orchestrator.progress import Phase, Progress, Straggler
from orchestrator.record import RunRecord
from orchestrator.scheduler import Scheduler, SchedulerSettings
from orchestrator.scoring import Bench, ScorerHandle
from orchestrator.stats import (
    Ending,
    FailureCount,
    RunStats,
    StopCount,
    TaskStats,
    Timings,
    quantiles,
    spread,
)
from orchestrator.store import StoreOptions
from orchestrator.tally import Tally
from orchestrator.tasks_table import Known, lineage, write_tasks
from workers.errors import Boundary, RollcageError
from workers.task import Task

logger = logging.getLogger(__name__)

OPEN_GROUPS = 1024
NOTHING_TO_TRAIN_ON = (
    "no task is solved sometimes, so there is nothing to train on; scheduler.filter=off rolls out all of them"
)
STRAGGLERS_SHOWN = 3
BACKLOG_PER_SLOT = 4
KEEP_EVERY_S = 2.0


class OwnedPool(PoolHandle, Protocol):
    """A pool that this conductor made."""

    async def metrics_target(self) -> Target | None: ...

    async def close(self) -> None: ...


class OwnedScorer(ScorerHandle, Protocol):
    """A scorer that this conductor made."""

    async def start(self) -> None: ...

    async def metrics_target(self) -> Target | None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run, where it is recorded, and what is known before. `scripts` are played by policy=script."""

    config: Config
    tasks: tuple[Task, ...]
    run_dir: Path
    known: Mapping[str, Known] = field(default_factory=dict)
    scripts: Scripts = field(default_factory=dict)


class Conductor:
    """`run` once; `progress` and `drain` meanwhile."""

    def __init__(self, order: Order, pools: Sequence[OwnedPool], scorers: Sequence[OwnedScorer]) -> None:
        config, run_dir = order.config, order.run_dir
        log_to(run_dir / "logs" / "conductor.log", config.log_level)
        self._config, self._run_dir = config, run_dir
        self._tasks = {task.task_id: task for task in order.tasks}
        self._pools, self._scorers = pools, scorers
        self._scheduler = Scheduler(tuple(self._tasks), scheduler_settings(config), order.known)
        self._metrics = ConductorMetrics()
        self._tally = Tally(self._metrics)
        self._desk: Desk | None = None
        self._is_drained = self._is_resumed = False
        self._began_s = time.monotonic()
        self._closed_s: float | None = None

    async def run(self) -> RunStats:
        """Roll out to the end, or to where the run must stop; raises what a person must mend first."""
        config = self._config
        options = StoreOptions(part_bytes=config.stream.part_bytes, part_age_s=config.stream.part_seconds)
        logger.info("run %s: opening %s", config.run_id, self._run_dir)
        record = await asyncio.to_thread(RunRecord.open, self._run_dir, config.run_id, options)
        server = MetricsServer(self._metrics.registry, config.metrics.host, config.metrics.port)
        ending, detail = Ending.FAILED, "the conductor was stopped"
        try:
            await asyncio.gather(*(scorer.start() for scorer in self._scorers))
            desk = self._desk = self._make_desk(record)
            self._is_resumed = await desk.resume()
            if self._is_drained:
                desk.drain()
            logger.info("run %s: scorers ready, resumed: %s", config.run_id, self._is_resumed)
            ending, detail = await self._roll(desk, self._make_bench(), record, server)
            if ending is Ending.DONE:
                await asyncio.to_thread(record.finish, detail or "done")
        finally:
            self._closed_s = time.monotonic()
            logger.info("run %s: closing: %s %s", config.run_id, ending, detail)
            await self._close(record, server)
            logger.info("run %s: closed", config.run_id)
        return self._stats(ending, detail)

    async def drain(self) -> None:
        """Lease nothing more; `run` returns when what is in flight has ended."""
        self._is_drained = True
        if self._desk is not None:
            self._desk.drain()

    async def progress(self) -> Progress:
        desk, tally, scheduler = self._desk, self._tally, self._scheduler
        records = scheduler.records.values()
        flying = desk.in_flight if desk else ()
        oldest = sorted(flying, key=lambda pair: -pair[1])[:STRAGGLERS_SHOWN]
        return Progress(
            phase=self._phase(),
            elapsed_s=time.monotonic() - self._began_s,
            detail="finishing what is in flight" if self._is_drained else "",
            tasks_total=len(records),
            tasks_decided=sum(r.state is not None for r in records),
            probes_done=tally.probes,
            groups_asked=scheduler.groups_wanted if scheduler.is_probing_done else 0,
            groups=dict(tally.fates),
            episodes_ok=tally.episodes_ok,
            episodes_passed=tally.episodes_passed,
            failures={f"{b}/{c}": n for (b, c), n in tally.failures.items()},
            in_flight=len(flying),
            tokens_per_s=tally.tokens_per_s(),
            eta_s=self._eta_s(),
            stragglers=tuple(Straggler(lease.task_id, age_s) for lease, age_s in oldest),
        )

    def _make_desk(self, record: RunRecord) -> Desk:
        config = self._config
        settings = DeskSettings(
            run_id=config.run_id,
            run_dir=self._run_dir,
            seed=config.seed,
            deadline_s=config.rollout.deadline_s,
            concurrency=config.rollout.concurrency,
            estimator=Estimator(config.trainer.advantage),
        )
        buffer = GroupBuffer(max_retries=config.rollout.attempts - 1, max_open=OPEN_GROUPS)
        breaker = Breaker(config.rollout.max_failure_share)
        return Desk(settings, self._tasks, self._scheduler, buffer, record, self._tally, breaker)

    def _make_bench(self) -> Bench:
        config = self._config
        backlog = BACKLOG_PER_SLOT * config.sandbox.pool_size * len(self._pools)
        return Bench(self._scorers, config.scorer.concurrency, backlog, config.scorer.attempts)

    async def _close(self, record: RunRecord, server: MetricsServer) -> None:
        """End all that this conductor made, and leave the folder whole. One part's failure stops no other's end."""
        closing = [pool.close() for pool in self._pools] + [scorer.close() for scorer in self._scorers]
        await asyncio.gather(*closing, return_exceptions=True)
        server.close()
        await asyncio.to_thread(remove_targets, self._run_dir)
        await asyncio.to_thread(record.close)
        try:
            await asyncio.to_thread(self._write_tasks)
        except OSError as error:
            logger.warning("tasks.parquet is not up to date: %s", error)

    async def _roll(
        self, desk: Desk, bench: Bench, record: RunRecord, server: MetricsServer
    ) -> tuple[Ending, str]:
        keeping = asyncio.create_task(self._keep_up(desk, bench, record, server))
        try:
            await roll_out(desk, self._pools, bench)
        except BaseExceptionGroup as group:
            error = _first(group)
            if isinstance(error, RunStopped):
                return Ending.FAILED, error.why
            raise error from None
        finally:
            keeping.cancel()
            (kept,) = await asyncio.gather(keeping, return_exceptions=True)
            if isinstance(kept, Exception):
                logger.warning("metrics and tasks.parquet were not kept up to date: %s", kept)
        if self._is_drained and not self._scheduler.is_exhausted:
            return Ending.INTERRUPTED, "nothing that was finished is lost"
        return self._yield()

    def _yield(self) -> tuple[Ending, str]:
        """A run that came to its end, but to nothing, has failed."""
        tally, settings = self._tally, self._scheduler.settings
        if tally.episodes_ok == 0 and tally.episodes_failed:
            (boundary, cause), count = tally.failures.most_common(1)[0]
            return Ending.FAILED, f"no episode has a verdict; most often {boundary}: {cause} ({count} times)"
        if settings.groups != 0 and self._scheduler.groups_planned == 0:
            return (
                Ending.FAILED,
                NOTHING_TO_TRAIN_ON,
            )
        return Ending.DONE, ""

    async def _keep_up(self, desk: Desk, bench: Bench, record: RunRecord, server: MetricsServer) -> None:
        """Keep metrics, their targets and tasks.parquet fresh while the run goes on."""
        told: list[Target] = []
        while True:
            if self._config.metrics.enabled and (targets := await self._targets(server)) != told:
                await asyncio.to_thread(write_targets, self._run_dir, targets)
                told = targets
            records = list(self._scheduler.records.values())
            counts: dict[str, int] = {}
            for known in records:
                state = known.state.value if known.state else "undecided"
                counts[state] = counts.get(state, 0) + 1
            self._metrics.tasks(counts)
            read = await asyncio.to_thread(cursors, self._run_dir)
            undelivered = record.journal.next_seq - 1 - min(read.values(), default=-1)
            self._metrics.queues(len(desk.in_flight) - bench.waiting, bench.waiting, undelivered)
            self._metrics.policy_version(desk.policy_version)
            await asyncio.to_thread(self._write_tasks)
            await asyncio.sleep(KEEP_EVERY_S)

    def _write_tasks(self) -> None:
        records = list(self._scheduler.records.values())
        write_tasks(self._run_dir, self._tasks, lineage(self._config.policy), records)

    async def _targets(self, server: MetricsServer) -> list[Target]:
        """Where metrics are served now. An actor that is being made again is left out until it is there."""
        host = self._config.metrics.host
        asked = [pool.metrics_target() for pool in self._pools] + [s.metrics_target() for s in self._scorers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        targets = [Target(f"{host}:{server.start()}", "conductor", "")]
        return targets + [answer for answer in answers if isinstance(answer, Target)]

    def _phase(self) -> Phase:
        if self._closed_s is not None:
            return Phase.CLOSING
        if self._desk is None or self._desk.began_s is None:
            return Phase.STARTING
        return Phase.ROLLING if self._scheduler.is_probing_done else Phase.PROBING

    def _eta_s(self) -> float | None:
        done, wanted = sum(self._tally.fates.values()), self._scheduler.groups_wanted
        if (
            self._desk is None
            or self._desk.began_s is None
            or not done
            or not self._scheduler.is_probing_done
        ):
            return None
        since = self._desk.probed_s or self._desk.began_s
        return (time.monotonic() - since) / done * max(0, wanted - done)

    def _stats(self, ending: Ending, detail: str) -> RunStats:
        config, tally = self._config, self._tally
        ended = self._closed_s or time.monotonic()
        began = (self._desk.began_s if self._desk else None) or ended
        probed = began
        if config.scheduler.filter and self._desk:
            probed = self._desk.probed_s or ended
        return RunStats(
            run_id=config.run_id,
            run_dir=self._run_dir,
            command="measure" if self._scheduler.settings.groups == 0 else "run",
            ending=ending,
            ending_detail=detail,
            task_set=next(iter(self._tasks.values())).public.task_set,
            policy=config.policy.kind,
            seed=config.seed,
            is_resumed=self._is_resumed,
            tasks=tuple(
                TaskStats(
                    r.task_id, r.state, r.reason, r.probes, r.probe_passes, r.rollouts, r.passes, r.failures
                )
                for r in self._scheduler.records.values()
                if r.state is not None
            ),
            groups_asked=self._scheduler.groups_wanted,
            groups=dict(tally.fates),
            episodes_ok=tally.episodes_ok,
            episodes_failed=tally.episodes_failed,
            retries=tally.retries,
            stops=tuple(StopCount(stop, count) for stop, count in tally.stops.most_common()),
            failures=tuple(
                FailureCount(Boundary(boundary), cause, count, tally.examples.get((boundary, cause), ""))
                for (boundary, cause), count in tally.failures.most_common()
            ),
            rewards=spread(tally.rewards),
            resets_s=quantiles(tally.resets_s),
            tokens_sampled=tally.tokens_sampled,
            timings=Timings(
                setup_s=began - self._began_s, probing_s=max(0.0, probed - began), played_s=ended - began
            ),
        )


def scheduler_settings(config: Config) -> SchedulerSettings:
    return SchedulerSettings(
        is_filtering=config.scheduler.filter,
        groups=config.rollout.groups,
        group_size=config.rollout.group_size,
        max_probes=config.scheduler.max_probes,
        explore=config.scheduler.explore,
        seed=config.seed,
    )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show: one raised on purpose before any other."""
    leaves: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(error.exceptions)
        else:
            leaves.append(error)
    return next((leaf for leaf in leaves if isinstance(leaf, RollcageError)), leaves[0])
