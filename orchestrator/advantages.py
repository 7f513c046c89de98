"""A reward against its group.

Over the members with a verdict only: no verdict (None, NaN, infinity, anything but a number) has no advantage
and no part in the mean. Equal rewards give exactly 0. Results are finite and fit a float32, however large
the rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from numbers import Real

_FLOAT32_MAX = 3.4028234663852886e38
# Above this a square overflows: the group is scaled by a power of two, which is exact.
_LARGE_EXPONENT = 500


class Estimator(StrEnum):
    """How the baseline is taken. `none` leaves it to the trainer."""

    MEAN_STD = "mean_std"
    MEAN_ONLY = "mean_only"
    LEAVE_ONE_OUT = "leave_one_out"
    NONE = "none"


def is_valid(reward: object) -> bool:
    """Whether this is a verdict: a finite real number."""
    if not isinstance(reward, Real) or isinstance(reward, bool):
        return False
    try:
        return math.isfinite(float(reward))
    except OverflowError:
        return False


def has_signal(rewards: Sequence[object]) -> bool:
    """Whether a group can be trained on: at least two verdicts, not all equal."""
    valid = _valid(rewards)
    return len(valid) >= 2 and min(valid) < max(valid)


def advantages(
    rewards: Sequence[object], estimator: Estimator = Estimator.MEAN_STD, eps: float = 1e-6
) -> tuple[float | None, ...]:
    """One advantage a member, None without a verdict; all None where fewer than two have one.

    `eps` is added to the standard deviation, in units of the reward.
    """
    valid = _valid(rewards)
    if len(valid) < 2 or estimator is Estimator.NONE:
        return (None,) * len(rewards)
    if min(valid) == max(valid):
        results = [0.0] * len(valid)
    else:
        results = [_clamped(value) for value in _against_group(valid, estimator, eps)]
    found = iter(results)
    return tuple(next(found) if is_valid(reward) else None for reward in rewards)


def mean_std(rewards: Sequence[float], eps: float) -> list[float]:
    """(r − mean) / (σ + eps) with the population's σ: GRPO, arXiv:2402.03300, section 4.1.2."""
    deviations = mean_only(rewards, eps)
    sigma = math.sqrt(math.fsum(d * d for d in deviations) / len(rewards))
    return [d / (sigma + eps) for d in deviations]


def mean_only(rewards: Sequence[float], _eps: float) -> list[float]:
    """r − mean; dividing by σ favours tasks that are too easy or too hard: Dr. GRPO, arXiv:2503.20783."""
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def leave_one_out(rewards: Sequence[float], eps: float) -> list[float]:
    """r − mean of the others: RLOO, arXiv:2402.14740."""
    n = len(rewards)
    return [n / (n - 1) * deviation for deviation in mean_only(rewards, eps)]


_ESTIMATORS: dict[Estimator, Callable[[Sequence[float], float], list[float]]] = {
    Estimator.MEAN_STD: mean_std,
    Estimator.MEAN_ONLY: mean_only,
    Estimator.LEAVE_ONE_OUT: leave_one_out,
}


def _valid(rewards: Sequence[object]) -> list[float]:
    return [float(reward) for reward in rewards if isinstance(reward, Real) and is_valid(reward)]


def _against_group(rewards: Sequence[float], estimator: Estimator, eps: float) -> list[float]:
    exponent = max(math.frexp(reward)[1] for reward in rewards)
    if exponent <= _LARGE_EXPONENT:
        return _ESTIMATORS[estimator](rewards, eps)
    scaled = [math.ldexp(reward, -exponent) for reward in rewards]
    results = _ESTIMATORS[estimator](scaled, math.ldexp(eps, -exponent))
    if estimator is Estimator.MEAN_STD:
        return results
    return [math.copysign(_FLOAT32_MAX, value) if value else 0.0 for value in results]


def _clamped(value: float) -> float:
    return max(-_FLOAT32_MAX, min(_FLOAT32_MAX, value))
