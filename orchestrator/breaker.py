"""Stops a run that would go on failing, with the cause, instead of letting it train on rubble.

Looks at the last `WINDOW` episodes that ended, retried ones included; trips when more than the allowed share of
at least `LEAST` of them failed.
"""

from __future__ import annotations

from collections import Counter, deque

from workers.errors import RollcageError
from workers.trajectory import Failure

WINDOW = 48
LEAST = 12


class RunStopped(RollcageError):
    """A run was stopped on purpose; it can be resumed once the cause is mended."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Breaker:
    """Counts ended episodes; raises RunStopped when too many of the latest failed."""

    def __init__(self, max_failure_share: float) -> None:
        self._max_share = max_failure_share
        self._latest: deque[Failure | None] = deque(maxlen=WINDOW)

    def count(self, failure: Failure | None) -> None:
        """Raises RunStopped, naming the most frequent cause and one example of it."""
        self._latest.append(failure)
        failed = [f for f in self._latest if f is not None]
        if len(self._latest) < LEAST or len(failed) <= self._max_share * len(self._latest):
            return
        (boundary, cause), count = Counter((f.boundary, f.cause) for f in failed).most_common(1)[0]
        example = next(f.detail for f in reversed(failed) if (f.boundary, f.cause) == (boundary, cause))
        raise RunStopped(
            f"{len(failed)} of the last {len(self._latest)} episodes failed, {count} of them as {boundary}: {cause}"
            f" ({example})"
        )
