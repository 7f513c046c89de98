"""A reward against its group."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.advantages import Estimator, advantages, has_signal, is_valid

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "groups.jsonl").read_text().splitlines()
]
REWARDS = st.one_of(st.floats(), st.none(), st.text(max_size=3), st.integers(), st.booleans())


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_known_groups_get_their_known_advantages(row: dict[str, object]) -> None:
    rewards = row["rewards"]
    assert isinstance(rewards, list)
    assert has_signal(rewards) is row["group_kept"]
    found, expected = advantages(rewards), row["advantages_mean_std_population"]
    if isinstance(expected, list):
        assert [value is None for value in found] == [value is None for value in expected]
        given = [value for value in found if value is not None]
        assert given == pytest.approx([value for value in expected if value is not None], abs=1e-12)
    elif expected == "finite":
        assert all(value is not None and math.isfinite(value) for value in found)
    elif not row["group_kept"]:
        assert set(found) <= {None}


@given(rewards=st.lists(REWARDS, max_size=8), estimator=st.sampled_from(Estimator))
def test_advantages_are_finite_floats_exactly_where_there_is_a_verdict(
    rewards: list[object], estimator: Estimator
) -> None:
    found = advantages(rewards, estimator)
    valid = [is_valid(reward) for reward in rewards]
    has_any = sum(valid) >= 2 and estimator is not Estimator.NONE
    assert [value is not None for value in found] == [has_any and is_verdict for is_verdict in valid]
    assert all(value is None or abs(value) <= 3.4028234663852886e38 for value in found)


@given(reward=st.floats(allow_nan=False, allow_infinity=False), size=st.integers(2, 9))
@pytest.mark.parametrize("estimator", [Estimator.MEAN_STD, Estimator.MEAN_ONLY, Estimator.LEAVE_ONE_OUT])
def test_equal_rewards_give_exactly_zero(estimator: Estimator, reward: float, size: int) -> None:
    assert advantages([reward] * size, estimator) == (0.0,) * size
    assert not has_signal([reward] * size)


@given(rewards=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_a_better_reward_never_gets_a_worse_advantage(rewards: list[float]) -> None:
    found = [value for value in advantages(rewards) if value is not None]
    pairs = sorted(zip(rewards, found, strict=True))
    assert all(a[1] <= b[1] for a, b in pairwise(pairs))
    assert math.fsum(found) == pytest.approx(0, abs=1e-6)


def test_leaving_one_out_compares_with_the_mean_of_the_others() -> None:
    assert advantages([1, 0, 0, 1], Estimator.LEAVE_ONE_OUT) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_the_mean_alone_keeps_the_units_of_the_reward() -> None:
    assert advantages([4, 0, None], Estimator.MEAN_ONLY) == (2.0, -2.0, None)


def test_an_estimator_of_none_leaves_it_to_the_trainer() -> None:
    assert advantages([1, 0], Estimator.NONE) == (None, None)


def test_a_larger_eps_shrinks_the_advantages() -> None:
    assert advantages([1, 0], eps=0.5) == (0.5, -0.5)
