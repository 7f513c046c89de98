"""What a run has come to so far, counted from the rows that its scorers returned.

Invariant: a run that was resumed counts its finished groups from the store, so that the totals are the run's
and not this process's. Probes are counted apart from training episodes.
"""

from __future__ import annotations

import time
from collections import Counter, deque

import pyarrow as pa

from orchestrator.groups import Decision
from orchestrator.metrics import ConductorMetrics
from orchestrator.types import Fate, Purpose, Scored
from workers.trajectory import StopReason

RATE_WINDOW_S = 20.0


class Tally:
    """Counts by outcome, fate and cause, for the summary and for the metrics. Not safe across threads."""

    def __init__(self, metrics: ConductorMetrics) -> None:
        self._metrics = metrics
        self.episodes_ok = self.episodes_passed = self.episodes_failed = self.retries = 0
        self.probes = 0
        self.tokens_sampled = 0
        self.failures: Counter[tuple[str, str]] = Counter()
        self.examples: dict[tuple[str, str], str] = {}
        self.stops: Counter[str] = Counter()
        self.fates: Counter[Fate] = Counter()
        self.rewards: list[float] = []
        self.resets_s: list[float] = []
        self._sampled: deque[tuple[float, int]] = deque()

    def ended(self, scored: Scored, is_retried: bool) -> None:
        """One episode ended just now; `is_retried` when its member is played again."""
        if scored.failure is not None:
            kind = (scored.failure.boundary.value, scored.failure.cause)
            self.failures[kind] += 1
            self.examples[kind] = scored.failure.detail
        tokens = self._play(scored.rows)
        self._sampled.append((time.monotonic(), tokens))
        if is_retried and scored.failure is not None:
            self.retries += 1
            self._metrics.retried(scored.failure)
            return
        self._final(scored.rows, scored.lease.purpose)
        stop = scored.rows["stop_reason"][0].as_py()
        self._metrics.episode(
            scored.passed, scored.reward, StopReason(stop) if stop else None, scored.failure
        )

    def group(self, purpose: Purpose, decision: Decision) -> None:
        """One group was finished."""
        if purpose is Purpose.TRAIN:
            self.fates[decision.fate] += 1
            self._metrics.group(decision.fate)

    def restored(self, rows: pa.RecordBatch, purpose: Purpose) -> None:
        """A group that an earlier life of this run finished: one row an episode."""
        for index in range(rows.num_rows):
            row = rows.slice(index, 1)
            self._play(row)
            self._final(row, purpose)
        if purpose is Purpose.TRAIN:
            self.fates[Fate(rows["fate"][0].as_py())] += 1

    def tokens_per_s(self) -> float | None:
        """Sampled tokens of the episodes that ended in the last seconds."""
        now = time.monotonic()
        while self._sampled and now - self._sampled[0][0] > RATE_WINDOW_S:
            self._sampled.popleft()
        if len(self._sampled) < 2:
            return None
        return sum(tokens for _, tokens in self._sampled) / RATE_WINDOW_S

    def _play(self, rows: pa.RecordBatch) -> int:
        metrics = dict(rows["metrics"][0].as_py())
        if "reset_s" in metrics:
            self.resets_s.append(metrics["reset_s"])
        tokens = int(metrics.get("tokens_sampled", 0))
        self.tokens_sampled += tokens
        return tokens

    def _final(self, rows: pa.RecordBatch, purpose: Purpose) -> None:
        passed, reward = rows["passed"][0].as_py(), rows["reward"][0].as_py()
        if purpose is Purpose.PROBE:
            self.probes += 1
        if passed is None:
            self.episodes_failed += 1
            return
        self.episodes_ok += 1
        self.episodes_passed += passed
        self.stops[rows["stop_reason"][0].as_py()] += 1
        if purpose is Purpose.TRAIN:
            self.rewards.append(reward)
