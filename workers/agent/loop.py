"""The one loop in which a policy plays: sample, act, observe, until a bound or the agent ends it.

A scaffold says how a task is put to the model and how its text becomes an action. A completion that a bound
cut short is still acted on: what it says in full is carried out, and the episode then ends with that bound's
reason, unless the action itself ended it. The policy is never asked when no token would fit.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.agent.context import Context
from workers.environment import Environment
from workers.policy.protocol import Completion, Policy, Sampling
from workers.task import PublicTask
from workers.trajectory import Message, StopReason


class Scaffold(Protocol):
    """How a task is put to a model, and how what it says becomes an action."""

    def opening(self, task: PublicTask) -> tuple[Message, ...]: ...

    def tools_json(self, task: PublicTask) -> str:
        """The schemas that the chat template is given; "[]" for none."""
        ...

    def action(self, text: str, task: PublicTask) -> str:
        """The text of the call that a completion stands for; where there is none, what to report."""
        ...

    def observation(self, text: str) -> Message: ...


@dataclass(frozen=True, slots=True)
class ModelAgent:
    """A policy in a scaffold."""

    policy: Policy
    scaffold: Scaffold
    sampling: Sampling = field(default_factory=Sampling)

    async def play(self, environment: Environment, context: Context, seed: int) -> StopReason:
        await self._open(environment, context)
        stop = self._exhausted(environment, context, 0)
        while stop is None:
            completion = await self._sample(environment, context, seed)
            action = self.scaffold.action(completion.text, environment.task)
            observation, *_ = await environment.astep(action)
            message = self.scaffold.observation(observation)
            ids: NDArray[np.int32] | None = None
            stop = environment.stop_reason
            if stop is None and self.policy.renderer is not None:
                ids = await self.policy.renderer.continuation(completion, message)
            stop = stop or self._exhausted(environment, context, 0 if ids is None else len(ids))
            # What no completion follows is kept as text: its tokens would only lengthen the branch.
            context.add_observation(message, ids if stop is None else None)
        return stop

    async def _open(self, environment: Environment, context: Context) -> None:
        messages = self.scaffold.opening(environment.task)
        context.tools = self.scaffold.tools_json(environment.task)
        context.sampling_params = json.dumps(_params(self.sampling))
        renderer = self.policy.renderer
        if renderer is None:
            context.open(messages, None)
            return
        context.logprobs_mode = self.policy.logprobs_mode
        context.tokenizer_sha256 = renderer.tokenizer_sha256
        context.open(messages, await renderer.opening(messages, context.tools))

    def _exhausted(self, environment: Environment, context: Context, more: int) -> StopReason | None:
        """Why nothing can be sampled once `more` tokens are appended, or None."""
        if context.tokens_sampled >= environment.budget.max_tokens:
            return StopReason.MAX_TOKENS
        if self._context_left(context) - more < 1:
            return StopReason.CONTEXT_FULL
        return None

    def _context_left(self, context: Context) -> int:
        if self.policy.renderer is None:
            return self.policy.context_tokens
        return self.policy.context_tokens - len(context.token_ids)

    async def _sample(self, environment: Environment, context: Context, seed: int) -> Completion:
        budget = environment.budget
        room = min(budget.max_tokens - context.tokens_sampled, self._context_left(context))
        turn_seed = int(np.random.SeedSequence([seed, context.turns]).generate_state(1)[0])
        sampling = replace(self.sampling, max_tokens=min(room, self.sampling.max_tokens), seed=turn_seed)
        session = f"{environment.task.task_id}-{seed}"
        started = time.time()
        if self.policy.renderer is None:
            completion = await self.policy.sample_text(
                tuple(context.messages), context.tools, sampling, session, budget.policy_deadline_s
            )
        else:
            completion = await self.policy.sample_tokens(
                context.token_ids, sampling, session, budget.policy_deadline_s
            )
        context.add_completion(completion, started, time.time())
        return completion


def _params(sampling: Sampling) -> dict[str, float | int | list[str]]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
    }
