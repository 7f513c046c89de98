"""Ray, wrapped: the only file that calls it. State logic elsewhere is tested without it.

Topology: one conductor (on the driver's node, restarted for ever), one pool actor on each node that offers
the custom resource `sandbox_host`, scorers as actors of their own. Every call has a deadline; a call that
fails or is late is an `InfrastructureError`, and an error that an actor raised on purpose arrives as it was.
Ray has no walls between its workers: who escapes a sandbox owns the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator import warden
from orchestrator.actors import PoolActor, ScorerActor
from orchestrator.conductor import Conductor, Order
from orchestrator.config import ClusterConfig, Config
from orchestrator.metrics import Target
from orchestrator.pool import TurnReport
from orchestrator.progress import Progress
from orchestrator.scoring import Ended
from orchestrator.stats import RunStats
from orchestrator.types import Lease, Scored
from workers.errors import ConfigError, InfrastructureError, RollcageError
from workers.task import PublicTask, Task

logger = logging.getLogger(__name__)

HOST_RESOURCE = "sandbox_host"
OBJECT_STORE_BYTES = 512 << 20
START_S = 240.0
TURN_GRACE_S = 30.0
CONNECT_S = 60.0
REACH_S = 10.0
REST_S = 1.0
MAX_LIVES = 10
CALLS = 256

Actor = Any  # Ray's handles are untyped; nothing but this file sees one.


@contextmanager
def cluster(config: ClusterConfig) -> Iterator[None]:
    """A Ray cluster for the length of the block: one node of our own, or one that is up.

    Our own node leaves no process and no folder, also when this process is killed.
    """
    if config.kind == "ray":
        _check_reachable(config.address)
        try:
            ray.init(address=config.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError) as error:
            raise _no_cluster(config.address, error) from error
        try:
            yield
        finally:
            ray.shutdown()
        return
    with _own_folder() as folder:
        # Ray's workers run at nice 15 by default, and sandboxes would inherit it.
        os.environ.update(RAY_worker_niceness="0", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")
        ray.init(
            num_cpus=config.num_cpus,
            resources={HOST_RESOURCE: 1},
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder / "ray"),  # Ray lets everybody write there; its parent is ours alone
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        try:
            yield
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray tries an address that nobody answers at for minutes; this says so in seconds."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"cluster.address = {address}: no Ray cluster answers there: {error}",
        "start one with `ray start --head`, or use cluster=local; if it asks for Ray's token,"
        " set RAY_AUTH_MODE=token here too",
    )


class ConductorHandle:
    """The conductor as the driver sees it."""

    def __init__(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._actor = _make(_ConductorActor, here)

    async def run(self, order: Order) -> RunStats:
        """Roll out to the end. A conductor that died is asked again: it goes on from the run folder."""
        for _ in range(MAX_LIVES - 1):
            try:
                return cast(RunStats, await _answer(self._actor.run.remote(order), None, "conductor"))
            except InfrastructureError as error:
                if error.cause != "conductor_lost":
                    raise
                logger.warning("the conductor was lost, asking it again: %s", error)
                await asyncio.sleep(REST_S)
        return cast(RunStats, await _answer(self._actor.run.remote(order), None, "conductor"))

    async def progress(self) -> Progress | None:
        """None before the run has begun."""
        answer = await _answer(self._actor.progress.remote(), CONNECT_S, "conductor")
        return cast("Progress | None", answer)

    async def drain(self) -> None:
        """Lease nothing more; `run` returns when what is in flight has ended."""
        await _answer(self._actor.drain.remote(), CONNECT_S, "conductor")


class _ConductorActor:
    """The conductor in its own process; makes its pools and scorers, which end with it.

    It is told what to run by the call and not when it is made: Ray can't make an actor again whose large
    arguments were lost.
    """

    def __init__(self) -> None:
        self._conductor: Conductor | None = None
        self._is_drained = False

    async def run(self, order: Order) -> RunStats:
        self._conductor = Conductor(order, pools(order), scorers(order))
        if self._is_drained:
            await self._conductor.drain()
        return await self._conductor.run()

    async def progress(self) -> Progress | None:
        return await self._conductor.progress() if self._conductor else None

    async def drain(self) -> None:
        self._is_drained = True
        if self._conductor:
            await self._conductor.drain()


class RayPool:
    """A pool on one node, made again when it was lost."""

    def __init__(self, name: str, node_id: str, order: Order) -> None:
        self.name = name
        where = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self._scripts, self._is_stalled = order.scripts, False
        self._actor = _make(PoolActor, where, name, order.config, order.run_dir)

    async def start(self) -> int:
        """Make the pool, or make it again: one that stalled is killed first, so that its old life is over."""
        if self._is_stalled:
            ray.kill(self._actor, no_restart=False)
            self._is_stalled = False
        return cast(int, await _started(lambda: self._actor.start.remote(self._scripts), "pool"))

    async def turn(
        self, leases: Sequence[Lease], tasks: Mapping[str, PublicTask], wait_s: float
    ) -> tuple[TurnReport, object]:
        meta, batch = self._actor.turn.options(num_returns=2).remote(leases, tasks, wait_s)
        try:
            report = cast(TurnReport, await _answer(meta, wait_s + TURN_GRACE_S, "pool"))
        except InfrastructureError as error:
            self._is_stalled = error.cause == "pool_stalled"
            raise
        return report, batch

    async def metrics_target(self) -> Target | None:
        return await _metrics_target(self._actor, "pool", self.name)

    async def close(self) -> None:
        await _answer(self._actor.close.remote(), CONNECT_S, "pool")


class RayScorer:
    """A scorer in a process of its own, made again when it was lost."""

    def __init__(self, name: str, config: Config, run_dir: Path) -> None:
        self.name = name
        self._deadline_s = config.rollout.deadline_s
        self._actor = _make(ScorerActor, "DEFAULT", name, config, run_dir)

    async def start(self) -> None:
        await _started(self._actor.start.remote, "scorer")

    async def score(self, ended: Ended, task: Task, is_last: bool) -> Scored:
        """Raises InfrastructureError when the scorer was lost, once it is there again."""
        answer = self._actor.score.remote(ended.batch, ended.index, ended.lease, task, is_last)
        try:
            return cast(Scored, await _answer(answer, self._deadline_s, "scorer"))
        except InfrastructureError as error:
            if error.cause == "scorer_lost":
                await self.start()
            raise

    async def metrics_target(self) -> Target | None:
        return await _metrics_target(self._actor, "scorer", self.name)

    async def close(self) -> None:
        await _answer(self._actor.close.remote(), CONNECT_S, "scorer")


def _make(actor_class: type, where: object, *arguments: object) -> Actor:
    """An actor that Ray restarts for ever and never calls twice by itself; it takes no CPU of Ray's count."""
    return (
        ray.remote(actor_class)
        .options(
            num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=CALLS, scheduling_strategy=where
        )
        .remote(*arguments)
    )


