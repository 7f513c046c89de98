"""One task played step by step: a Gymnasium environment whose observations and actions are texts.

An action is the JSON text of one tool call, `{"name": "run", "arguments": {"command": "ls"}}`. One episode
lives at a time; `reset` throws the one before away with its sandbox. Every action counts as a step, also one
that is no call. An episode ends exactly once, with a stop reason. Nothing that the agent does raises; what
the host fails to give raises `SandboxError`.

The asynchronous face (`areset`, `astep`, `afreeze`, `aclose`) is what agents await; it uses sandboxes that
its owner started. The synchronous face (`reset`, `step`, `close`) is Gymnasium's: it starts and closes the
backend itself, on an event loop in a thread of its own, so that it works inside a running loop too. Use one
of the two on an environment, not both.
"""

from __future__ import annotations

import json
import posixpath
import time
from typing import ClassVar, Protocol

import gymnasium

from workers.agent.budget import Budget, OnMalformedCall
from workers.agent.call import Call, MalformedCall, read_call, schemas_json
from workers.agent.output import whole_unicode
from workers.agent.space import UnicodeText
from workers.agent.toolbox import Outcome, Toolbox, outcome_of
from workers.background import BackgroundLoop
from workers.errors import ConfigError, SandboxError
from workers.sandbox.protocol import Command, FinalState, Sandbox, SandboxBackend, SandboxSpec
from workers.task import PublicTask, Script, Task
from workers.trajectory import Message, StopReason, ToolCall, Verdict
from workers.verifier.protocol import Submission

Info = dict[str, object]
StepResult = tuple[str, float, bool, bool, Info]


class Scores(Protocol):
    """What the environment needs of a scorer."""

    async def score(self, task: Task, submission: Submission) -> Verdict: ...


