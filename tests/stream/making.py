"""Makes the episodes and groups that the stream's tests are about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrator.groups import Decision, Group, decide
from orchestrator.rows import TaskFacts, scored
from orchestrator.types import Lease, Purpose, Scored
from workers.errors import Boundary
from workers.trajectory import (
    Branch,
    Change,
    ChangeKind,
    Failure,
    LogprobsMode,
    Message,
    Protection,
    RewardPart,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Verdict,
)

FACTS = TaskFacts(
    task_set="chores",
    split="train",
    task_digest="t" * 64,
    verifier_digest="v" * 64,
    image_digest="i" * 64,
    harness_version="0.1.0",
)
MADE_AT_S = 1_800_000_000.0


def lease(
    group: str = "g0", sample: int = 0, size: int = 4, attempt: int = 0, purpose: Purpose = Purpose.TRAIN
) -> Lease:
    return Lease(
        run_id="run",
        group_id=group,
        task_id=f"task-of-{group}",
        purpose=purpose,
        sample_index=sample,
        group_size=size,
        attempt=attempt,
        dispatch_version=3,
        seed=1000 + sample,
        deadline_s=MADE_AT_S + 60,
        nonce=f"{group}.{sample}.{attempt}",
    )


def branch(turns: Sequence[tuple[int, int]] = ((5, 3), (4, 2)), first_id: int = 100) -> Branch:
    """A branch of turns (length of the prompt or observation, length of the completion)."""
    segments: list[Segment] = []
    at = 0
    for turn, (seen, said) in enumerate(turns):
        for length, role in ((seen, "user"), (said, "assistant")):
            is_said = role == "assistant"
            segments.append(
                Segment(
                    start=at,
                    end=at + length,
                    turn=turn,
                    role=role,
                    sampled=is_said,
                    policy_version=3 if is_said else None,
                    request_id=f"r{turn}" if is_said else None,
                    finish_reason="stop" if is_said else None,
                )
            )
            at += length
    mask = np.concatenate([np.full(s.end - s.start, s.sampled, np.uint8) for s in segments])
    logprobs = np.where(mask == 1, np.linspace(-2, -0.1, at), np.nan).astype(np.float32)
    ids = np.arange(first_id, first_id + at, dtype=np.int32)
    return Branch(ids, turns[0][0], mask, logprobs, tuple(segments))


def trajectory(
    branches: Sequence[Branch] | None = None, stop: StopReason = StopReason.SUBMITTED
) -> Trajectory:
    return Trajectory(
        messages=(Message("user", "Do it."), Message("assistant", "Done.")),
        branches=tuple(branches) if branches is not None else (branch(),),
        tool_calls=(
            ToolCall(turn=0, name="run", arguments='{"command": "ls"}', ok=True, exit_code=0, output="a\n"),
        ),
        changes=(Change("tests/conftest.py", ChangeKind.ADDED, 12, 0o644, "+import os\n"),),
        stop_reason=stop,
        logprobs_mode=LogprobsMode.PROCESSED,
        tokenizer_sha256="k" * 64,
        num_turns=2,
        policy_version_min=3,
        policy_version_max=3,
        reset_digest="r" * 64,
        state_digest="s" * 64,
        metrics={"reset_s": 0.25, "forks": 0.0},
    )


def verdict(reward: float) -> Verdict:
    return Verdict(
        reward=reward,
        score=reward,
        passed=reward >= 1,
        protection=Protection.VALUES,
        parts=(RewardPart("calls", reward, 1.0, "3 of 3"),),
    )


def failed(cause: str = "pool_lost") -> Trajectory:
    return Trajectory(failure=Failure(Boundary.INFRASTRUCTURE, cause, "the node went away"))


def member(
    reward: float | None, group: str = "g0", sample: int = 0, size: int = 4, attempt: int = 0, tokens: int = 2
) -> Scored:
    """An episode with this reward, failed where there is none."""
    played = lease(group, sample, size, attempt)
    if reward is None:
        return scored(played, FACTS, failed(), None, MADE_AT_S)
    told = trajectory([branch(((5, 3), (4, tokens)))])
    return scored(played, FACTS, told, verdict(reward), MADE_AT_S)


def group(name: str, rewards: Sequence[float | None], tokens: int = 2) -> tuple[Group, Decision]:
    """A complete group with these rewards, and what is decided about it."""
    members = tuple(
        member(reward, name, sample, len(rewards), tokens=tokens) for sample, reward in enumerate(rewards)
    )
    made = Group(name, f"task-of-{name}", Purpose.TRAIN, len(rewards), members)
    return made, decide(made)
