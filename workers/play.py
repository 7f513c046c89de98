"""Plays one episode, with or without a scorer; needs no Ray.

`rollout` is what a sandbox pool does: it plays the public half of a task and never raises for what fails at a
boundary; that becomes the trajectory's failure, beside all that happened until then. `play` adds the verdict.
Whatever happens, the sandbox is gone when they return.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Protocol

from workers.agent.budget import Budget
from workers.agent.context import Context
from workers.agent.protocol import Agent
from workers.archive import Archive
from workers.environment import Environment, Scores
from workers.errors import BoundaryError
from workers.sandbox.protocol import FinalState, SandboxBackend
from workers.task import PublicTask, Task
from workers.trajectory import Failure, StopReason, Trajectory, Verdict
from workers.verifier.protocol import Submission

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A played episode before it is judged. `state` is None where there is none to grade."""

    trajectory: Trajectory
    state: Archive | None = None
    state_too_large: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """A played and judged episode. `verdict` is None exactly where the trajectory has a failure."""

    trajectory: Trajectory
    verdict: Verdict | None


class Runs(Protocol):
    """Something with a beginning and an end: a policy, a sandbox backend."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


@contextlib.asynccontextmanager
async def running(*parts: Runs) -> AsyncIterator[None]:
    """Start the parts in order and close them in reverse, also where a later one does not start."""
    async with contextlib.AsyncExitStack() as stack:
        for part in parts:
            stack.push_async_callback(part.close)
            await part.start()
        yield


async def rollout(
    task: PublicTask,
    agent: Agent,
    sandboxes: SandboxBackend,
    budget: Budget | None = None,
    seed: int = 0,
    cancelled: asyncio.Event | None = None,
) -> Rollout:
    """Play a task once. When `cancelled` is set meanwhile, it ends so, without a state."""
    environment = Environment(task, sandboxes, budget)
    context = Context()
    stop: StopReason | None = None
    final: FinalState | None = None
    failure: Failure | None = None
    try:
        await environment.areset(seed)
        stop = await _until_cancelled(agent, environment, context, seed, cancelled)
        if stop is not StopReason.CANCELLED:
            final = await environment.afreeze()
    except BoundaryError as error:
        logger.warning("task %s seed %d: %s", task.task_id, seed, error)
        failure = Failure(error.boundary, error.cause, error.detail)
    finally:
        failure = await _closed(environment) or failure
    return _rollout(environment, context, stop, final, failure)


async def play(
    task: Task,
    agent: Agent,
    sandboxes: SandboxBackend,
    scorer: Scores,
    budget: Budget | None = None,
    seed: int = 0,
) -> Played:
    """Play a task once and judge its final state."""
    played = await rollout(task.public, agent, sandboxes, budget, seed)
    trajectory = played.trajectory
    if trajectory.failure is not None:
        return Played(trajectory, None)
    submission = Submission(played.state, trajectory.messages, trajectory.tool_calls)
    try:
        return Played(trajectory, await scorer.score(task, submission))
    except BoundaryError as error:
        failure = Failure(error.boundary, error.cause, error.detail)
        return Played(replace(trajectory, failure=failure, stop_reason=None), None)


async def _until_cancelled(
    agent: Agent, environment: Environment, context: Context, seed: int, cancelled: asyncio.Event | None
) -> StopReason:
    if cancelled is None:
        return await agent.play(environment, context, seed)
    playing = asyncio.create_task(agent.play(environment, context, seed))
    waiting = asyncio.create_task(cancelled.wait())
    try:
        await asyncio.wait((playing, waiting), return_when=asyncio.FIRST_COMPLETED)
        return playing.result() if playing.done() else StopReason.CANCELLED
    finally:
        for running_task in (playing, waiting):
            running_task.cancel()
        await asyncio.gather(playing, waiting, return_exceptions=True)


async def _closed(environment: Environment) -> Failure | None:
    try:
        await environment.aclose()
    except BoundaryError as error:
        return Failure(error.boundary, error.cause, error.detail)
    return None


def _rollout(
    environment: Environment,
    context: Context,
    stop: StopReason | None,
    final: FinalState | None,
    failure: Failure | None,
) -> Rollout:
    state = final.archive if final else None
    trajectory = Trajectory(
        messages=tuple(context.messages),
        branches=context.branches(),
        tool_calls=tuple(environment.tool_calls),
        changes=final.changes if final else (),
        stop_reason=None if failure else stop,
        failure=failure,
        logprobs_mode=context.logprobs_mode,
        tokenizer_sha256=context.tokenizer_sha256,
        sampling_params=context.sampling_params,
        tools=context.tools,
        num_turns=context.turns,
        policy_version_min=min(context.versions, default=0),
        policy_version_max=max(context.versions, default=0),
        reset_digest=environment.reset_digest,
        state_digest=state.digest if state else "",
        metrics={
            "reset_s": environment.reset_s,
            "sandbox_s": environment.sandbox_s,
            "policy_wait_s": context.policy_wait_s,
            "tokens_sampled": float(context.tokens_sampled),
            "steps": float(environment.steps),
            "malformed_calls": float(environment.malformed_calls),
            "refused_calls": float(environment.refused_calls),
        },
    )
    return Rollout(trajectory, state, final.too_large if final else "")