class Environment(gymnasium.Env[str, str]):
    """A task in a sandbox.

    With a scorer, which needs the whole task, the last step's reward is the verdict's; without one it is 0.0.
    """

    metadata: ClassVar[dict[str, object]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(
        self,
        task: Task | PublicTask,
        sandboxes: SandboxBackend,
        budget: Budget | None = None,
        scorer: Scores | None = None,
    ) -> None:
        if scorer is not None and not isinstance(task, Task):
            raise ConfigError("a scorer was given with the public half of a task", "give the whole Task")
        self.action_space = UnicodeText()
        self.observation_space = UnicodeText()
        self.task = task.public if isinstance(task, Task) else task
        self.budget = budget or Budget()
        self._whole_task = task if isinstance(task, Task) else None
        self._sandboxes = sandboxes
        self._scorer = scorer
        self._background: BackgroundLoop | None = None
        self._sandbox: Sandbox | None = None
        self._start_episode()

    def _start_episode(self) -> None:
        self.messages: list[Message] = []
        self.tool_calls: list[ToolCall] = []
        self.steps = 0
        self.malformed_calls = 0
        self.refused_calls = 0
        self.reset_digest = ""
        self.reset_s = 0.0
        self.sandbox_s = 0.0
        self.stop_reason: StopReason | None = None
        self.final_state: FinalState | None = None
        self.verdict: Verdict | None = None

    # What is known of the episode -------------------------------------------------------------------------

    @property
    def tools_json(self) -> str:
        """The schemas of the task's tools."""
        return schemas_json(self.task.tools)

    @property
    def agent_time_left_s(self) -> float:
        limit_s = self.task.agent_timeout_s
        if self.budget.agent_timeout_s is not None:
            limit_s = min(limit_s, self.budget.agent_timeout_s)
        return limit_s - self.sandbox_s

    # The asynchronous face --------------------------------------------------------------------------------

    async def areset(self, seed: int | None = None) -> tuple[str, Info]:
        """Begin an episode in a fresh sandbox. Raises SandboxError."""
        super().reset(seed=seed)
        await self.aclose()
        self._start_episode()
        started = time.monotonic()
        self._sandbox = await self._sandboxes.create(
            SandboxSpec(
                image=self.task.image,
                workspace_path=self.task.workspace_path,
                layers=(self.task.workspace,),
                limits=self.task.limits,
            )
        )
        self.reset_s = time.monotonic() - started
        self.reset_digest = self._sandbox.reset_digest
        self.messages.append(Message("user", self.task.instruction))
        return whole_unicode(self.task.instruction), {
            "task_id": self.task.task_id,
            "reset_digest": self.reset_digest,
            "tools": self.tools_json,
        }

    async def astep(self, action: str) -> StepResult:
        """Carry out one action. Raises SandboxError, and VerifierError where there is a scorer."""
        sandbox = self._playing_sandbox()
        self.messages.append(Message("assistant", whole_unicode(action)))
        started = time.monotonic()
        name, arguments, outcome = await self._act(sandbox, action)
        return await self._result(name, arguments, outcome, time.monotonic() - started)

    async def arun_script(self, script: Script) -> StepResult:
        """Play a shell script as the agent, with the workspace as working directory, then submit.

        The script is laid in a file of its own, so that nothing of it is quoted or parsed on the way.
        """
        sandbox = self._playing_sandbox()
        path = f"/tmp/.script-{self.steps}.sh"
        from_workspace = posixpath.relpath(path, self.task.workspace_path)
        timeout_s, limit_bytes = self.agent_time_left_s, self.budget.output_limit_bytes
        started = time.monotonic()
        try:
            await sandbox.write_file(path, script.body.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise SandboxError("script_not_laid", f"{script.name}: {error}") from error
        command = Command(argv=("bash", from_workspace), timeout_s=timeout_s, output_limit_bytes=limit_bytes)
        result = await sandbox.exec(command)
        await sandbox.exec(Command(argv=("rm", "-f", from_workspace), timeout_s=10.0))
        self.stop_reason = StopReason.TIMEOUT if result.timed_out else StopReason.SUBMITTED
        outcome = outcome_of(result, timeout_s, limit_bytes)
        arguments = json.dumps({"script": script.name})
        return await self._result("run", arguments, outcome, time.monotonic() - started)

    async def afreeze(self) -> FinalState:
        """End the sandbox's use and read the final state. Raises SandboxError."""
        if self._sandbox is None:
            raise RuntimeError("no episode: reset first")
        if self.final_state is None:
            self.final_state = await self._sandbox.freeze(self.budget.state_limit_bytes)
        return self.final_state

    async def aclose(self) -> None:
        """Destroy the sandbox. Safe twice."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    # Gymnasium's face -------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        """Begin an episode. `options` is taken for Gymnasium's sake; there are none."""
        if self._background is None:
            background = BackgroundLoop()
            try:
                background.run(self._sandboxes.start())
            except BaseException:
                background.close()
                raise
            self._background = background
        return self._background.run(self.areset(seed))

    def step(self, action: str) -> StepResult:
        if self._background is None:
            raise RuntimeError("no episode: reset first")
        return self._background.run(self.astep(action))

    def close(self) -> None:
        """Destroy the sandbox and the backend. Safe twice; `reset` starts afresh."""
        background, self._background = self._background, None
        if background is None:
            return
        try:
            background.run(self.aclose())
            background.run(self._sandboxes.close())
        finally:
            background.close()

    # Within -----------------------------------------------------------------------------------------------

    def _playing_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("no episode: reset first")
        if self.stop_reason is not None:
            raise RuntimeError(f"the episode has ended ({self.stop_reason}): reset first")
        return self._sandbox

    async def _act(self, sandbox: Sandbox, action: str) -> tuple[str, str, Outcome]:
        """The tool's name, its arguments as JSON, and what came of it."""
        try:
            call = read_call(action)
        except MalformedCall as malformed:
            return "malformed", "{}", self._malformed(malformed)
        if call.name not in self.task.tools:
            self.refused_calls += 1
            outcome = Outcome(f"The tool {call.name!r} is not available in this task.", error="refused_tool")
        elif call.name == "submit":
            self.stop_reason = StopReason.SUBMITTED
            outcome = Outcome("Submitted.")
        else:
            outcome = await self._use(sandbox, call)
        return call.name, call.arguments_json, outcome

    async def _use(self, sandbox: Sandbox, call: Call) -> Outcome:
        toolbox = Toolbox(sandbox, self.task.workspace_path, self.budget.output_limit_bytes)
        timeout_s = min(self.budget.command_timeout_s, max(self.agent_time_left_s, 0.001))
        started = time.monotonic()
        outcome = await toolbox.use(call, timeout_s)
        if time.monotonic() - started >= self.agent_time_left_s:
            self.stop_reason = StopReason.TIMEOUT
        return outcome

    def _malformed(self, malformed: MalformedCall) -> Outcome:
        self.malformed_calls += 1
        match self.budget.on_malformed_call:
            case OnMalformedCall.OBSERVE:
                return Outcome(malformed.message, error=malformed.cause)
            case OnMalformedCall.END:
                self.stop_reason = StopReason.MALFORMED_CALL
                return Outcome(malformed.message, error=malformed.cause)
            case OnMalformedCall.IGNORE:
                return Outcome("", error=malformed.cause)

    async def _result(self, name: str, arguments: str, outcome: Outcome, latency_s: float) -> StepResult:
        self._record(name, arguments, outcome, latency_s)
        if self.stop_reason is None and self.steps >= self.budget.max_steps:
            self.stop_reason = StopReason.MAX_STEPS
        stop = self.stop_reason
        reward = await self._reward() if stop is not None else 0.0
        is_terminated = stop is not None and stop.is_terminated
        info: Info = {
            "stop_reason": str(stop) if stop else None,
            "error": outcome.error,
            "exit_code": outcome.exit_code,
        }
        return outcome.observation, reward, is_terminated, stop is not None and not is_terminated, info

    def _record(self, name: str, arguments: str, outcome: Outcome, latency_s: float) -> None:
        call = ToolCall(
            turn=self.steps,
            name=name,
            arguments=arguments,
            ok=outcome.error is None,
            error=outcome.error,
            exit_code=outcome.exit_code,
            latency_s=latency_s,
            output_bytes=outcome.output_bytes,
            output=outcome.observation,
        )
        self.tool_calls.append(call)
        self.messages.append(Message("tool", outcome.observation))
        self.steps += 1
        self.sandbox_s += latency_s

    async def _reward(self) -> float:
        if self._scorer is None or self._whole_task is None:
            return 0.0
        state = await self.afreeze()
        submission = Submission(state.archive, tuple(self.messages), tuple(self.tool_calls))
        self.verdict = await self._scorer.score(self._whole_task, submission)
        return self.verdict.reward
