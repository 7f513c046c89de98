"""One command's run, from a config to what it came to: loads the tasks, claims the folder, starts the cluster.

Everything that can be wrong with the user's input is said before a cluster is started. An interrupt drains
the run, a second one stops it at once; both leave it resumable.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.cluster import ConductorHandle, cluster
from orchestrator.compose import to_yaml
from orchestrator.conductor import Order
from orchestrator.config import Config
from orchestrator.loading import load_tasks
from orchestrator.logs import log_to
from orchestrator.memory import PeakMemory
from orchestrator.players import read_scripts
from orchestrator.progress import Phase, Progress
from orchestrator.runlock import DRIVER_LOCK, LOCK, RunLock
from orchestrator.stats import RunResult, RunStats
from orchestrator.summary import write_summary
from orchestrator.tasks_table import Known, lineage, read_known
from workers.errors import ConfigError, InfrastructureError
from workers.task import Task

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 0.5
JOURNAL = "journal.sqlite"
BEFORE_A_RUN = {"config.yaml", "logs", LOCK, DRIVER_LOCK}  # what a start that failed may leave

Watch = Callable[[Progress], None]


def run(
    config: Config,
    *,
    resume: Path | None = None,
    is_measuring: bool = False,
    on_progress: Watch | None = None,
) -> RunResult:
    """Run, or resume, or only measure. Call it in the main thread.

    Raises ConfigError and TaskError for what the user must mend, KeyboardInterrupt at a second interrupt.
    """
    began_s = time.monotonic()
    watch = on_progress or (lambda _: None)
    watch(Progress(Phase.STARTING, 0.0, "loading the tasks"))
    if is_measuring:
        config = replace(config, rollout=replace(config.rollout, groups=0))
    tasks = load_tasks(config)
    run_dir = Path(config.run_dir).resolve()
    scripts = read_scripts(config.policy.script, tasks) if config.policy.kind == "script" else {}
    order = Order(config, tasks, run_dir, _known_ratings(config, tasks), scripts)
    with _claimed(run_dir, config, is_resuming=resume is not None):
        return _run(order, watch, began_s)


def _run(order: Order, watch: Watch, began_s: float) -> RunResult:
    config, run_dir = order.config, order.run_dir
    log_to(run_dir / "logs" / "driver.log", config.log_level)
    watch(Progress(Phase.STARTING, time.monotonic() - began_s, "starting Ray, the sandboxes and the policy"))
    logger.info("run %s: starting the cluster", config.run_id)
    with PeakMemory() as memory, cluster(config.cluster):
        stats = asyncio.run(_conduct(order, watch))
    logger.info("run %s: the cluster is closed", config.run_id)
    timings = replace(stats.timings, wall_s=time.monotonic() - began_s)
    stats = replace(stats, timings=timings, peak_memory_mb=memory.peak_mb)
    write_summary(stats)
    return RunResult(stats)


def _known_ratings(config: Config, tasks: Sequence[Task]) -> dict[str, Known]:
    if not config.scheduler.ratings:
        return {}
    by_id = {task.task_id: task for task in tasks}
    return read_known(Path(config.scheduler.ratings), by_id, lineage(config.policy))


@contextmanager
def _claimed(run_dir: Path, config: Config, is_resuming: bool) -> Iterator[None]:
    """The run folder, made or checked, for this driver alone. A folder is never used by a second run."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = RunLock(run_dir, DRIVER_LOCK)
    except OSError as error:
        raise _not_writable(run_dir, error) from error
    with lock:
        _check(run_dir, is_resuming)
        try:
            (run_dir / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        except OSError as error:
            raise _not_writable(run_dir, error) from error
        yield


def _not_writable(run_dir: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"run_dir = {run_dir}: can't be written: {error.strerror}",
        "give a run_dir that you may write to, on a disk with room",
    )


def _check(run_dir: Path, is_resuming: bool) -> None:
    has_run = (run_dir / JOURNAL).exists()
    if is_resuming and not has_run:
        raise ConfigError(f"--resume {run_dir}: there is no run in it", "give the folder of an earlier run")
    if has_run and not is_resuming:
        raise ConfigError(
            f"run_dir = {run_dir}: a run lies there already",
            f"go on with it by `rollcage run --resume {run_dir}`, or give another run_dir",
        )
    if not has_run and (others := sorted({path.name for path in run_dir.iterdir()} - BEFORE_A_RUN)):
        raise ConfigError(
            f"run_dir = {run_dir}: the folder holds other things ({', '.join(others[:3])}, …)",
            "give a folder that is new or empty",
        )


async def _conduct(order: Order, watch: Watch) -> RunStats:
    conductor = ConductorHandle()
    running = asyncio.create_task(conductor.run(order))
    drains: list[asyncio.Task[None]] = []

    def interrupted() -> None:
        if drains:
            running.cancel()
        drains.append(asyncio.create_task(conductor.drain()))

    here = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        here.add_signal_handler(number, interrupted)
    try:
        while not running.done():
            await asyncio.wait([running], timeout=PROGRESS_EVERY_S)
            try:
                progress = await conductor.progress()
            except InfrastructureError as error:
                logger.warning("no progress to show: %s", error)
            else:
                if progress is not None:
                    watch(progress)
        return await running
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            here.remove_signal_handler(number)
        await asyncio.gather(*drains, return_exceptions=True)
