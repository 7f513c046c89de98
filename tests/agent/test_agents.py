from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.agent.backends import WatchedBackend, files
from tests.agent.making import LetterRenderer, SayingPolicy, public_task, whole_task
from workers.agent.budget import Budget, OnMalformedCall
from workers.agent.call import call_json
from workers.agent.loop import ModelAgent
from workers.agent.plain import Plain
from workers.agent.react import React
from workers.agent.script import ScriptAgent
from workers.errors import Boundary, PolicyError, SandboxError, VerifierError
from workers.play import Rollout, play, rollout, running
from workers.policy.protocol import Sampling
from workers.task import PublicTask, Script, Task
from workers.trajectory import Branch, LogprobsMode, Protection, Status, StopReason, Verdict
from workers.verifier.protocol import Submission


@pytest.fixture
async def backend() -> AsyncIterator[WatchedBackend]:
    backend = WatchedBackend()
    yield backend
    assert backend.open_count == 0


def tagged(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{call_json(name, **arguments)}\n</tool_call>"


async def react(
    backend: WatchedBackend,
    texts: Sequence[str | Exception],
    budget: Budget | None = None,
    **policy: int,
) -> tuple[Rollout, SayingPolicy]:
    saying = SayingPolicy(texts, renderer=LetterRenderer(), **policy)
    agent = ModelAgent(saying, React(), Sampling(max_tokens=500))
    return await rollout(public_task(), agent, backend, budget, seed=5), saying


async def plain(backend: WatchedBackend, texts: list[str], task: PublicTask, max_steps: int = 20) -> Rollout:
    agent = ModelAgent(SayingPolicy(texts, renderer=LetterRenderer()), Plain(), Sampling(max_tokens=500))
    return await rollout(task, agent, backend, Budget(max_steps=max_steps))


def check(branch: Branch) -> None:
    """What every branch promises."""
    n = len(branch.token_ids)
    assert len(branch.loss_mask) == len(branch.logprobs) == n
    assert [branch.segments[0].start, branch.segments[-1].end] == [0, n]
    for one, two in zip(branch.segments, branch.segments[1:], strict=False):
        assert one.end == two.start
    for segment in branch.segments:
        assert set(branch.loss_mask[segment.start : segment.end]) == {int(segment.sampled)}
        assert (segment.policy_version is not None) == segment.sampled
    assert (np.isnan(branch.logprobs) == (branch.loss_mask == 0)).all()
    assert branch.token_ids.dtype == np.int32
    assert branch.loss_mask.dtype == np.uint8
    assert branch.logprobs.dtype == np.float32


async def test_each_prompt_begins_with_the_very_ids_of_the_turn_before(backend: WatchedBackend) -> None:
    turns = [tagged("run", command=f"echo 'ä 日本 {turn}  '") for turn in range(5)]
    played, policy = await react(backend, [*turns, tagged("submit")])
    trajectory = played.trajectory
    assert trajectory.stop_reason is StopReason.SUBMITTED
    assert (trajectory.num_turns, len(trajectory.tool_calls), len(policy.prompts)) == (6, 6, 6)
    (branch,) = trajectory.branches
    check(branch)
    for earlier, later in zip(policy.prompts, policy.prompts[1:], strict=False):
        assert (later[: len(earlier)] == earlier).all()
    assert (branch.token_ids[: len(policy.prompts[-1])] == policy.prompts[-1]).all()
    assert branch.prompt_len == len(policy.prompts[0])
    assert branch.loss_mask.sum() == trajectory.metrics["tokens_sampled"]
    assert (trajectory.policy_version_min, trajectory.policy_version_max) == (7, 7)
    assert [segment.role for segment in branch.segments][:3] == ["prompt", "assistant", "tool"]
    assert played.state is not None
    assert trajectory.state_digest == played.state.digest


async def test_a_weight_swap_inside_a_completion_splits_its_segment(backend: WatchedBackend) -> None:
    played, _ = await react(backend, [tagged("submit")], version_at=10)
    (branch,) = played.trajectory.branches
    check(branch)
    sampled = [segment for segment in branch.segments if segment.sampled]
    assert [(segment.policy_version, segment.turn) for segment in sampled] == [(7, 0), (8, 0)]
    assert (played.trajectory.policy_version_min, played.trajectory.policy_version_max) == (7, 8)


async def test_the_sampled_tokens_are_bounded(backend: WatchedBackend) -> None:
    played, _ = await react(backend, ["x" * 30, "y" * 30, "z" * 30], Budget(max_tokens=50))
    assert played.trajectory.stop_reason is StopReason.MAX_TOKENS
    assert played.trajectory.metrics["tokens_sampled"] == 50
    assert played.trajectory.num_turns == 2
    check(played.trajectory.branches[0])


async def test_a_cut_completion_is_acted_on_before_the_bound_ends_the_episode(
    backend: WatchedBackend,
) -> None:
    submit = tagged("submit") + " and so on" * 20
    played, _ = await react(backend, [submit], Budget(max_tokens=70))
    assert played.trajectory.stop_reason is StopReason.SUBMITTED
    write = tagged("write_file", path="answer.txt", content="42") + " and so on" * 20
    played, _ = await react(backend, [write], Budget(max_tokens=150))
    assert played.trajectory.stop_reason is StopReason.MAX_TOKENS
    assert [change.path for change in played.trajectory.changes] == ["answer.txt"]


async def test_a_context_that_would_overflow_ends_the_episode(backend: WatchedBackend) -> None:
    calls = [tagged("run", command="seq 1 100")] * 20
    played, policy = await react(backend, calls, context_tokens=1200)
    assert played.trajectory.stop_reason is StopReason.CONTEXT_FULL
    assert 1 <= len(policy.prompts) < 20
    (branch,) = played.trajectory.branches
    check(branch)
    assert len(branch.token_ids) <= 1200
    assert branch.segments[-1].sampled


async def test_a_prompt_that_does_not_fit_ends_the_episode_before_it_began(backend: WatchedBackend) -> None:
    played, policy = await react(backend, [], context_tokens=50)
    assert (played.trajectory.stop_reason, policy.prompts) == (StopReason.CONTEXT_FULL, [])
    assert played.trajectory.num_turns == 0


async def test_steps_time_and_malformed_calls_end_episodes_with_their_reason(backend: WatchedBackend) -> None:
    calls = [tagged("run", command="true")] * 5
    assert (await react(backend, calls, Budget(max_steps=3)))[
        0
    ].trajectory.stop_reason is StopReason.MAX_STEPS
    sleepy = [tagged("run", command="sleep 60")]
    played, _ = await react(backend, sleepy, Budget(agent_timeout_s=0.2))
    assert played.trajectory.stop_reason is StopReason.TIMEOUT
    played, _ = await react(backend, ["hm"], Budget(on_malformed_call=OnMalformedCall.END))
    assert played.trajectory.stop_reason is StopReason.MALFORMED_CALL
    assert played.trajectory.metrics["malformed_calls"] == 1


async def test_a_policy_that_fails_is_a_failure_that_keeps_what_happened(backend: WatchedBackend) -> None:
    played, _ = await react(backend, [tagged("run", command="true"), PolicyError("endpoint_timeout", "late")])
    trajectory = played.trajectory
    assert (trajectory.status, trajectory.stop_reason, played.state) == (Status.FAILED, None, None)
    assert trajectory.failure is not None
    assert (trajectory.failure.boundary, trajectory.failure.cause) == (Boundary.POLICY, "endpoint_timeout")
    assert trajectory.num_turns == 1
    check(trajectory.branches[0])


async def test_a_host_that_fails_is_a_failure(backend: WatchedBackend) -> None:
    backend.commands_fail_with = SandboxError("pool_lost", "gone")
    played, _ = await react(backend, [tagged("run", command="true")])
    assert played.trajectory.failure is not None
    assert str(played.trajectory.failure.boundary) == "sandbox"
    backend.fails_with = SandboxError("create_failed")
    played, _ = await react(backend, [])
    assert played.trajectory.failure is not None
    assert played.trajectory.failure.cause == "create_failed"


async def test_an_agent_that_is_cancelled_ends_with_that_reason(backend: WatchedBackend) -> None:
    cancelled = asyncio.Event()
    agent = ModelAgent(SayingPolicy([tagged("run", command="sleep 60")], renderer=LetterRenderer()), React())
    playing = asyncio.create_task(rollout(public_task(), agent, backend, cancelled=cancelled))
    await asyncio.sleep(0.3)
    cancelled.set()
    played = await asyncio.wait_for(playing, 5)
    assert (played.trajectory.stop_reason, played.state) == (StopReason.CANCELLED, None)


async def test_a_rollout_that_is_abandoned_leaves_nothing(backend: WatchedBackend) -> None:
    agent = ModelAgent(SayingPolicy([tagged("run", command="sleep 60")], renderer=LetterRenderer()), React())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rollout(public_task(), agent, backend), 0.3)


