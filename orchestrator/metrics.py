"""Every metric of Rollcage, declared once, and the endpoint that shows them.

Names begin with `rollcage_`. Labels are pool, backend, outcome, cause, protection, fate, tool, and never a
task or an episode, so that the number of series stays bounded; a cause or a tool that is not a declared word
becomes `other`. Each long-lived actor has one registry of its own and one HTTP port.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)

from orchestrator.types import Fate
from workers.task import ALL_TOOLS
from workers.trajectory import Failure, StopReason, Trajectory, Verdict

PREFIX = "rollcage"
OTHER = "other"
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1_800)
TOKENS = tuple(2.0**power for power in range(18))
RECENT_REWARDS = 256
REWARDS = (-1.0, -0.5, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 2.0)
TARGETS_FILE = "metrics_targets.json"
MAX_CAUSES = 64
_CAUSE = re.compile(r"[a-z][a-z0-9_]{0,47}")


class Words:
    """Keeps a label's values few: words of one shape, at most `MAX_CAUSES` of them, else `other`."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def label(self, word: str) -> str:
        if word in self._seen:
            return word
        if not _CAUSE.fullmatch(word) or len(self._seen) >= MAX_CAUSES:
            return OTHER
        self._seen.add(word)
        return word


class Family:
    """A private registry and the metrics declared in it; `fixed` are labels with one value for all."""

    def __init__(self, fixed: Mapping[str, str]) -> None:
        self.registry = CollectorRegistry()
        self._fixed = dict(fixed)
        ProcessCollector(namespace=PREFIX, registry=self.registry)

    def counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", doc, [*labels, *self._fixed], registry=self.registry)

    def gauge(self, name: str, doc: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", doc, [*labels, *self._fixed], registry=self.registry)

    def histogram(self, name: str, doc: str, buckets: Sequence[float], *labels: str) -> Histogram:
        names = [*labels, *self._fixed]
        return Histogram(f"{PREFIX}_{name}", doc, names, buckets=buckets, registry=self.registry)

    def labels(self, **values: str) -> dict[str, str]:
        """The values of all labels of a metric of this family."""
        return {**values, **self._fixed}


class PoolMetrics:
    """What a pool's own actor knows: its slots, resets, tool calls and the policy as it was met there."""

    def __init__(self, pool: str, backend: str, slots: int) -> None:
        self._family = family = Family({"pool": pool, "backend": backend})
        self.registry = family.registry
        own = family.labels()
        family.gauge("slots", "Sandboxes that the pool may hold at once.").labels(**own).set(slots)
        self._busy = family.gauge("slots_busy", "Sandboxes with an episode in them.").labels(**own)
        self._timings = {
            "reset_s": family.histogram("reset_seconds", "Resetting a sandbox.", SECONDS).labels(**own),
            "sandbox_s": family.histogram(
                "sandbox_seconds", "Actions in one rollout's sandbox.", SECONDS
            ).labels(**own),
            "policy_wait_s": family.histogram(
                "policy_wait_seconds", "Waiting for the policy in one rollout.", SECONDS
            ).labels(**own),
        }
        self._rollout_tokens = family.histogram(
            "rollout_tokens", "Tokens sampled in one rollout.", TOKENS
        ).labels(**own)
        self._tokens = family.counter("policy_tokens", "Tokens sampled from the policy.").labels(**own)
        self._malformed = family.counter("malformed_calls", "Calls that could not be understood.").labels(
            **own
        )
        self._forks = family.counter("context_forks", "Branches beyond an episode's first.").labels(**own)
        self._calls = family.counter(
            "tool_calls", "Tool calls of the agent, by tool and outcome (ok or error).", "tool", "outcome"
        )

    def busy(self, count: int) -> None:
        self._busy.set(count)

    def ended(self, trajectory: Trajectory) -> None:
        """A rollout came to rest, well or not. Reads the timings and counts in `trajectory.metrics`."""
        numbers = trajectory.metrics
        for name, histogram in self._timings.items():
            if name in numbers:
                histogram.observe(numbers[name])
        tokens = numbers.get("tokens_sampled", 0.0)
        self._tokens.inc(tokens)
        self._rollout_tokens.observe(tokens)
        self._malformed.inc(numbers.get("malformed_calls", 0.0))
        self._forks.inc(max(0, len(trajectory.branches) - 1))
        for call in trajectory.tool_calls:
            tool = call.name if call.name in ALL_TOOLS else OTHER
            self._calls.labels(**self._family.labels(tool=tool, outcome="ok" if call.ok else "error")).inc()


class ScorerMetrics:
    """What a scorer's own actor knows: how long verdicts take and how many wait."""

    def __init__(self, pool: str) -> None:
        self._family = family = Family({"pool": pool})
        self.registry = family.registry
        self._latency = family.histogram(
            "score_seconds",
            "Judging one episode, by the strength of the wall around its verdict and by outcome.",
            SECONDS,
            "protection",
            "outcome",
        )
        self._waiting = family.gauge(
            "score_queue", "Episodes handed to the scorer and not judged yet."
        ).labels(**family.labels())

    def waiting(self, count: int) -> None:
        self._waiting.set(count)

    def judged(self, seconds: float, verdict: Verdict | None) -> None:
        """An episode was judged; None where there is no verdict."""
        protection = verdict.protection.value if verdict else "none"
        outcome = "failed" if verdict is None else _outcome(verdict.passed)
        labels = self._family.labels(protection=protection, outcome=outcome)
        self._latency.labels(**labels).observe(seconds)


class ConductorMetrics:
    """What the conductor knows: episodes, groups, rewards, queues."""

    def __init__(self) -> None:
        family = Family({})
        self.registry = family.registry
        self._causes = Words()
        self._episodes = family.counter(
            "episodes",
            "Episodes by outcome (passed, not_passed, or failed_ and the boundary) and by why they ended.",
            "outcome",
            "cause",
        )
        self._retries = family.counter("retries", "Failed attempts given another try.", "outcome", "cause")
        self._rewards = family.histogram("reward", "Rewards of episodes with a verdict.", REWARDS)
        self._recent: deque[float] = deque(maxlen=RECENT_REWARDS)
        self._reward_mean = family.gauge("reward_mean", f"Mean of the last {RECENT_REWARDS} rewards.")
        self._groups = family.counter("groups", "Complete groups by fate.", "fate")
        self._tasks = family.gauge("tasks", "Tasks by what the filter made of them.", "fate")
        self._leases = family.gauge("leases", "Episodes that pools have leave to play.")
        self._unscored = family.gauge("unscored", "Episodes played and not judged yet.")
        self._undelivered = family.gauge(
            "undelivered_groups", "Groups stored and not acknowledged by the trainer."
        )
        self._version = family.gauge("policy_version", "Newest policy version met.")
        for fate in Fate:
            self._groups.labels(fate=fate.value)

    def episode(
        self, passed: bool | None, reward: float | None, stop: StopReason | None, failure: Failure | None
    ) -> None:
        """An episode ended for good, with a verdict or with a failure."""
        if failure is not None:
            self._episodes.labels(**self._failure_labels(failure)).inc()
            return
        self._episodes.labels(outcome=_outcome(bool(passed)), cause=stop.value if stop else OTHER).inc()
        if reward is not None:
            self._rewards.observe(reward)
            self._recent.append(reward)
            self._reward_mean.set(fsum(self._recent) / len(self._recent))

    def retried(self, failure: Failure) -> None:
        """A failed attempt gets another try."""
        self._retries.labels(**self._failure_labels(failure)).inc()

    def group(self, fate: Fate) -> None:
        self._groups.labels(fate=fate.value).inc()

    def tasks(self, counts: Mapping[str, int]) -> None:
        """How many tasks are in each state (`undecided` where they have none)."""
        for state, count in counts.items():
            self._tasks.labels(fate=state).set(count)

    def queues(self, leases: int, unscored: int, undelivered: int) -> None:
        self._leases.set(leases)
        self._unscored.set(unscored)
        self._undelivered.set(undelivered)

    def policy_version(self, version: int) -> None:
        self._version.set(version)

    def _failure_labels(self, failure: Failure) -> dict[str, str]:
        return {"outcome": f"failed_{failure.boundary.value}", "cause": self._causes.label(failure.cause)}


def _outcome(passed: bool) -> str:
    return "passed" if passed else "not_passed"


def declared() -> frozenset[str]:
    """Every series name that an actor can serve, those that a kind of metric adds (`_bucket`) included."""
    names: set[str] = set()
    for registry in (
        PoolMetrics("", "", 0).registry,
        ScorerMetrics("").registry,
        ConductorMetrics().registry,
    ):
        for metric in registry.collect():
            names.update(sample.name for sample in metric.samples if not sample.name.endswith("_created"))
            if not metric.samples:
                names.update(_series(metric.name, metric.type))
    return frozenset(names)


def _series(name: str, kind: str) -> tuple[str, ...]:
    match kind:
        case "counter":
            return (f"{name}_total",)
        case "histogram":
            return tuple(f"{name}_{part}" for part in ("bucket", "sum", "count"))
        case _:
            return (name,)


class MetricsServer:
    """Serves one registry under /metrics from `start` until `close`."""

    def __init__(self, registry: CollectorRegistry, host: str = "127.0.0.1", port: int = 0) -> None:
        self._registry, self._host, self._port = registry, host, port
        self._running: tuple[WSGIServer, Thread] | None = None

    def start(self) -> int:
        """Listen, and return the port; again, where it listens already. Raises OSError where it is taken."""
        if self._running is not None:
            return self._running[0].server_port
        server, thread = start_http_server(self._port, self._host, self._registry)
        self._running = (server, thread)
        return server.server_port

    def close(self) -> None:
        """Stop listening and end the thread. Safe twice."""
        if self._running is None:
            return
        server, thread = self._running
        self._running = None
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint to scrape. `role` is conductor, pool or scorer."""

    address: str
    role: str
    pool: str = ""


def write_targets(run_dir: Path, targets: Sequence[Target]) -> Path:
    """Tell Prometheus (file_sd) where a run's endpoints are; the file appears whole or not at all."""
    groups = [
        {
            "targets": [target.address],
            "labels": {"role": target.role, **({"pool": target.pool} if target.pool else {})},
        }
        for target in targets
    ]
    path = run_dir / TARGETS_FILE
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def remove_targets(run_dir: Path) -> None:
    """A run that has ended must not be scraped: its ports may soon be someone else's."""
    (run_dir / TARGETS_FILE).unlink(missing_ok=True)
