"""How much one episode may use, and what a bad call costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OnMalformedCall(StrEnum):
    """What a text that is no call leads to; it is counted in every case."""

    OBSERVE = "observe"
    END = "end"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Budget:
    """The bounds of an episode.

    `max_tokens` bounds what is sampled in the whole episode. `agent_timeout_s` bounds the time in which the
    agent's actions run, without waiting for the policy; None takes the task's own. `policy_deadline_s` bounds
    each request to the policy, retries included.
    """

    max_steps: int = 20
    max_tokens: int = 8192
    agent_timeout_s: float | None = None
    command_timeout_s: float = 60.0
    policy_deadline_s: float = 300.0
    output_limit_bytes: int = 8 * 1024
    state_limit_bytes: int = 64 << 20
    on_malformed_call: OnMalformedCall = OnMalformedCall.OBSERVE
