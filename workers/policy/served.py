"""A policy behind a server, of whatever dialect.

A completion that the server aborted, as it does when weights are swapped, is resumed: what was sampled stays,
the rest is asked for after it, and the spans say which version sampled which tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workers.errors import PolicyError
from workers.policy.chat import Chat
from workers.policy.config import check_sampling
from workers.policy.dialect import Dialect
from workers.policy.protocol import Completion, Renderer, Sampling, VersionSpan
from workers.trajectory import LogprobsMode, Message

logger = logging.getLogger(__name__)

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
MOST_RESUMES = 32
VERSION_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class TokenMode:
    dialect: Dialect
    renderer: Renderer


@dataclass(frozen=True, slots=True)
class Connection:
    """An open way to a server: in token mode or in text mode.

    `has_died` tells of a server of our own that it is gone; of another's nothing is known.
    """

    mode: TokenMode | Chat
    context_tokens: int
    has_died: Callable[[], bool] = bool


class ServedPolicy:
    """The one policy class; `open_connection` is what differs."""

    def __init__(
        self,
        open_connection: Callable[[], AbstractAsyncContextManager[Connection]],
        logprobs_mode: LogprobsMode,
        version: int = 0,
    ) -> None:
        self._open_connection = open_connection
        self._logprobs_mode = logprobs_mode
        self._version = version
        self._ask_version_at = 0.0
        self._stack = AsyncExitStack()
        self._connection: Connection | None = None

    @property
    def logprobs_mode(self) -> LogprobsMode:
        is_text = self._connection is not None and isinstance(self._connection.mode, Chat)
        return LogprobsMode.NONE if is_text else self._logprobs_mode

    @property
    def context_tokens(self) -> int:
        return self._connected().context_tokens

    @property
    def renderer(self) -> Renderer | None:
        mode = self._connected().mode
        return mode.renderer if isinstance(mode, TokenMode) else None

    async def start(self) -> None:
        if self._connection is None:
            self._connection = await self._stack.enter_async_context(self._open_connection())

    async def close(self) -> None:
        self._connection = None
        await self._stack.aclose()

    @property
    def has_died(self) -> bool:
        """Whether the server was a child of ours and is gone: then only a new start helps."""
        return self._connection is not None and self._connection.has_died()

    async def version(self) -> int:
        """The last one known; the server is asked at most once a second, and its failure is no error."""
        mode = self._connected().mode
        if isinstance(mode, TokenMode) and time.monotonic() >= self._ask_version_at:
            self._ask_version_at = time.monotonic() + VERSION_PERIOD_S
            try:
                reported = await mode.dialect.version()
            except PolicyError as error:
                logger.warning("the server does not tell its policy version: %s", error)
                reported = None
            self._version = self._version if reported is None else reported
        return self._version

    def push_version(self, version: int) -> None:
        """The trainer's word on what the server samples from now on, where the server does not say it."""
        self._version = version

    async def sample_tokens(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, session: str, deadline_s: float
    ) -> Completion:
        mode = self._connected().mode
        if isinstance(mode, Chat):
            raise PolicyError("bad_response", "this endpoint is used in text mode: it takes no token ids")
        check_sampling(sampling, self._logprobs_mode)
        ends = time.monotonic() + deadline_s
        whole: Completion | None = None
        for resumes in range(MOST_RESUMES):
            prompt, rest = _rest(prompt_ids, sampling, whole)
            left_s = ends - time.monotonic()
            if left_s <= 0:
                break
            part = await mode.dialect.sample(prompt, rest, session, left_s, self._version)
            whole = part if whole is None else _joined(whole, part)
            if part.finish_reason != "abort":
                return whole
            if len(_ids(whole)) >= sampling.max_tokens:
                return replace(whole, finish_reason="length")
            await asyncio.sleep(min(FIRST_WAIT_S * 2**resumes, LONGEST_WAIT_S, max(left_s, 0)))
        raise PolicyError(
            "aborted", f"the server aborted the request and did not finish it in {deadline_s:g} s"
        )

    async def sample_text(
        self,
        messages: tuple[Message, ...],
        tools_json: str,
        sampling: Sampling,
        session: str,
        deadline_s: float,
    ) -> Completion:
        mode = self._connected().mode
        if not isinstance(mode, Chat):
            raise PolicyError("bad_response", "this endpoint is used in token mode: it takes no messages")
        completion = await mode.sample(messages, tools_json, sampling, deadline_s)
        return replace(completion, versions=(VersionSpan(0, 0, self._version),))

    def _connected(self) -> Connection:
        if self._connection is None:
            raise PolicyError("endpoint_unreachable", "the policy was not started")
        return self._connection


def _ids(completion: Completion) -> NDArray[np.int32]:
    return np.empty(0, np.int32) if completion.token_ids is None else completion.token_ids


def _rest(
    prompt_ids: NDArray[np.int32], sampling: Sampling, done: Completion | None
) -> tuple[NDArray[np.int32], Sampling]:
    if done is None:
        return prompt_ids, sampling
    ids = _ids(done)
    return np.concatenate((prompt_ids, ids)), replace(sampling, max_tokens=sampling.max_tokens - len(ids))


def _joined(first: Completion, second: Completion) -> Completion:
    """One completion of two parts; a span that goes on under the same version stays one."""
    assert first.logprobs is not None
    assert second.logprobs is not None
    offset = len(_ids(first))
    spans = [span for span in first.versions if span.end > span.start]
    for span in second.versions:
        moved = VersionSpan(span.start + offset, span.end + offset, span.version)
        if spans and spans[-1].version == moved.version:
            moved = replace(moved, start=spans.pop().start)
        spans.append(moved)
    return replace(
        second,
        text=first.text + second.text,
        token_ids=np.concatenate((_ids(first), _ids(second))),
        logprobs=np.concatenate((first.logprobs, second.logprobs)),
        versions=tuple(spans),
    )
