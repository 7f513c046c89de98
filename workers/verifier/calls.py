"""`calls`: a solution's functions are called in its own slot, and what they return is compared outside.

The slot holds the state and nothing protected. One process makes all the calls in order: a solution that
keeps state between calls does so as in a program, and a start costs more than most calls. What that process
could forge are its own values, which is no more than returning them. A process that dies, hangs or floods
fails the call that it owed; under `score = "fraction"` the calls after it get a fresh process. A case with
`max_s` gets a process to itself.

Nothing that the solution does is without a verdict: only a runner that does not start in a slot without the
solution's state either is the judge's failure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.errors import Fault, VerifierError
from workers.sandbox.protocol import Command, ExecResult, Sandbox, SandboxBackend
from workers.table import Findings, Table
from workers.task import Task
from workers.text import one_line
from workers.trajectory import Protection, Verdict
from workers.verifier.cases import Case, read_calls
from workers.verifier.frames import MAX_FRAME_BYTES, MAX_TOTAL_BYTES, Answer, Answers, Broken, read_frames
from workers.verifier.outcome import Score, verdict_of
from workers.verifier.protected import option_table
from workers.verifier.protocol import Submission
from workers.verifier.slot import CLEAN_ENV, LEAST_TIMEOUT_S, solution_spec, why_it_ended

OUTPUT_LIMIT_BYTES = 2 * (MAX_TOTAL_BYTES + 2 * MAX_FRAME_BYTES)
PYTHON = ("python3", "-s", "-B", "-X", "utf8", "-X", "pycache_prefix=/nonexistent", "-c")
CONTROL_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Calls:
    """The settings of one task's `calls` verifier."""

    task: Task
    cases: tuple[Case, ...]
    import_from: tuple[str, ...]
    score: Score

    async def verify(self, submission: Submission, sandboxes: SandboxBackend) -> Verdict:
        sandbox = await sandboxes.create(solution_spec(self.task, submission.state))
        try:
            answers = await self._answers(sandbox, sandboxes)
        finally:
            await sandbox.close()
        problems = [case.judge(answer) for case, answer in zip(self.cases, answers, strict=True)]
        return verdict_of(problems, self.score, Protection.VALUES)

    async def _answers(self, sandbox: Sandbox, sandboxes: SandboxBackend) -> list[Answer]:
        """One answer a case."""
        deadline_s = time.monotonic() + self.task.verifier.timeout_s
        answers: list[Answer] = []
        while len(answers) < len(self.cases):
            batch = self._batch(len(answers))
            timeout_s = deadline_s - time.monotonic()
            if timeout_s < LEAST_TIMEOUT_S:
                break
            result = await sandbox.exec(self._command(batch, timeout_s))
            read = _read(result, len(batch))
            if not read.is_ready:
                await self._check_that_it_starts_elsewhere(sandboxes, result)
            answers += _in_time(read.answers, batch, result)
            is_cut = len(read.answers) < len(batch) and not (read.asks_for_more and read.answers)
            if is_cut:
                answers.append(Broken(why_it_ended(result)))
                if self.score is Score.ALL:
                    break
        unasked = [Broken("not called: an earlier case used up the time or ended the process")]
        return answers + unasked * (len(self.cases) - len(answers))

    def _batch(self, start: int) -> Sequence[Case]:
        """The cases that the next process is asked: up to the next that needs one to itself."""
        if self.cases[start].max_s is not None:
            return self.cases[start : start + 1]
        rest = self.cases[start:]
        end = next((index for index, case in enumerate(rest) if case.max_s is not None), len(rest))
        return rest[:end]

    def _command(self, batch: Sequence[Case], timeout_s: float) -> Command:
        request = json.dumps(
            {
                "workspace": self.task.public.workspace_path,
                "import_from": self.import_from,
                "frame_bytes": MAX_FRAME_BYTES,
                "total_bytes": MAX_TOTAL_BYTES,
                "calls": [json.loads(case.call_json) for case in batch],
            }
        )
        return Command(
            argv=(*PYTHON, runner_text()),
            timeout_s=timeout_s,
            stdin=request.encode("ascii"),
            env=CLEAN_ENV,
            cwd="/",
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
        )

    async def _check_that_it_starts_elsewhere(self, sandboxes: SandboxBackend, failed: ExecResult) -> None:
        """Raises VerifierError where the runner does not start without the solution's state either."""
        sandbox = await sandboxes.create(solution_spec(self.task, None))
        try:
            result = await sandbox.exec(self._command((), CONTROL_TIMEOUT_S))
        finally:
            await sandbox.close()
        if not _read(result, 0).is_ready:
            told = one_line((result.stderr or failed.stderr).decode(errors="replace").strip()[-400:])
            raise VerifierError("judge_crashed", f"the runner did not start: {why_it_ended(result)} {told}")


class CallsKind:
    """Reads `calls` tables."""

    def faults(self, task: Task) -> tuple[Fault, ...]:
        findings = Findings(task.task_id)
        self._read(task, findings)
        return tuple(findings.faults)

    def build(self, task: Task) -> Calls:
        return self._read(task, Findings(task.task_id))

    def _read(self, task: Task, findings: Findings) -> Calls:
        table = option_table(task, findings)
        table.refuse_unknown(("cases", "import_from", "score"))
        return Calls(
            task=task,
            cases=read_calls(task, table),
            import_from=_import_from(table),
            score=Score(table.choice("score", Score.ALL.value, [each.value for each in Score])),
        )


def runner_text() -> str:
    return Path(__file__).with_name("runner.py").read_text(encoding="utf-8")


def _import_from(table: Table) -> tuple[str, ...]:
    places = table.texts("import_from", (".",))
    if not places or any(place.startswith("/") or ".." in place.split("/") for place in places):
        table.fault("import_from", "not folders inside the workspace", 'write relative ones, such as ["src"]')
    return places


def _read(result: ExecResult, limit: int) -> Answers:
    """Where output was dropped only its first half is whole."""
    data = result.stdout[: OUTPUT_LIMIT_BYTES // 2] if result.dropped_bytes else result.stdout
    return read_frames(data, limit)


def _in_time(answers: tuple[Answer, ...], batch: Sequence[Case], result: ExecResult) -> list[Answer]:
    max_s = batch[0].max_s
    if max_s is None or result.duration_s <= max_s:
        return list(answers)
    return [Broken(f"took {result.duration_s:.3f} s, more than max_s") for _ in answers]
