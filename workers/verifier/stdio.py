"""`stdio`: a program is run on each case's input, and what it prints is compared outside.

Each case has a slot of its own, built from the same state: files that a program leaves behind are never
there for the next case, and a case's own files are laid over whatever the agent left at their paths. The
program gets no wanted output, so whatever it does there is its own: no exit, flood or hang of it is without
a verdict. A case that names no `exit_code` wants 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.archive import Archive, Entry, EntryKind, pack
from workers.errors import Fault
from workers.sandbox.protocol import Command, ExecResult, SandboxBackend
from workers.table import Findings, Range, Table
from workers.task import Task
from workers.trajectory import Protection, Verdict
from workers.verifier.outcome import Score, verdict_of
from workers.verifier.outputs import Compare
from workers.verifier.protected import option_table, read_cases
from workers.verifier.protocol import Submission
from workers.verifier.slot import CLEAN_ENV, LEAST_TIMEOUT_S, solution_spec, why_it_ended

SPARE_OUTPUT_BYTES = 64 * 1024
SHOWN_OUTPUT_CHARS = 120
DEFAULT_TOL = 1e-6


@dataclass(frozen=True, slots=True)
class Case:
    """One input and what it must print. `files` is laid over the state."""

    stdin: bytes
    args: tuple[str, ...]
    files: Archive
    stdout: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Stdio:
    """The settings of one task's `stdio` verifier."""

    task: Task
    command: tuple[str, ...]
    cases: tuple[Case, ...]
    compare: Compare
    tol: float
    score: Score

    async def verify(self, submission: Submission, sandboxes: SandboxBackend) -> Verdict:
        left_s = self.task.verifier.timeout_s
        problems: list[str] = []
        for case in self.cases:
            if left_s < LEAST_TIMEOUT_S or (self.score is Score.ALL and any(problems)):
                problems.append("not run: an earlier case failed or used up the time")
                continue
            result = await self._run(case, submission.state, sandboxes, left_s)
            left_s -= result.duration_s
            problems.append(self._judge(case, result))
        return verdict_of(problems, self.score, Protection.VALUES)

    async def _run(
        self, case: Case, state: Archive | None, sandboxes: SandboxBackend, timeout_s: float
    ) -> ExecResult:
        sandbox = await sandboxes.create(solution_spec(self.task, state, case.files))
        try:
            return await sandbox.exec(
                Command(
                    argv=(*self.command, *case.args),
                    timeout_s=timeout_s,
                    stdin=case.stdin,
                    env=CLEAN_ENV,
                    output_limit_bytes=_most_bytes(case),
                )
            )
        finally:
            await sandbox.close()

    def _judge(self, case: Case, result: ExecResult) -> str:
        """Why the case failed; empty where it did not. Never shows what was wanted."""
        if result.timed_out or result.oom_killed or result.output_killed:
            return why_it_ended(result)
        if result.exit_code != case.exit_code:
            return why_it_ended(result)
        # What is dropped of stderr says nothing of the answer; stdout was dropped from when it fills its room.
        is_cut = len(result.stdout) >= _most_bytes(case)
        if is_cut or not self.compare.holds(case.stdout, result.stdout, self.tol):
            return f"printed {result.stdout.decode(errors='replace')[:SHOWN_OUTPUT_CHARS]!r}"
        return ""


def _most_bytes(case: Case) -> int:
    """Far more than a right answer takes."""
    return 2 * len(case.stdout.encode()) + SPARE_OUTPUT_BYTES


class StdioKind:
    """Reads `stdio` tables."""

    def faults(self, task: Task) -> tuple[Fault, ...]:
        findings = Findings(task.task_id)
        self._read(task, findings)
        return tuple(findings.faults)

    def build(self, task: Task) -> Stdio:
        return self._read(task, Findings(task.task_id))

    def _read(self, task: Task, findings: Findings) -> Stdio:
        table = option_table(task, findings)
        table.refuse_unknown(("command", "cases", "compare", "tol", "score"))
        command = table.texts("command", ())
        if not command or any("\0" in word for word in command):
            table.fault("command", "no command to run", 'write a list such as ["python3", "main.py"]')
        raws, file = read_cases(task, table, "tests/cases.json")
        return Stdio(
            task=task,
            command=command,
            cases=tuple(_case(Table(raw, findings, file, f"[{at}].")) for at, raw in enumerate(raws)),
            compare=Compare(table.choice("compare", Compare.EXACT.value, [each.value for each in Compare])),
            tol=table.number("tol", DEFAULT_TOL, Range(0, 1, is_closed=True)),
            score=Score(table.choice("score", Score.ALL.value, [each.value for each in Score])),
        )


def _case(table: Table) -> Case:
    table.refuse_unknown(("stdin", "args", "files", "stdout", "exit_code", "name"))
    if "stdout" not in table:
        table.fault("stdout", "missing", "write what the program must print, or an empty text")
    args = table.texts("args", ())
    if any("\0" in word for word in args):
        table.fault("args", "holds a NUL, which no argument can", "remove it")
    return Case(
        stdin=table.text("stdin", "").encode(),
        args=args,
        files=_files(table),
        stdout=table.text("stdout", ""),
        exit_code=table.whole("exit_code", 0, Range(0, 255, is_closed=True)),
    )


def _files(table: Table) -> Archive:
    """The case's files, with the folders that they lie in."""
    files = table.table("files")
    entries = [Entry(path, EntryKind.FILE, data=files.text(path, "").encode()) for path in files.values]
    folders = {path[:at] for path in files.values for at, char in enumerate(path) if char == "/"}
    entries += [Entry(folder, EntryKind.FOLDER, mode=0o755) for folder in sorted(folders)]
    try:
        return pack(entries)
    except ValueError as error:
        table.fault("files", str(error), "write paths inside the workspace")
        return pack(())
