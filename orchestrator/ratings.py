"""How likely the policy is to solve a task: a logit-normal belief for each task.

The pass rate is σ(x) with x ~ N(mean, variance). One group of n rollouts with k passes is one Laplace update:
the mode of the posterior of x under a binomial likelihood, and the inverse of its curvature. A newer policy
version widens every belief, so that old evidence fades without pulling the estimate anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PRIOR_VARIANCE = 2.5
WIDENING_PER_VERSION = 0.01
NEWTON_STEPS = 50
Z_95 = 1.959964


def sigmoid(x: float) -> float:
    """σ(x), without overflow."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    return math.exp(x) / (1.0 + math.exp(x))


@dataclass(frozen=True, slots=True)
class Rating:
    """A belief about one task's pass rate, on the logit scale."""

    mean: float = 0.0
    variance: float = PRIOR_VARIANCE

    def updated(self, passes: int, rollouts: int) -> Rating:
        """The belief after `passes` of `rollouts` (0 ≤ passes ≤ rollouts; 0 rollouts change nothing)."""
        if not 0 <= passes <= rollouts:
            raise ValueError(f"passes {passes} of {rollouts} rollouts")
        x = self.mean
        for _ in range(NEWTON_STEPS):
            rate = sigmoid(x)
            slope = passes - rollouts * rate - (x - self.mean) / self.variance
            curvature = rollouts * rate * (1.0 - rate) + 1.0 / self.variance
            step = slope / curvature
            x += max(-1.0, min(1.0, step))
            if abs(step) < 1e-9:
                break
        rate = sigmoid(x)
        return Rating(x, 1.0 / (rollouts * rate * (1.0 - rate) + 1.0 / self.variance))

    def widened(self, versions: int) -> Rating:
        """The same belief, less sure by `versions` policy versions."""
        return Rating(self.mean, self.variance + WIDENING_PER_VERSION * max(0, versions))

    def pass_rate(self) -> float:
        """σ(mean): the median of the believed pass rate."""
        return sigmoid(self.mean)

    def interval(self) -> tuple[float, float]:
        """The central 95 % of the believed pass rate."""
        half = Z_95 * math.sqrt(self.variance)
        return sigmoid(self.mean - half), sigmoid(self.mean + half)

    def signal(self, z: float, temper: float) -> float:
        """p(1−p), the variance of a pass, at a Thompson draw: p = σ(mean + temper·√variance·z), z ~ N(0, 1)."""
        rate = sigmoid(self.mean + temper * math.sqrt(self.variance) * z)
        return rate * (1.0 - rate)