async def test_text_mode_keeps_the_conversation_and_no_tokens(backend: WatchedBackend) -> None:
    policy = SayingPolicy([tagged("run", command="echo hi"), tagged("submit")])
    played = await rollout(public_task(), ModelAgent(policy, React()), backend)
    trajectory = played.trajectory
    assert (trajectory.branches, trajectory.logprobs_mode) == ((), LogprobsMode.NONE)
    assert [message.role for message in policy.conversations[1]] == ["system", "user", "assistant", "tool"]
    assert policy.conversations[1][-1].content == "hi\n[exit code 0]"
    assert trajectory.policy_version_max == 7


async def test_a_plain_completion_becomes_the_answer_file(backend: WatchedBackend) -> None:
    task = public_task(answer_file="solution.py", workspace=files())
    text = "Sure!\n```python\ndef f():\n    return 1\n```\nThat is it."
    played = await plain(backend, [text], task, max_steps=1)
    assert played.trajectory.stop_reason is StopReason.MAX_STEPS
    assert [change.path for change in played.trajectory.changes] == ["solution.py"]
    assert played.trajectory.tool_calls[0].name == "write_file"
    assert '"content": "def f():\\n    return 1\\n"' in played.trajectory.tool_calls[0].arguments


async def test_a_plain_completion_becomes_a_command_and_submit_submits(backend: WatchedBackend) -> None:
    played = await plain(backend, ["```bash\ncat note\n```", "Submit \nthanks"], public_task())
    assert played.trajectory.stop_reason is StopReason.SUBMITTED
    assert played.trajectory.tool_calls[0].output == "hello\n[exit code 0]"
    assert public_task().instruction in [message.content for message in played.trajectory.messages]


