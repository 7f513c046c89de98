from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ratings import PRIOR_VARIANCE, Rating

counts = st.integers(1, 64).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, st.floats(-4, 4), st.floats(0.01, 5))
def test_evidence_never_widens_a_belief_and_moves_it_towards_what_was_seen(
    outcome: tuple[int, int], mean: float, variance: float
) -> None:
    passes, rollouts = outcome
    before = Rating(mean, variance)
    after = before.updated(passes, rollouts)
    assert after.variance < before.variance
    seen = passes / rollouts
    if seen > before.pass_rate():
        assert before.pass_rate() <= after.pass_rate() <= seen + 1e-6
    else:
        assert seen - 1e-6 <= after.pass_rate() <= before.pass_rate()


@given(counts)
def test_passes_and_fails_are_treated_alike(outcome: tuple[int, int]) -> None:
    passes, rollouts = outcome
    up, down = Rating().updated(passes, rollouts), Rating().updated(rollouts - passes, rollouts)
    assert up.mean == pytest.approx(-down.mean, abs=1e-6)
    assert up.variance == pytest.approx(down.variance)


def test_the_update_is_the_mode_of_the_posterior() -> None:
    after = Rating(0.0, 1.0).updated(3, 4)
    slope = 3 - 4 * after.pass_rate() - after.mean
    assert slope == pytest.approx(0.0, abs=1e-6)


def test_no_rollout_teaches_nothing() -> None:
    assert Rating(0.3, 0.7).updated(0, 0) == Rating(0.3, pytest.approx(0.7))


def test_a_new_policy_version_widens_and_does_not_move() -> None:
    rating = Rating(1.0, 0.5).widened(10)
    assert (rating.mean, rating.variance) == (1.0, pytest.approx(0.6))


def test_the_interval_of_a_fresh_belief_covers_almost_everything() -> None:
    low, high = Rating(0.0, PRIOR_VARIANCE).interval()
    assert low < 0.05
    assert high > 0.95


@pytest.mark.parametrize(("passes", "rollouts"), [(-1, 4), (5, 4), (1, 0)])
def test_an_impossible_outcome_is_refused(passes: int, rollouts: int) -> None:
    with pytest.raises(ValueError):
        Rating().updated(passes, rollouts)
