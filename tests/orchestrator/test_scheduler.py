from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.ratings import Rating
from orchestrator.scheduler import GroupPlan, Scheduler, SchedulerSettings
from orchestrator.types import Purpose, TaskState


def play(scheduler: Scheduler, rates: dict[str, float], seed: int = 0) -> list[GroupPlan]:
    """Run a scheduler to its end against tasks of known pass rates."""
    rng = random.Random(seed)
    plans: list[GroupPlan] = []
    while (plan := scheduler.next_group()) is not None:
        plans.append(plan)
        scheduler.record(plan, [rng.random() < rates[plan.task_id] for _ in range(plan.size)])
    return plans


def test_tasks_never_or_always_solved_are_set_aside_and_the_rest_is_trained_on() -> None:
    rates = {"never": 0.0, "always": 1.0, "sometimes": 0.5}
    scheduler = Scheduler(tuple(rates), SchedulerSettings(groups=20, group_size=4, explore=0.0, max_probes=8))
    plans = play(scheduler, rates)
    assert scheduler.records["never"].state is TaskState.TOO_HARD
    assert scheduler.records["always"].state is TaskState.TOO_EASY
    assert scheduler.records["sometimes"].state is TaskState.ACTIVE
    trained = [plan for plan in plans if plan.purpose is Purpose.TRAIN]
    assert len(trained) == 20
    assert {plan.task_id for plan in trained} == {"sometimes"}


def test_a_task_is_probed_by_one_rollout_at_a_time() -> None:
    scheduler = Scheduler(("a",), SchedulerSettings(groups=1))
    first = scheduler.next_group()
    assert first is not None
    assert first.purpose is Purpose.PROBE
    assert scheduler.next_group() is None
    scheduler.record(first, [True])
    assert scheduler.next_group() is not None


def test_a_probe_without_a_verdict_quarantines_the_task() -> None:
    scheduler = Scheduler(("a",), SchedulerSettings(groups=1))
    plan = scheduler.next_group()
    assert plan is not None
    scheduler.record(plan, [None])
    assert scheduler.records["a"].state is TaskState.QUARANTINED
    assert scheduler.is_exhausted


def test_probes_are_not_counted_as_rollouts() -> None:
    rates = {"a": 0.5}
    scheduler = Scheduler(("a",), SchedulerSettings(groups=3, group_size=4))
    plans = play(scheduler, rates)
    record = scheduler.records["a"]
    assert record.rollouts == 4 * sum(plan.purpose is Purpose.TRAIN for plan in plans)
    assert record.probes == sum(plan.purpose is Purpose.PROBE for plan in plans)


def test_without_the_filter_each_task_gets_its_turn_and_no_probe() -> None:
    scheduler = Scheduler(("a", "b", "c"), SchedulerSettings(is_filtering=False, groups=6, group_size=2))
    plans = play(scheduler, {"a": 0.0, "b": 1.0, "c": 0.5})
    assert [plan.task_id for plan in plans] == ["a", "b", "c", "a", "b", "c"]
    assert all(plan.purpose is Purpose.TRAIN for plan in plans)


def test_without_a_number_of_groups_there_is_one_for_each_task_kept() -> None:
    rates = {"never": 0.0, "x": 0.5, "y": 0.5}
    scheduler = Scheduler(tuple(rates), SchedulerSettings(groups=None, explore=0.0, max_probes=10))
    plans = play(scheduler, rates)
    assert Counter(p.task_id for p in plans if p.purpose is Purpose.TRAIN).total() == 2


def test_without_a_number_of_groups_no_kept_task_is_left_out() -> None:
    rates = {f"t{n}": 0.5 for n in range(12)}
    plans = play(Scheduler(tuple(rates), SchedulerSettings(groups=None, explore=0.0, max_probes=12)), rates)
    trained = [plan.task_id for plan in plans if plan.purpose is Purpose.TRAIN]
    assert sorted(trained) == sorted(rates)


def test_known_ratings_spare_the_probes() -> None:
    known = {"a": (Rating(), TaskState.ACTIVE, "measured before")}
    plan = Scheduler(("a",), SchedulerSettings(groups=1), known).next_group()
    assert plan is not None
    assert plan.purpose is Purpose.TRAIN


def test_a_task_set_aside_by_mistake_comes_back_when_it_is_explored() -> None:
    scheduler = Scheduler(("a", "b"), SchedulerSettings(groups=100, group_size=4, explore=1.0, max_probes=1))
    for outcome in (True, False):
        plan = scheduler.next_group()
        assert plan is not None
        scheduler.record(plan, [outcome])
    scheduler.records["b"].state = TaskState.ACTIVE
    plan = scheduler.next_group()
    assert plan is not None
    assert plan.task_id == "a"
    scheduler.record(plan, [True, False, True, True])
    assert scheduler.records["a"].state is TaskState.ACTIVE


def test_measuring_plans_probes_only() -> None:
    rates = {"a": 0.5, "b": 0.0}
    plans = play(Scheduler(tuple(rates), SchedulerSettings(groups=0)), rates)
    assert plans
    assert all(plan.purpose is Purpose.PROBE for plan in plans)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(0, 2**16), st.integers(0, 12))
def test_every_plan_is_numbered_once_and_the_end_is_reached(
    rates: list[float], seed: int, groups: int
) -> None:
    named = {f"t{n}": rate for n, rate in enumerate(rates)}
    scheduler = Scheduler(tuple(named), SchedulerSettings(groups=groups, group_size=3, seed=seed))
    plans = play(scheduler, named, seed)
    for purpose in Purpose:
        assert [p.index for p in plans if p.purpose is purpose] == list(
            range(sum(p.purpose is purpose for p in plans))
        )
    assert scheduler.is_exhausted
    assert all(record.probes <= 4 for record in scheduler.records.values())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 40))
def test_a_scheduler_that_replays_its_groups_plans_what_it_would_have_planned(seed: int, cut: int) -> None:
    rates = {"a": 0.5, "b": 0.3, "c": 0.0, "d": 0.9}
    setup = SchedulerSettings(groups=30, group_size=4, seed=seed)
    rng = random.Random(seed)
    first, log = Scheduler(tuple(rates), setup), []
    for _ in range(cut):
        plan = first.next_group()
        if plan is None:
            break
        outcome = [rng.random() < rates[plan.task_id] for _ in range(plan.size)]
        log.append((plan, outcome))
        first.record(plan, outcome)
    second = Scheduler(tuple(rates), setup)
    for plan, outcome in log:
        second.restore(plan)
        second.record(plan, outcome)
    assert second.next_group() == first.next_group()