async def test_an_empty_plain_completion_is_malformed(backend: WatchedBackend) -> None:
    played = await plain(backend, [" \n"], public_task(), max_steps=1)
    assert played.trajectory.metrics["malformed_calls"] == 1


class FixedScorer:
    def __init__(self, verdict: Verdict | VerifierError) -> None:
        self.verdict = verdict
        self.submissions: list[Submission] = []

    async def score(self, task: Task, submission: Submission) -> Verdict:
        self.submissions.append(submission)
        if isinstance(self.verdict, VerifierError):
            raise self.verdict
        return self.verdict


async def test_one_episode_is_played_and_judged(backend: WatchedBackend) -> None:
    verdict = Verdict(1.0, 1.0, passed=True, protection=Protection.VALUES)
    scorer = FixedScorer(verdict)
    async with running(backend):
        agent = ScriptAgent(Script("gold", "echo 42 > answer.txt"))
        played = await play(whole_task(), agent, backend, scorer)
    assert played.verdict == verdict
    assert played.trajectory.stop_reason is StopReason.SUBMITTED
    assert scorer.submissions[0].state is not None
    assert [message.role for message in scorer.submissions[0].messages] == ["user", "assistant", "tool"]


async def test_no_verdict_is_a_failure_of_the_verifier(backend: WatchedBackend) -> None:
    scorer = FixedScorer(VerifierError("judge_crashed"))
    played = await play(whole_task(), ScriptAgent(Script("no-op", "")), backend, scorer)
    assert played.verdict is None
    assert played.trajectory.failure is not None
    assert (played.trajectory.failure.boundary, played.trajectory.stop_reason) == (Boundary.VERIFIER, None)


async def test_a_script_that_runs_too_long_ends_with_timeout(backend: WatchedBackend) -> None:
    task = replace(public_task(), agent_timeout_s=0.3)
    played = await rollout(task, ScriptAgent(Script("slow", "sleep 60")), backend)
    assert played.trajectory.stop_reason is StopReason.TIMEOUT
    assert played.state is not None
