"""What a run came to, as plain facts. A leaf: filled by the driver, written and shown by `summary`.

Probes chose the tasks, so they are counted apart from the rollouts made afterwards and never mixed with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from orchestrator.exits import ExitCode
from orchestrator.types import Fate, TaskState
from workers.errors import Boundary

Z_95 = 1.959964


class Ending(StrEnum):
    """How a run ended. `interrupted` and `failed` can be resumed."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> ExitCode:
        return {Ending.DONE: ExitCode.DONE, Ending.FAILED: ExitCode.FAILED}.get(self, ExitCode.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class PassRate:
    """A share of passes with its 95 % Wilson interval. `rate` is None where nothing was judged."""

    passes: int
    attempts: int
    rate: float | None
    low: float
    high: float


def pass_rate(passes: int, attempts: int) -> PassRate:
    """Wilson's score interval: it keeps its width at 0 of n and n of n, where the plain one collapses."""
    if not 0 <= passes <= attempts:
        raise ValueError(f"{passes} passes of {attempts} attempts")
    if attempts == 0:
        return PassRate(0, 0, None, 0.0, 1.0)
    rate, z2 = passes / attempts, Z_95 * Z_95
    centre = (rate + z2 / (2 * attempts)) / (1 + z2 / attempts)
    half = Z_95 / (1 + z2 / attempts) * math.sqrt(rate * (1 - rate) / attempts + z2 / (4 * attempts**2))
    low = 0.0 if passes == 0 else max(0.0, centre - half)
    high = 1.0 if passes == attempts else min(1.0, centre + half)
    return PassRate(passes, attempts, rate, low, high)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of a sample; None where it is empty."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None


def quantiles(values: Sequence[float]) -> Quantiles:
    """Nearest-rank quantiles, so that each is a value that was really met."""
    if not values:
        return Quantiles()
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Quantiles(len(ordered), at(0.5), at(0.95))


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, population deviation and ends of a sample; None where it is empty."""

    count: int = 0
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None


def spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread()
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return Spread(len(values), mean, std, min(values), max(values))


@dataclass(frozen=True, slots=True)
class TaskStats:
    """One task. `probes` and `rollouts` count judged episodes only; `failures` those without a verdict."""

    task_id: str
    state: TaskState
    reason: str
    probes: int = 0
    probe_passes: int = 0
    rollouts: int = 0
    passes: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Failed episodes by boundary and cause, retried ones included, with what the last of them said."""

    boundary: Boundary
    cause: str
    count: int
    example: str = ""


@dataclass(frozen=True, slots=True)
class StopCount:
    """Judged episodes by why they ended."""

    stop_reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. `played_s` is from the first lease to the last verdict."""

    wall_s: float = 0.0
    setup_s: float = 0.0
    probing_s: float = 0.0
    played_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunStats:
    """A whole run. `command` is run or measure; `ending_detail` says why where it did not end well.

    `rewards` is over training episodes with a verdict. `episodes_*` count probes and training together;
    `retries` are attempts after the first.
    """

    run_id: str
    run_dir: Path
    command: str
    ending: Ending
    task_set: str
    policy: str
    seed: int
    ending_detail: str = ""
    is_resumed: bool = False
    tasks: tuple[TaskStats, ...] = ()
    groups_asked: int = 0
    groups: dict[Fate, int] = field(default_factory=dict)
    episodes_ok: int = 0
    episodes_failed: int = 0
    retries: int = 0
    stops: tuple[StopCount, ...] = ()
    failures: tuple[FailureCount, ...] = ()
    rewards: Spread = Spread()
    resets_s: Quantiles = Quantiles()
    tokens_sampled: int = 0
    timings: Timings = Timings()
    peak_memory_mb: float | None = None

    @property
    def episodes_per_s(self) -> float | None:
        """Judged episodes over the time in which episodes were played."""
        return self.episodes_ok / self.timings.played_s if self.timings.played_s > 0 else None


@dataclass(frozen=True, slots=True)
class RunResult:
    """What the driver hands back to the command line."""

    stats: RunStats

    @property
    def exit_code(self) -> ExitCode:
        return self.stats.ending.exit_code
