"""What the policy was shown and what it sampled in one episode: the ledger from which a branch is made.

Invariants: ids are only ever appended, so the prompt of turn k+1 begins with the very ids of turn k's prompt
and completion; nothing is encoded twice. Segments tile [0, n). The loss mask is 1 exactly on what was
sampled; log-probabilities are NaN exactly where it is 0. A completion that spans policy versions is split.
Without a renderer (text mode) there are messages only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workers.policy.protocol import Completion, VersionSpan
from workers.trajectory import Branch, LogprobsMode, Message, Segment


@dataclass(slots=True)
class Context:
    """One episode's conversation, by message and by token."""

    tokenizer_sha256: str = ""
    logprobs_mode: LogprobsMode = LogprobsMode.NONE
    sampling_params: str = "{}"
    tools: str = "[]"
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    tokens_sampled: int = 0
    policy_wait_s: float = 0.0
    versions: set[int] = field(default_factory=set)
    _ids: list[NDArray[np.int32]] = field(default_factory=list)
    _logprobs: list[NDArray[np.float32]] = field(default_factory=list)
    _segments: list[Segment] = field(default_factory=list)
    _length: int = 0
    _prompt_len: int = 0

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """All ids so far: the next prompt."""
        if len(self._ids) > 1:
            self._ids = [np.concatenate(self._ids)]
        return self._ids[0] if self._ids else np.empty(0, np.int32)

    def open(self, messages: tuple[Message, ...], ids: NDArray[np.int32] | None) -> None:
        """Begin with the first prompt; `ids` is None in text mode."""
        self.messages.extend(messages)
        if ids is not None:
            self._append(ids, None)
            self._prompt_len = self._length
            self._segments.append(Segment(0, self._length, turn=0, role="prompt", sampled=False))

    def add_completion(self, completion: Completion, t_start: float, t_end: float) -> None:
        """Append what was sampled, one segment for each span of one policy version."""
        self.messages.append(Message("assistant", completion.text))
        self.policy_wait_s += t_end - t_start
        self.versions.update(span.version for span in completion.versions)
        turn = self.turns
        self.turns += 1
        if completion.token_ids is None:
            return
        start = self._length
        self._append(completion.token_ids, completion.logprobs)
        self.tokens_sampled += len(completion.token_ids)
        for span in completion.versions:
            self._segments.append(_sampled(span, start, turn, completion, t_start, t_end))

    def add_observation(self, message: Message, ids: NDArray[np.int32] | None) -> None:
        """Append what came back; `ids`, with what the template writes around it, is None for text only."""
        self.messages.append(message)
        if ids is not None and len(ids):
            start = self._length
            self._append(ids, None)
            self._segments.append(
                Segment(start, self._length, turn=self.turns - 1, role=message.role, sampled=False)
            )

    def branches(self) -> tuple[Branch, ...]:
        """The training sequence: one, or none where no tokens are known."""
        if not self._ids:
            return ()
        logprobs = np.concatenate(self._logprobs)
        branch = Branch(
            token_ids=self.token_ids,
            prompt_len=self._prompt_len,
            loss_mask=(~np.isnan(logprobs)).astype(np.uint8),
            logprobs=logprobs,
            segments=tuple(self._segments),
        )
        return (branch,)

    def _append(self, ids: NDArray[np.int32], logprobs: NDArray[np.float32] | None) -> None:
        if logprobs is None:
            logprobs = np.full(len(ids), np.nan, np.float32)
        if len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} tokens with {len(logprobs)} log-probabilities")
        self._ids.append(ids.astype(np.int32, copy=False))
        self._logprobs.append(logprobs.astype(np.float32, copy=False))
        self._length += len(ids)


def _sampled(
    span: VersionSpan, offset: int, turn: int, completion: Completion, t_start: float, t_end: float
) -> Segment:
    return Segment(
        start=offset + span.start,
        end=offset + span.end,
        turn=turn,
        role="assistant",
        sampled=True,
        policy_version=span.version,
        request_id=completion.request_id,
        finish_reason=completion.finish_reason,
        t_start=t_start,
        t_end=t_end,
    )
