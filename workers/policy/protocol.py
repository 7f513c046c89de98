"""What samples: a policy behind some server, and the tokens that really were sampled.

Two modes, fixed at `start`. In token mode a policy takes and gives ids: the context of turn k+1 begins with
the very ids of turn k. In text mode the endpoint gives no ids and episodes carry none (`logprobs_mode` none).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.trajectory import LogprobsMode, Message


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Training defaults: the model's own distribution, nothing cut off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens [start, end) of a completion were sampled under `version`: a weight swap splits a response."""

    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back. Arrays are None in text mode; else both have one entry a sampled token (int32, float32).

    `finish_reason` is stop, length, tool_calls or abort. `token_ids` includes the end-of-turn token where the
    model sampled one; `text` does not.
    """

    text: str
    finish_reason: str
    request_id: str
    token_ids: NDArray[np.int32] | None
    logprobs: NDArray[np.float32] | None
    versions: tuple[VersionSpan, ...]


class Renderer(Protocol):
    """Turns messages into ids so that content can never become a control token."""

    @property
    def tokenizer_sha256(self) -> str: ...

    async def opening(self, messages: tuple[Message, ...], tools_json: str) -> NDArray[np.int32]:
        """The ids of a first prompt, up to where the assistant begins to speak."""
        ...

    async def continuation(self, completion: Completion, observation: Message) -> NDArray[np.int32]:
        """The ids to append after a completion's: what closes the assistant's turn (unless the model sampled
        it), the observation, and the opening of the next assistant turn."""
        ...


class Policy(Protocol):
    """Samples completions. Safe to use from many episodes at once in one event loop."""

    @property
    def logprobs_mode(self) -> LogprobsMode: ...

    @property
    def context_tokens(self) -> int:
        """The longest prompt plus completion that the server takes, in tokens."""
        ...

    @property
    def renderer(self) -> Renderer | None:
        """None in text mode."""
        ...

    @property
    def has_died(self) -> bool:
        """Whether a server of its own is gone, so that only closing and starting anew helps."""
        ...

    async def start(self) -> None:
        """Connect and check that the endpoint can do what is asked. Raises PolicyError or ConfigError."""
        ...

    async def sample_tokens(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, session: str, deadline_s: float
    ) -> Completion:
        """Sample after these ids. `session` keys prefix-cache affinity. Raises PolicyError."""
        ...

    async def sample_text(
        self,
        messages: tuple[Message, ...],
        tools_json: str,
        sampling: Sampling,
        session: str,
        deadline_s: float,
    ) -> Completion:
        """Sample after these messages, in text mode. Raises PolicyError."""
        ...

    async def version(self) -> int:
        """The policy version in force now."""
        ...

    async def close(self) -> None: ...
