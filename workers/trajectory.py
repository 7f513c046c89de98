"""What an episode is: the record of one rollout, before and after it is scored.

Invariants of a branch: the segments tile [0, n) in order; `loss_mask` and `logprobs` have n entries;
`loss_mask` is 1 exactly where a segment is `sampled`; `logprobs` is NaN exactly where it is not.
Token arrays are int32, masks uint8, log-probabilities float32 (natural logarithm).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from workers.errors import Boundary


class Status(StrEnum):
    OK = "ok"
    FAILED = "failed"


class StopReason(StrEnum):
    SUBMITTED = "submitted"
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    TIMEOUT = "timeout"
    CONTEXT_FULL = "context_full"
    MALFORMED_CALL = "malformed_call"
    FORBIDDEN_ACTION = "forbidden_action"
    CANCELLED = "cancelled"

    @property
    def is_terminated(self) -> bool:
        """Whether the agent ended the episode itself; otherwise it was truncated."""
        return self in (StopReason.SUBMITTED, StopReason.MALFORMED_CALL, StopReason.FORBIDDEN_ACTION)


class LogprobsMode(StrEnum):
    """`raw`: of the model's own distribution; `processed`: of the distribution sampled from; `none`: no tokens."""

    RAW = "raw"
    PROCESSED = "processed"
    NONE = "none"


class Protection(StrEnum):
    """How strong the wall between the solution and its verdict was; weakest last."""

    VALUES = "values"
    SPLIT = "split"
    DELEGATED = "delegated"
    SHARED = "shared"
    JUDGED = "judged"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode has no verdict, from evidence outside the sandbox."""

    boundary: Boundary
    cause: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation, as text. `role` is system, user, assistant or tool."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the agent made. `arguments` is JSON text; `exit_code` only for commands."""

    turn: int
    name: str
    arguments: str
    ok: bool
    error: str | None = None
    exit_code: int | None = None
    latency_s: float = 0.0
    output_bytes: int = 0
    output: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A span [start, end) of a branch's tokens. Times are seconds since the epoch."""

    start: int
    end: int
    turn: int
    role: str
    sampled: bool
    policy_version: int | None = None
    request_id: str | None = None
    finish_reason: str | None = None
    reward: float | None = None
    t_start: float | None = None
    t_end: float | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """One training sequence. An episode has one, and one more for each fork of its context."""

    token_ids: NDArray[np.int32]
    prompt_len: int
    loss_mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    segments: tuple[Segment, ...]


class ChangeKind(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    DELETED = "deleted"
    MODE = "mode"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the start and the final state. `text` is a unified diff, or empty when too big."""

    path: str
    kind: ChangeKind
    size_bytes: int = 0
    mode: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What happened in one rollout, in order, and where it came to rest.

    `tokenizer_sha256` is empty where no tokens are known. `metrics` holds plain numbers by name
    (`reset_s`, `policy_wait_s`, `sandbox_s`, `tokens_sampled`, `forks`, `malformed_calls`, …).
    """

    messages: tuple[Message, ...] = ()
    branches: tuple[Branch, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    changes: tuple[Change, ...] = ()
    stop_reason: StopReason | None = None
    failure: Failure | None = None
    logprobs_mode: LogprobsMode = LogprobsMode.NONE
    tokenizer_sha256: str = ""
    sampling_params: str = "{}"
    tools: str = "[]"
    num_turns: int = 0
    policy_version_min: int = 0
    policy_version_max: int = 0
    reset_digest: str = ""
    state_digest: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return Status.FAILED if self.failure else Status.OK


@dataclass(frozen=True, slots=True)
class RewardPart:
    """A named, weighted part of a reward. `detail` is JSON text or plain text for people."""

    name: str
    value: float
    weight: float = 1.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's answer. `score` is before costs and shaping; `reward` after; `passed` is score ≥ pass_threshold."""

    reward: float
    score: float
    passed: bool
    protection: Protection
    parts: tuple[RewardPart, ...] = ()
