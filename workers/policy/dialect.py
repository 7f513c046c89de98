"""What differs between servers that sample from token ids: how one request is put and its answer read."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.policy.protocol import Completion, Sampling


class Dialect(Protocol):
    """Speaks to one kind of server."""

    async def sample(
        self,
        prompt_ids: NDArray[np.int32],
        sampling: Sampling,
        session: str,
        deadline_s: float,
        version: int,
    ) -> Completion:
        """One request. `version` stamps what the server does not. Only a completion whose finish reason is
        "abort" may be without tokens. Raises PolicyError."""
        ...

    async def version(self) -> int | None:
        """The version that the server reports, if it does."""
        ...