async def _metrics_target(actor: Actor, role: str, name: str) -> Target | None:
    address = cast(str, await _answer(actor.metrics_address.remote(), CONNECT_S, role))
    return Target(address, role, name) if address else None


def pools(order: Order) -> tuple[RayPool, ...]:
    """One pool for each live node that offers the resource. Raises ConfigError where there is none."""
    nodes = [
        n
        for n in ray.nodes()  # type: ignore[no-untyped-call]
        if n["Alive"] and n["Resources"].get(HOST_RESOURCE, 0) >= 1
    ]
    if not nodes:
        raise ConfigError(
            f"no node of the cluster offers the resource {HOST_RESOURCE!r}",
            f"start the nodes that may hold sandboxes with: ray start … --resources '{{\"{HOST_RESOURCE}\": 1}}'",
        )
    ordered = sorted(nodes, key=lambda n: str(n["NodeID"]))
    return tuple(RayPool(f"pool-{n}", node["NodeID"], order) for n, node in enumerate(ordered))


def scorers(order: Order) -> tuple[RayScorer, ...]:
    return tuple(
        RayScorer(f"scorer-{n}", order.config, order.run_dir) for n in range(order.config.scorer.count)
    )


async def _answer(ref: object, deadline_s: float | None, role: str) -> object:
    """What an actor's method returned.

    What it raised on purpose is raised. Else an InfrastructureError says `actor_raised`, or of an actor in this
    role that it died (`pool_lost`) or is late (`pool_stalled`).
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await cast("asyncio.Future[object]", ref)
    except TimeoutError:
        raise InfrastructureError(f"{role}_stalled", f"no answer within {deadline_s:.0f} s") from None
    except RayTaskError as error:
        if isinstance(error.cause, RollcageError):
            raise error.cause from None
        raise InfrastructureError("actor_raised", str(error)) from None
    except RayError as error:
        raise InfrastructureError(f"{role}_lost", f"{type(error).__name__}: {error}") from None


async def _started(start: Callable[[], object], role: str) -> object:
    """What an actor's start returned; one that Ray is making again is waited for, as long as a start may take."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return await _answer(start(), START_S, role)
        except InfrastructureError as error:
            if error.cause != f"{role}_lost" or time.monotonic() > deadline:
                raise
        await asyncio.sleep(REST_S)


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder for our own node, cleared with all its processes by a warden however this process ends.

    It lies where its path is short: a socket's may have 107 bytes.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"rollcage-{os.getuid()}-"))
    watching = subprocess.Popen(
        [sys.executable, "-I", "-S", warden.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        watching.communicate(timeout=2 * warden.GIVE_UP_S)
