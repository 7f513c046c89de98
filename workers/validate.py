"""The gate before a task is trained on: does its verifier tell right from wrong, every time?

Its solution passes N times of N, doing nothing and every attack score 0, every honest variant passes, two
resets are the same to the byte, and no protected file can be read from inside. A solution that sometimes
passes puts its task in quarantine, with its flake rate. What could not be tried (a sandbox or a judge that
failed) is red, never passed over. The order of a report's checks is fixed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from workers.agent.budget import Budget
from workers.agent.script import ScriptAgent
from workers.archive import Archive, EntryKind, unpack
from workers.errors import BoundaryError
from workers.play import rollout
from workers.sandbox.protocol import Command, SandboxBackend, SandboxSpec
from workers.scorer import Scorer
from workers.task import Script, Task
from workers.trajectory import Message, Trajectory, Verdict
from workers.verifier.protocol import Submission

NOTHING = Script("nothing", "")
LEAST_SECRET_BYTES = 16
SEARCH_TIMEOUT_S = 60.0
SEARCH_LIMIT_BYTES = 8 << 20
SEARCH = (
    r"find / \( -path /proc -o -path /sys -o -path /dev -o -path /usr \) -prune"
    r" -o -type f -size -2048k -print0 2>/dev/null"
    r" | head -z -n 50000 | xargs -0 -r sha256sum 2>/dev/null; echo searched"
)
_NOTES = re.compile(r"(?:\n?\[[^\]\n]*\])+\Z")


@dataclass(frozen=True, slots=True)
class Options:
    """`gold_runs`: how often the solution is played; `concurrency`: how many tasks are checked at once."""

    gold_runs: int = 3
    concurrency: int = 2


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked: what was wanted, what came, and whether that is well."""

    name: str
    wanted: str
    got: str
    is_ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one task. `flake_rate` is the share of the solution's runs that did not pass."""

    task_id: str
    checks: tuple[Check, ...]
    flake_rate: float

    @property
    def is_ok(self) -> bool:
        return all(check.is_ok for check in self.checks)

    @property
    def is_quarantined(self) -> bool:
        return 0.0 < self.flake_rate < 1.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of playing a script: a verdict, or why there is none."""

    verdict: Verdict | None
    why: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.passed

    def __str__(self) -> str:
        return self.why or (f"{self.verdict.score:g}" if self.verdict else "")

    @property
    def detail(self) -> str:
        return "; ".join(part.detail for part in self.verdict.parts if part.detail) if self.verdict else ""


async def validate(task: Task, sandboxes: SandboxBackend, options: Options) -> Report:
    """Every check of one task, one after the other."""
    gold, flake_rate = await _gold(task, sandboxes, options.gold_runs)
    checks = [gold, await _worth_nothing("no-op", NOTHING, task, sandboxes)]
    checks += [
        await _worth_nothing(f"attack {script.name}", script, task, sandboxes) for script in task.attacks
    ]
    checks += [await _passes(f"honest {script.name}", script, task, sandboxes) for script in task.honest]
    checks += [await _resets(task, sandboxes), await _hidden(task, sandboxes)]
    return Report(task.task_id, tuple(checks), flake_rate)


async def validate_all(
    tasks: Sequence[Task],
    sandboxes: SandboxBackend,
    options: Options,
    on_report: Callable[[Report], None] = lambda report: None,
) -> tuple[Report, ...]:
    """The reports in the order of the tasks; `on_report` gets each as it comes."""
    free = asyncio.Semaphore(options.concurrency)

    async def one(task: Task) -> Report:
        async with free:
            report = await validate(task, sandboxes, options)
        on_report(report)
        return report

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(task)) for task in tasks]
    return tuple(task.result() for task in running)


async def _gold(task: Task, sandboxes: SandboxBackend, runs: int) -> tuple[Check, float]:
    wanted = f"{runs} of {runs} pass"
    if task.solution is None:
        return Check("solution", wanted, "there is none", False, "nothing shows that it can be solved"), 1.0
    tried = [await _try(task.solution, task, sandboxes) for _ in range(runs)]
    passes = sum(one.passed for one in tried)
    failed = next((one for one in tried if not one.passed), None)
    why = f"{failed} {failed.detail}".strip() if failed else ""
    return Check("solution", wanted, f"{passes} of {runs} pass", passes == runs, why), 1 - passes / runs


async def _worth_nothing(name: str, script: Script, task: Task, sandboxes: SandboxBackend) -> Check:
    tried = await _try(script, task, sandboxes)
    is_ok = tried.verdict is not None and not tried.passed and tried.verdict.score <= 0
    return Check(name, "0", str(tried), is_ok, "" if is_ok else tried.detail)


async def _passes(name: str, script: Script, task: Task, sandboxes: SandboxBackend) -> Check:
    tried = await _try(script, task, sandboxes)
    return Check(name, "pass", str(tried), tried.passed, "" if tried.passed else tried.detail)


async def _try(script: Script, task: Task, sandboxes: SandboxBackend) -> Tried:
    """Play a script as the agent and judge what it leaves."""
    played = await rollout(task.public, ScriptAgent(script), sandboxes, Budget())
    trajectory = played.trajectory
    if trajectory.failure is not None:
        failure = trajectory.failure
        return Tried(None, f"{failure.boundary}: {failure.cause} {failure.detail}".strip())
    submission = Submission(played.state, _said(trajectory), trajectory.tool_calls)
    try:
        return Tried(await Scorer(sandboxes).score(task, submission))
    except BoundaryError as error:
        return Tried(None, str(error))


def _said(trajectory: Trajectory) -> tuple[Message, ...]:
    """The conversation, closed by what the script printed: that is its answer where a message is judged."""
    told = [message.content for message in trajectory.messages if message.role == "tool"]
    answer = _NOTES.sub("", told[-1]) if told else ""
    return (*trajectory.messages, Message("assistant", answer))


async def _resets(task: Task, sandboxes: SandboxBackend) -> Check:
    name, wanted = "reset", "the same digest twice"
    try:
        digests = [await _reset_digest(task, sandboxes) for _ in range(2)]
    except BoundaryError as error:
        return Check(name, wanted, str(error), False)
    is_ok = bool(digests[0]) and digests[0] == digests[1]
    return Check(name, wanted, digests[0][:12] if is_ok else " and ".join(digests), is_ok)


async def _reset_digest(task: Task, sandboxes: SandboxBackend) -> str:
    sandbox = await sandboxes.create(_agents_spec(task))
    try:
        return sandbox.reset_digest
    finally:
        await sandbox.close()


async def _hidden(task: Task, sandboxes: SandboxBackend) -> Check:
    """Search the agent's whole file system for the protected half, by content."""
    name, wanted = "protected files", "not readable inside"
    try:
        sandbox = await sandboxes.create(_agents_spec(task))
        try:
            found = await sandbox.exec(
                replace(Command.shell(SEARCH, SEARCH_TIMEOUT_S), output_limit_bytes=SEARCH_LIMIT_BYTES)
            )
        finally:
            await sandbox.close()
    except BoundaryError as error:
        return Check(name, wanted, str(error), False)
    lines = [line.removeprefix("\\") for line in found.stdout.decode(errors="replace").splitlines()]
    if found.dropped_bytes or not lines or lines[-1] != "searched":
        return Check(name, wanted, f"could not search: status {found.exit_code}", False)
    secrets = _secrets(task)
    leaks = sorted(f"{secrets[line[:64]]} at {line[66:]}" for line in lines if line[:64] in secrets)
    return Check(name, wanted, ", ".join(leaks) or wanted, not leaks)


def _secrets(task: Task) -> dict[str, str]:
    """What only the scorer may hold, by digest; short files and those that the workspace ships too aside."""
    scripts = [script for script in (task.solution, *task.attacks, *task.honest) if script is not None]
    bodies = {
        f"the script {script.name}": script.body.encode("utf-8", "surrogateescape") for script in scripts
    }
    bodies |= {f"tests/{path}": data for path, data in _files(task.protected).items()}
    shipped = {_sha256(data) for data in _files(task.public.workspace).values()}
    named = {_sha256(body): name for name, body in bodies.items() if len(body) >= LEAST_SECRET_BYTES}
    return {digest: name for digest, name in named.items() if digest not in shipped}


def _agents_spec(task: Task) -> SandboxSpec:
    public = task.public
    return SandboxSpec(
        image=public.image,
        workspace_path=public.workspace_path,
        layers=(public.workspace,),
        limits=public.limits,
    )


def _files(archive: Archive) -> dict[str, bytes]:
    return {entry.path: entry.data for entry in unpack(archive) if entry.kind is EntryKind.FILE}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
