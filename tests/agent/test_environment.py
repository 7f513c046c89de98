from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator

import pytest
from gymnasium.utils.env_checker import check_env

from tests.agent.backends import WatchedBackend, files
from tests.agent.making import public_task, whole_task
from workers.agent.budget import Budget, OnMalformedCall
from workers.agent.call import TOOLS, call_json
from workers.environment import Environment
from workers.errors import ConfigError, SandboxError
from workers.task import Script, Task
from workers.trajectory import Protection, Verdict
from workers.verifier.protocol import Submission


class CountingScorer:
    """Rewards 1 where the state holds a file, and keeps what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Submission] = []

    async def score(self, task: Task, submission: Submission) -> Verdict:
        self.seen.append(submission)
        return Verdict(1.0, 1.0, passed=True, protection=Protection.VALUES)


@pytest.fixture
async def backend() -> AsyncIterator[WatchedBackend]:
    backend = WatchedBackend()
    yield backend
    await backend.close()
    assert backend.open_count == 0


async def start(backend: WatchedBackend, budget: Budget | None = None, **task: object) -> Environment:
    environment = Environment(public_task(**task), backend, budget)  # type: ignore[arg-type]
    await environment.areset(seed=1)
    return environment


def run(command: str) -> str:
    return call_json("run", command=command)


def test_gymnasiums_checker_finds_nothing_to_say() -> None:
    environment = Environment(public_task(), WatchedBackend())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment, skip_render_check=True)
    environment.close()
    environment.close()


async def test_the_synchronous_face_works_inside_a_running_loop() -> None:
    backend = WatchedBackend()
    environment = Environment(public_task(), backend)
    observation, info = environment.reset(seed=3)
    assert observation == "Write 42 into answer.txt."
    assert len(json.loads(str(info["tools"]))) == len(TOOLS)
    observation, reward, terminated, truncated, info = environment.step(run("cat note; exit 3"))
    assert (observation, reward, terminated, truncated) == ("hello\n[exit code 3]", 0.0, False, False)
    assert info["exit_code"] == 3
    environment.close()
    assert backend.open_count == 0


async def test_an_episode_ends_with_submit_and_the_reward_is_the_verdicts(backend: WatchedBackend) -> None:
    scorer = CountingScorer()
    environment = Environment(whole_task(), backend, scorer=scorer)
    await environment.areset()
    _, reward, *_ = await environment.astep(call_json("write_file", path="answer.txt", content="42"))
    assert reward == 0.0
    _, reward, terminated, truncated, info = await environment.astep(call_json("submit"))
    assert (reward, terminated, truncated, info["stop_reason"]) == (1.0, True, False, "submitted")
    assert scorer.seen[0].state is not None
    with pytest.raises(RuntimeError, match="has ended"):
        await environment.astep(run("true"))


def test_a_scorer_needs_the_whole_task() -> None:
    with pytest.raises(ConfigError):
        Environment(public_task(), WatchedBackend(), scorer=CountingScorer())


async def test_a_fresh_reset_throws_the_episode_before_away(backend: WatchedBackend) -> None:
    environment = await start(backend)
    await environment.astep(run("touch left-over"))
    await environment.areset()
    observation, *_ = await environment.astep(run("ls"))
    assert observation == "note\n[exit code 0]"
    assert backend.open_count == 1
    await environment.aclose()
    await environment.aclose()


async def test_files_are_read_written_and_edited(backend: WatchedBackend) -> None:
    environment = await start(backend)

    async def see(name: str, **arguments: str | int) -> str:
        return (await environment.astep(json.dumps({"name": name, "arguments": arguments})))[0]

    assert (
        await see("write_file", path="a/b.txt", content="one\ntwo\nthree\n") == "Wrote 14 bytes to a/b.txt."
    )
    assert await see("read_file", path="a/b.txt", first_line=2, line_count=1) == "two\n"
    assert await see("read_file", path="/workspace/a/b.txt") == "one\ntwo\nthree\n"
    assert (
        await see("edit_file", path="a/b.txt", old="two", new="2  \n\n") == "Replaced one passage of a/b.txt."
    )
    assert await see("read_file", path="a/b.txt") == "one\n2  \n\n\nthree\n"
    assert "does not occur" in await see("edit_file", path="a/b.txt", old="four", new="4")
    await see("write_file", path="c", content="aaa")
    assert "occurs 2 times" in await see("edit_file", path="c", old="aa", new="b")
    assert await see("read_file", path="nowhere") == "No such file: nowhere"
    assert "folder" in await see("read_file", path="a")
    assert [call.error for call in environment.tool_calls][-2:] == ["not_found", "is_a_folder"]


async def test_a_tool_that_the_task_does_not_give_is_refused_and_counted(backend: WatchedBackend) -> None:
    environment = await start(backend, tools=("run", "submit"))
    observation, *_ = await environment.astep(call_json("write_file", path="x", content=""))
    assert "not available" in observation
    assert (environment.refused_calls, environment.malformed_calls) == (1, 0)
    assert environment.stop_reason is None
    assert [schema["function"]["name"] for schema in json.loads(environment.tools_json)] == ["run", "submit"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "broken_json"),
        ("ls -la", "broken_json"),
        ("[" * 100_000, "broken_json"),
        ("1" * 10_000, "broken_json"),
        ("[]", "several_calls"),
        ("{}", "not_a_call"),
        ('{"name": 1, "arguments": {}}', "not_a_call"),
        ('{"name": "fly", "arguments": {}}', "unknown_tool"),
        ('{"name": "run", "arguments": {}}', "bad_arguments"),
        ('{"name": "run", "arguments": {"command": 3}}', "bad_arguments"),
        ('{"name": "run", "arguments": {"command": "ls", "cwd": "/"}}', "bad_arguments"),
        ('{"name": "run", "arguments": {"command": "a\\u0000b"}}', "bad_arguments"),
        ('{"name": "run", "arguments": "{\\"command\\"}"}', "broken_json"),
        ('{"name": "run", "parameters": {"command": "ls"}}', "bad_arguments"),
    ],
)
async def test_a_malformed_call_is_observed_and_counted(
    backend: WatchedBackend, text: str, cause: str
) -> None:
    environment = await start(backend)
    observation, reward, terminated, truncated, info = await environment.astep(text)
    assert observation
    assert (reward, terminated, truncated, info["error"]) == (0.0, False, False, cause)
    assert environment.malformed_calls == 1


async def test_a_malformed_call_can_end_the_episode_or_be_ignored(backend: WatchedBackend) -> None:
    environment = await start(backend, Budget(on_malformed_call=OnMalformedCall.END))
    _, _, terminated, _, info = await environment.astep("what?")
    assert (terminated, info["stop_reason"]) == (True, "malformed_call")
    environment = await start(backend, Budget(on_malformed_call=OnMalformedCall.IGNORE))
    observation, *_ = await environment.astep("what?")
    assert (observation, environment.stop_reason, environment.malformed_calls) == ("", None, 1)


async def test_arguments_given_as_json_text_are_taken(backend: WatchedBackend) -> None:
    environment = await start(backend)
    observation, *_ = await environment.astep('{"name": "run", "arguments": "{\\"command\\": \\"echo ä\\"}"}')
    assert observation == "ä\n[exit code 0]"


async def test_lone_surrogates_in_a_call_are_replaced(backend: WatchedBackend) -> None:
    environment = await start(backend)
    observation, *_ = await environment.astep('{"name": "run", "arguments": {"command": "echo \\ud800"}}')
    assert observation == "\N{REPLACEMENT CHARACTER}\n[exit code 0]"


async def test_the_steps_are_bounded(backend: WatchedBackend) -> None:
    environment = await start(backend, Budget(max_steps=2))
    await environment.astep("no call")
    observation, _, terminated, truncated, info = await environment.astep(run("echo last"))
    assert observation == "last\n[exit code 0]"
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "max_steps")


async def test_the_agents_time_is_bounded_over_all_its_steps(backend: WatchedBackend) -> None:
    environment = await start(backend, Budget(agent_timeout_s=0.6))
    await environment.astep(run("sleep 0.2"))
    await asyncio.sleep(0.5)  # waiting for a policy is not the agent's time
    assert environment.stop_reason is None
    observation, _, terminated, truncated, info = await environment.astep(run("sleep 60"))
    assert "ran longer" in observation
    assert (info["stop_reason"], terminated, truncated) == ("timeout", False, True)


async def test_a_commands_own_limit_is_an_observation(backend: WatchedBackend) -> None:
    environment = await start(backend, Budget(command_timeout_s=0.2))
    observation, *_ = await environment.astep(run("echo before; sleep 60"))
    assert observation.startswith("before\n")
    assert environment.stop_reason is None


async def test_output_is_cut_with_the_dropped_bytes_named(backend: WatchedBackend) -> None:
    environment = await start(backend, Budget(output_limit_bytes=1000))
    observation, *_ = await environment.astep(run("seq 1 100000"))
    assert "[587895 bytes dropped from the middle of the output]" in observation
    assert observation.startswith("1\n2\n")
    assert "100000\n" in observation
    assert environment.tool_calls[0].output_bytes == 588895


async def test_what_the_host_fails_to_give_is_raised(backend: WatchedBackend) -> None:
    backend.commands_fail_with = SandboxError("pool_lost")
    environment = await start(backend)
    with pytest.raises(SandboxError):
        await environment.astep(run("true"))


async def test_a_script_is_played_unquoted_in_the_workspace_and_leaves_no_file(
    backend: WatchedBackend,
) -> None:
    body = (
        'echo "it\'s $(basename "$PWD")" \'$x\' `echo \\\\`\nls ../tmp -A; printf 42 > answer.txt\nexit 5\n'
    )
    environment = await start(backend, workspace=files())
    observation, _, terminated, _, info = await environment.arun_script(Script("gold", body))
    assert observation == "it's workspace $x \\\n.script-0.sh\n[exit code 5]"
    assert (terminated, info["stop_reason"]) == (True, "submitted")
    with pytest.raises(FileNotFoundError):
        await backend.made[0].read_file("/tmp/.script-0.sh")
    state = await environment.afreeze()
    assert [change.path for change in state.changes] == ["answer.txt"]
