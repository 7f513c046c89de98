"""Which task to roll out next, and for what.

Invariants: a probe is never a training group; a task is probed by one rollout at a time until its outcome is
decided; only active tasks get training groups, but for a stated share that goes to those set aside, so that
a wrong first impression can be mended; every random choice comes from the seed. Pure: no clock, no I/O.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.ratings import Rating
from orchestrator.types import Purpose, TaskState

TEMPER = 0.3
REST_GROUPS = 8


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`groups` training groups in all; None means one for each task that may be trained on.

    A task is decided after a pass and a fail, or after `max_probes` rollouts that all went one way.
    `explore` is the share of training groups for tasks that were set aside.
    """

    is_filtering: bool = True
    groups: int | None = None
    group_size: int = 8
    max_probes: int = 4
    explore: float = 0.1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group to roll out. `index` counts the run's groups of this purpose from 0, in the order of planning."""

    task_id: str
    purpose: Purpose
    size: int
    index: int


@dataclass(slots=True)
class TaskRecord:
    """What is known of one task. Probes and training rollouts are counted apart."""

    task_id: str
    rating: Rating = field(default_factory=Rating)
    state: TaskState | None = None
    reason: str = "not probed yet"
    probes: int = 0
    probe_passes: int = 0
    rollouts: int = 0
    passes: int = 0
    failures: int = 0
    is_probing: bool = False
    last_group: int = -REST_GROUPS


class Scheduler:
    """Plans groups; learns from their outcomes.

    `known` gives ratings of an earlier measurement of the same policy and digests: those tasks aren't probed.
    """

    def __init__(
        self,
        task_ids: Sequence[str],
        settings: SchedulerSettings,
        known: Mapping[str, tuple[Rating, TaskState, str]] | None = None,
    ) -> None:
        self.settings = settings
        self.records = {task_id: TaskRecord(task_id) for task_id in task_ids}
        self.groups_planned = 0
        self.probes_planned = 0
        for record in self.records.values():
            if not settings.is_filtering:
                record.state, record.reason = TaskState.ACTIVE, "filter off"
            elif known and record.task_id in known:
                record.rating, record.state, record.reason = known[record.task_id]

    @property
    def is_probing_done(self) -> bool:
        return all(record.state is not None for record in self.records.values())

    @property
    def groups_wanted(self) -> int:
        """How many training groups the run is to have, as far as is known now."""
        if self.settings.groups is not None:
            return self.settings.groups
        return sum(record.state in (None, TaskState.ACTIVE) for record in self.records.values())

    @property
    def is_exhausted(self) -> bool:
        """Whether `next_group` will never plan another group, whatever outcomes still come."""
        if not self.is_probing_done:
            return False
        return self.groups_planned >= self.groups_wanted or not self._active()

    def next_group(self) -> GroupPlan | None:
        """The next group, a probe before a training group; None when nothing can be planned just now."""
        return self._next_probe() or self._next_training()

    def restore(self, plan: GroupPlan) -> None:
        """Count a group that an earlier life of this run planned, as `next_group` counted it then."""
        record = self.records[plan.task_id]
        if plan.purpose is Purpose.PROBE:
            self.probes_planned = max(self.probes_planned, plan.index + 1)
            record.is_probing = True
        else:
            self.groups_planned = max(self.groups_planned, plan.index + 1)
            record.last_group = plan.index

    def record(self, plan: GroupPlan, passed: Iterable[bool | None]) -> None:
        """Learn a finished group's outcomes; None is a member without a verdict, which teaches nothing."""
        record = self.records[plan.task_id]
        outcomes = list(passed)
        valid = [outcome for outcome in outcomes if outcome is not None]
        record.failures += len(outcomes) - len(valid)
        record.rating = record.rating.updated(sum(valid), len(valid))
        if plan.purpose is Purpose.PROBE:
            record.is_probing = False
            record.probes += len(valid)
            record.probe_passes += sum(valid)
            self._decide(record, is_lost=not valid)
        else:
            record.rollouts += len(valid)
            record.passes += sum(valid)
            if record.state in (TaskState.TOO_EASY, TaskState.TOO_HARD) and 0 < sum(valid) < len(valid):
                record.state, record.reason = TaskState.ACTIVE, "mixed outcomes when explored"

    def _next_probe(self) -> GroupPlan | None:
        open_records = [r for r in self.records.values() if r.state is None and not r.is_probing]
        if not open_records:
            return None
        record = min(open_records, key=lambda r: r.probes)
        record.is_probing = True
        plan = GroupPlan(record.task_id, Purpose.PROBE, 1, self.probes_planned)
        self.probes_planned += 1
        return plan

    def _next_training(self) -> GroupPlan | None:
        if self.groups_planned >= self.groups_wanted or not self._active():
            return None
        record = self._pick()
        record.last_group = self.groups_planned
        plan = GroupPlan(record.task_id, Purpose.TRAIN, self.settings.group_size, self.groups_planned)
        self.groups_planned += 1
        return plan

    def _active(self) -> list[TaskRecord]:
        return [r for r in self.records.values() if r.state is TaskState.ACTIVE]

    def _pick(self) -> TaskRecord:
        """Tempered Thompson sampling on p(1−p), times how rested a task is; without the filter, in turn."""
        candidates = self._active()
        if not self.settings.is_filtering:
            return min(candidates, key=lambda r: r.last_group)
        # Seeded by the group's number, so that a resumed run draws what it would have drawn.
        draw = random.Random(f"{self.settings.seed}/{self.groups_planned}")
        aside = [r for r in self.records.values() if r.state in (TaskState.TOO_EASY, TaskState.TOO_HARD)]
        if aside and self.is_probing_done and draw.random() < self.settings.explore:
            candidates = aside
        elif self.settings.groups is None:  # each task kept gets its group before any gets a second
            candidates = [r for r in candidates if r.last_group < 0] or candidates
        rest = min(REST_GROUPS, len(candidates))
        scores = [
            r.rating.signal(draw.gauss(0.0, 1.0), TEMPER)
            * min(1.0, (self.groups_planned - r.last_group) / rest)
            for r in candidates
        ]
        return candidates[scores.index(max(scores))]

    def _decide(self, record: TaskRecord, is_lost: bool) -> None:
        passes, fails = record.probe_passes, record.probes - record.probe_passes
        if is_lost:
            record.state, record.reason = TaskState.QUARANTINED, "no verdict after every retry"
        elif passes and fails:
            record.state, record.reason = TaskState.ACTIVE, f"{passes} of {record.probes} probes passed"
        elif record.probes >= self.settings.max_probes:
            record.state = TaskState.TOO_EASY if passes else TaskState.TOO_HARD
            record.reason = f"{passes} of {record.probes} probes passed"
