"""Groups as they fill."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.groups import Arrival, Group, GroupBuffer, Retry, decide
from orchestrator.types import Fate, Purpose
from tests.stream.making import group, member


def opened(size: int = 4, max_retries: int = 1, name: str = "g0") -> GroupBuffer:
    buffer = GroupBuffer(max_retries=max_retries, max_open=2)
    buffer.open(name, f"task-of-{name}", Purpose.TRAIN, size)
    return buffer


def test_a_group_is_complete_when_every_member_has_a_verdict() -> None:
    buffer = opened(2)
    assert buffer.add(member(1.0, sample=1, size=2)).group is None
    done = buffer.add(member(0.0, sample=0, size=2)).group
    assert done is not None
    assert done.rewards == (0.0, 1.0)
    assert len(buffer) == 0


def test_a_failed_member_is_asked_for_again_until_its_retries_are_used_up() -> None:
    buffer = opened(2)
    buffer.add(member(1.0, sample=0, size=2))
    assert buffer.add(member(None, sample=1, size=2)).retry == Retry("g0", 1, 1)
    done = buffer.add(member(None, sample=1, size=2, attempt=1))
    assert done.retry is None
    assert done.group is not None
    assert (done.group.rewards, done.group.valid_count) == ((1.0, None), 1)


def test_a_duplicate_is_dropped_and_counted() -> None:
    buffer = opened()
    buffer.add(member(1.0))
    assert buffer.add(member(0.0)).arrival is Arrival.DUPLICATE
    assert buffer.counts[Arrival.DUPLICATE] == 1
    assert buffer.cut("g0").rewards == (1.0, None, None, None)


def test_an_attempt_that_was_given_up_is_dropped_when_it_comes_after_all() -> None:
    buffer = opened()
    buffer.add(member(None, sample=2))
    assert buffer.add(member(1.0, sample=2, attempt=0)).arrival is Arrival.DUPLICATE
    assert buffer.add(member(0.0, sample=2, attempt=1)).arrival is Arrival.ACCEPTED


def test_a_late_member_is_counted_and_joins_no_other_group() -> None:
    buffer = opened()
    for sample, reward in enumerate((1.0, 0.0, 0.0)):
        buffer.add(member(reward, sample=sample))
    cut = buffer.cut("g0")
    buffer.open("g1", "task-of-g1", Purpose.TRAIN, 4)
    assert buffer.add(member(1.0, sample=3)).arrival is Arrival.LATE
    assert buffer.counts[Arrival.LATE] == 1
    assert cut.rewards == (1.0, 0.0, 0.0, None)
    assert decide(cut).fate is Fate.DELIVERED
    assert buffer.cut("g1").members == ()


def test_a_member_of_no_seat_is_a_stray() -> None:
    buffer = opened(2)
    assert buffer.add(member(1.0, sample=3)).arrival is Arrival.STRAY
    assert buffer.add(member(1.0, attempt=1, size=2)).arrival is Arrival.STRAY


def test_a_resumed_member_is_taken_at_the_attempt_that_is_being_played() -> None:
    buffer = opened(2)
    buffer.expect("g0", 0, 1)
    assert buffer.add(member(1.0, size=2, attempt=0)).arrival is Arrival.DUPLICATE
    assert buffer.add(member(1.0, size=2, attempt=1)).arrival is Arrival.ACCEPTED


def test_open_groups_are_bounded() -> None:
    buffer = opened()
    buffer.open("g1", "task-of-g1", Purpose.TRAIN, 4)
    assert buffer.room == 0
    with pytest.raises(ValueError, match="the bound is 2"):
        buffer.open("g2", "t", Purpose.TRAIN, 4)


@pytest.mark.parametrize(
    ("rewards", "fate", "reason"),
    [
        ((1.0, 0.0, 0.0, 1.0), Fate.DELIVERED, ""),
        ((1.0, None, 0.0, None), Fate.DELIVERED, ""),
        ((0.0, 0.0, 0.0, 0.0), Fate.ZERO_VARIANCE, "zero_variance"),
        ((1.0, 1.0, None, None), Fate.ZERO_VARIANCE, "zero_variance"),
        ((1.0, None, None, None), Fate.CANCELLED, "too_few_valid"),
        ((None, None, None, None), Fate.CANCELLED, "too_few_valid"),
        ((1.0,), Fate.ZERO_VARIANCE, "zero_variance"),
        ((None,), Fate.CANCELLED, "too_few_valid"),
    ],
)
def test_a_group_is_delivered_if_it_teaches(
    rewards: tuple[float | None, ...], fate: Fate, reason: str
) -> None:
    made, decision = group("g0", rewards)
    assert (decision.fate, decision.reason) == (fate, reason)
    assert [decision.advantages[i] is None for i in range(len(rewards))] == [
        reward is None or made.valid_count < 2 for reward in rewards
    ]


def test_a_probe_a_stale_and_a_cancelled_group_are_not_delivered() -> None:
    made, _ = group("g0", (1.0, 0.0))
    probe = Group("g0", made.task_id, Purpose.PROBE, 2, made.members)
    assert (decide(probe).fate, decide(probe).reason) == (Fate.CANCELLED, "probe")
    assert decide(made, is_stale=True).fate is Fate.STALE
    assert decide(made, is_cancelled=True).fate is Fate.CANCELLED


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([0.0, 1.0, None])), max_size=30
    )
)
def test_whatever_arrives_a_group_holds_each_member_once(
    arrivals: list[tuple[int, int, float | None]],
) -> None:
    buffer = opened(4, max_retries=2)
    complete: list[Group] = []
    for sample, attempt, reward in arrivals:
        added = buffer.add(member(reward, sample=sample, attempt=attempt))
        complete += [added.group] if added.group else []
        assert added.retry is None or added.retry.attempt <= 2
    assert len(complete) <= 1
    final = complete[0] if complete else buffer.cut("g0")
    samples = [one.lease.sample_index for one in final.members]
    assert samples == sorted(set(samples))
    assert sum(buffer.counts.values()) == len(arrivals)
