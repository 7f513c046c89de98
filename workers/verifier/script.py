"""`script`: a verifier script in a sandbox of the scorer's own, as Harbor's tasks ship it.

The state is the workspace, the protected files are read-only at `/tests`, `/logs/verifier` is fresh, the
environment is clean. The reward is what the script wrote to `reward.txt` or `reward.json` there; an exit
status is none. The solution runs beside its judge, so the reward's protection is `shared`.

No reward, a malformed one, one out of its declared range, a crash or a hang is no verdict, unless it is the state
that brings it about: where the same judge, in the same place, gives the task's own solution (or the untouched
workspace) a verdict and this state none, the state scores 0. Else an agent could choose to be masked.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace

from workers.archive import Archive
from workers.errors import Fault, VerifierError
from workers.sandbox.protocol import Command, ExecResult, ReadOnlyMount, Sandbox, SandboxBackend
from workers.table import Findings, Table
from workers.task import Task
from workers.text import one_line
from workers.trajectory import Protection, RewardPart, Verdict
from workers.verifier.outcome import single
from workers.verifier.protected import PREFIX, option_table, protected_file
from workers.verifier.protocol import Submission
from workers.verifier.reward_file import Reward, from_json, from_text
from workers.verifier.slot import CLEAN_ENV, solution_spec, why_it_ended

TESTS_PATH = "/tests"
LOGS_PATH = "/logs/verifier"
MAX_REWARD_BYTES = 64 * 1024
PREPARE_TIMEOUT_S = 10.0
SOLUTION_PATH = "/tmp/solve.sh"
DEFAULT_SCRIPT = "tests/test.sh"
ENV = (*CLEAN_ENV, ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))


@dataclass(frozen=True, slots=True)
class Span:
    """The declared range of a reward, both ends in it."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ScriptVerifier:
    """The settings of one task's `script` verifier."""

    task: Task
    argv: tuple[str, ...]
    span: Span

    async def verify(self, submission: Submission, sandboxes: SandboxBackend) -> Verdict:
        try:
            return await self._judge(submission.state, sandboxes)
        except VerifierError as first:
            error = first
        if error.cause != "judge_timeout":  # a hang costs too much to be seen twice
            try:
                return await self._judge(submission.state, sandboxes)
            except VerifierError as again:
                error = again
        if not await self._gives_verdicts(sandboxes):
            raise error
        detail = f"{error.cause}: {one_line(error.detail)}"
        return single("no_verdict", max(0.0, self.span.low), Protection.SHARED, detail)

    async def _gives_verdicts(self, sandboxes: SandboxBackend) -> bool:
        """Whether this judge, here and now, has a verdict for a state that means well."""
        try:
            state = await self._solved(sandboxes) if self.task.solution else None
            await self._judge(state, sandboxes)
        except VerifierError:
            return False
        return True

    async def _solved(self, sandboxes: SandboxBackend) -> Archive | None:
        """The state that the task's own solution leaves."""
        assert self.task.solution is not None
        sandbox = await sandboxes.create(solution_spec(self.task, None))
        try:
            await sandbox.write_file(SOLUTION_PATH, self.task.solution.body.encode())
            timeout_s = self.task.public.agent_timeout_s
            await sandbox.exec(Command(argv=("bash", SOLUTION_PATH), timeout_s=timeout_s))
            return (await sandbox.freeze()).archive
        finally:
            await sandbox.close()

    async def _judge(self, state: Archive | None, sandboxes: SandboxBackend) -> Verdict:
        spec = replace(
            solution_spec(self.task, state),
            read_only=(ReadOnlyMount(TESTS_PATH, self.task.protected),),
            limits=self.task.public.limits,
        )
        sandbox = await sandboxes.create(spec)
        try:
            await self._prepare(sandbox)
            command = Command(argv=self.argv, timeout_s=self.task.verifier.timeout_s, env=ENV)
            result = await sandbox.exec(command)
            if result.timed_out:
                raise VerifierError("judge_timeout", f"no end within {self.task.verifier.timeout_s:g} s")
            # Nothing that the solution left running may touch what the script wrote.
            await sandbox.exec(
                Command(argv=("sh", "-c", "kill -KILL -1"), timeout_s=PREPARE_TIMEOUT_S, cwd="/")
            )
            reward = await self._reward(sandbox, result)
        finally:
            await sandbox.close()
        return self._verdict(reward)

    async def _prepare(self, sandbox: Sandbox) -> None:
        made = await sandbox.exec(
            Command(argv=("mkdir", "-p", LOGS_PATH), timeout_s=PREPARE_TIMEOUT_S, env=ENV, cwd="/")
        )
        if made.exit_code != 0:
            raise VerifierError("judge_crashed", f"can't make {LOGS_PATH}: {why_it_ended(made)}")

    async def _reward(self, sandbox: Sandbox, result: ExecResult) -> Reward:
        for name, parse in (("reward.txt", from_text), ("reward.json", from_json)):
            try:
                return parse(await sandbox.read_file(posixpath.join(LOGS_PATH, name), MAX_REWARD_BYTES))
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:
                raise VerifierError("reward_malformed", f"{name}: {error}") from error
        told = one_line((result.stderr or result.stdout).decode(errors="replace").strip()[-400:])
        if result.exit_code != 0:
            raise VerifierError("judge_crashed", f"no reward, {why_it_ended(result)}: {told}")
        raise VerifierError("reward_missing", f"neither reward.txt nor reward.json in {LOGS_PATH}: {told}")

    def _verdict(self, reward: Reward) -> Verdict:
        if not self.span.low <= reward.value <= self.span.high:
            detail = f"{reward.value:g} is not in [{self.span.low:g}, {self.span.high:g}]"
            raise VerifierError("reward_out_of_range", detail)
        return Verdict(
            reward=reward.value,
            score=reward.value,
            passed=reward.value >= 1.0,
            protection=Protection.SHARED,
            parts=reward.parts or (RewardPart(name="script", value=reward.value),),
        )


class ScriptKind:
    """Reads `script` tables."""

    def faults(self, task: Task) -> tuple[Fault, ...]:
        findings = Findings(task.task_id)
        self._read(task, findings)
        return tuple(findings.faults)

    def build(self, task: Task) -> ScriptVerifier:
        return self._read(task, Findings(task.task_id))

    def _read(self, task: Task, findings: Findings) -> ScriptVerifier:
        table = option_table(task, findings)
        table.refuse_unknown(("command", "range"))
        return ScriptVerifier(task=task, argv=_argv(task, table), span=_span(table))


def _argv(task: Task, table: Table) -> tuple[str, ...]:
    if isinstance(table.values.get("command"), list):
        argv = table.texts("command", ())
        if not argv:
            table.fault("command", "no command to run", f'write "{DEFAULT_SCRIPT}" or a list of words')
        return argv
    path = table.text("command", DEFAULT_SCRIPT)
    data = protected_file(task, table, "command", path) or b""
    first = data.partition(b"\n")[0]
    if first.endswith(b"\r"):
        table.fault("command", "has Windows line ends, which no shell runs", "save it with plain line feeds")
    inside = posixpath.join(TESTS_PATH, path.removeprefix(PREFIX))
    return ("python3", "-B", inside) if path.endswith(".py") else ("bash", "--noprofile", "--norc", inside)


def _span(table: Table) -> Span:
    raw = table.values.get("range", [0, 1])
    match raw:
        case [int() | float() as low, int() | float() as high] if low < high:
            return Span(float(low), float(high))
    table.fault("range", "not the two ends of a range", "write [lowest, highest], such as [0, 1]")
    return Span(0.0, 1.0)
