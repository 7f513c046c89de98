"""Groups as they fill: which member is in, which must be played again, which group is complete.

Each member counts once: its current attempt. A failed attempt is asked for again within the limit, unless it
was the verdict that failed. A group is complete when every member has a verdict or no attempt left, or when it
is cut; what arrives for it afterwards is late, is counted, and is never put into another group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.advantages import Estimator, advantages, has_signal, is_valid
from orchestrator.types import Fate, Purpose, Scored
from workers.errors import Boundary


class Arrival(StrEnum):
    """What became of a member that came in. `stray`: not of the attempt or the shape that was leased."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    LATE = "late"
    STRAY = "stray"


@dataclass(frozen=True, slots=True)
class Retry:
    """Play this member again."""

    group_id: str
    sample_index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Group:
    """A complete group. `members` are in the order of their sample index; one cut off is not among them."""

    group_id: str
    task_id: str
    purpose: Purpose
    group_size: int
    members: tuple[Scored, ...]

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """One a sample index asked for, None without a verdict."""
        by_sample = {member.lease.sample_index: member for member in self.members if _has_verdict(member)}
        return tuple(
            by_sample[index].reward if index in by_sample else None for index in range(self.group_size)
        )

    @property
    def valid_count(self) -> int:
        return sum(_has_verdict(member) for member in self.members)


@dataclass(frozen=True, slots=True)
class Added:
    """What adding a member led to: at most one of a retry and a complete group."""

    arrival: Arrival
    retry: Retry | None = None
    group: Group | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a group. `reason` says more than the fate: it is a label for counting."""

    fate: Fate
    reason: str
    advantages: Mapping[int, float | None]


@dataclass(slots=True)
class _Open:
    task_id: str
    purpose: Purpose
    group_size: int
    attempts: dict[int, int] = field(default_factory=dict)
    settled: dict[int, Scored] = field(default_factory=dict)


class GroupBuffer:
    """At most `max_open` groups that still fill, each member with at most `max_retries` further attempts."""

    def __init__(self, max_retries: int, max_open: int) -> None:
        self._max_retries = max_retries
        self._max_open = max_open
        self._open: dict[str, _Open] = {}
        self.counts: Counter[Arrival] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def room(self) -> int:
        """How many more groups may be opened now."""
        return self._max_open - len(self._open)

    def open(self, group_id: str, task_id: str, purpose: Purpose, group_size: int) -> None:
        """Begin a group. Raises ValueError when there is no room, or the group is open already."""
        if self.room <= 0:
            raise ValueError(f"{len(self._open)} groups are open, the bound is {self._max_open}")
        if group_id in self._open or group_size < 1:
            raise ValueError(f"group {group_id!r} is open already or has no member")
        self._open[group_id] = _Open(task_id, purpose, group_size)

    def expect(self, group_id: str, sample_index: int, attempt: int) -> None:
        """Say which attempt of a member is being played, where it is not the last one asked for."""
        self._open[group_id].attempts[sample_index] = attempt

    def add(self, scored: Scored) -> Added:
        """Take a member in."""
        added = self._add(scored)
        self.counts[added.arrival] += 1
        return added

    def cut(self, group_id: str) -> Group:
        """Complete a group now, with what is there. Raises KeyError when it is not open."""
        group = self._open.pop(group_id)
        members = tuple(group.settled[index] for index in sorted(group.settled))
        return Group(group_id, group.task_id, group.purpose, group.group_size, members)

    def _add(self, scored: Scored) -> Added:
        lease = scored.lease
        group = self._open.get(lease.group_id)
        if group is None:
            return Added(Arrival.LATE)
        if not 0 <= lease.sample_index < group.group_size or lease.task_id != group.task_id:
            return Added(Arrival.STRAY)
        current = group.attempts.get(lease.sample_index, 0)
        if lease.attempt < current or lease.sample_index in group.settled:
            return Added(Arrival.DUPLICATE)
        if lease.attempt > current:
            return Added(Arrival.STRAY)
        if _may_play_again(scored) and current < self._max_retries:
            group.attempts[lease.sample_index] = current + 1
            return Added(Arrival.ACCEPTED, retry=Retry(lease.group_id, lease.sample_index, current + 1))
        group.settled[lease.sample_index] = scored
        is_complete = len(group.settled) == group.group_size
        return Added(Arrival.ACCEPTED, group=self.cut(lease.group_id) if is_complete else None)


def decide(
    group: Group,
    estimator: Estimator = Estimator.MEAN_STD,
    is_stale: bool = False,
    is_cancelled: bool = False,
) -> Decision:
    """The fate of a complete group. Probes choose tasks, so they are never delivered.

    A group of one that was asked for has no variance; one that has shrunk below two is cancelled.
    """
    rewards = group.rewards
    found = dict(enumerate(advantages(rewards, estimator)))
    if is_cancelled:
        return Decision(Fate.CANCELLED, "cancelled", found)
    if group.purpose is Purpose.PROBE:
        return Decision(Fate.CANCELLED, "probe", found)
    if group.valid_count < min(2, group.group_size):
        return Decision(Fate.CANCELLED, "too_few_valid", found)
    if not has_signal(rewards):
        return Decision(Fate.ZERO_VARIANCE, "zero_variance", found)
    if is_stale:
        return Decision(Fate.STALE, "stale", found)
    return Decision(Fate.DELIVERED, "", found)


def _may_play_again(scored: Scored) -> bool:
    """A missing verdict is no reason: an agent that can stall the judge would buy itself another draw."""
    is_judges = scored.failure is None or scored.failure.boundary is Boundary.VERIFIER
    return not _has_verdict(scored) and not is_judges


def _has_verdict(scored: Scored) -> bool:
    return scored.failure is None and is_valid(scored.reward)
