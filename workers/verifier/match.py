"""`match`: a final answer against a gold one, read from a file of the state or the last assistant message.

The file is read out of the archives, never in a sandbox: a link, a folder or a missing file is no answer.
`how`: `exact` (the same text, line ends at its end aside), `normalised` (the whole answer, Unicode
compatibility forms, case and white space made equal), `numeric` (the number that it answers with, within
`tol` of the gold, relative to the gold). An answer that lists candidates is wrong. Nothing is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from workers.errors import Fault
from workers.sandbox.protocol import SandboxBackend
from workers.table import Findings, Range, Table
from workers.task import Task
from workers.trajectory import Protection, Verdict
from workers.verifier.answer_text import normalised, number_in, parse_number, without_thinking
from workers.verifier.outcome import single
from workers.verifier.protected import option_table
from workers.verifier.protocol import Submission
from workers.verifier.state_file import read_state_file

MAX_ANSWER_BYTES = 1 << 20
MESSAGE = "message"
DEFAULT_TOL = 1e-9
"""Of a gold that has a fraction; a whole one is met by itself alone."""


class How(StrEnum):
    EXACT = "exact"
    NORMALISED = "normalised"
    NUMERIC = "numeric"
    MATH = "math"


@dataclass(frozen=True, slots=True)
class Match:
    """The settings of one task's `match` verifier. `file` is empty where the message is judged."""

    task: Task
    file: str
    gold: str
    how: How
    tol: float | None

    async def verify(self, submission: Submission, sandboxes: SandboxBackend) -> Verdict:
        answer = self._answer(submission)
        if answer is None:
            return single("answer", 0.0, Protection.VALUES, "no answer")
        is_right = self.is_right(answer)
        return single("answer", float(is_right), Protection.VALUES, "" if is_right else "not the gold answer")

    def is_right(self, answer: str) -> bool:
        if self.how is How.EXACT:
            return answer.rstrip("\r\n") == self.gold.rstrip("\r\n")
        if self.how is How.NORMALISED:
            return normalised(answer) == normalised(self.gold)
        gold, found = parse_number(self.gold.strip()), number_in(answer)
        if gold is None or found is None:
            return False
        is_whole = gold == gold.to_integral_value()
        tol = self.tol if self.tol is not None else 0.0 if is_whole else DEFAULT_TOL
        return abs(found - gold) <= Decimal(tol) * abs(gold)

    def _answer(self, submission: Submission) -> str | None:
        if not self.file:
            texts = [message.content for message in submission.messages if message.role == "assistant"]
            return without_thinking(texts[-1]) if texts else None
        layers = (self.task.public.workspace, *([submission.state] if submission.state else []))
        data = read_state_file(layers, self.file)
        if data is None or len(data) > MAX_ANSWER_BYTES:
            return None
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            return None


class MatchKind:
    """Reads `match` tables."""

    def faults(self, task: Task) -> tuple[Fault, ...]:
        findings = Findings(task.task_id)
        self._read(task, findings)
        return tuple(findings.faults)

    def build(self, task: Task) -> Match:
        return self._read(task, Findings(task.task_id))

    def _read(self, task: Task, findings: Findings) -> Match:
        table = option_table(task, findings)
        table.refuse_unknown(("file", "source", "gold", "how", "tol"))
        how = How(table.choice("how", How.EXACT.value, [each.value for each in How]))
        if how is How.MATH:
            remedy = 'use "numeric" or "normalised", or judge with a script'
            table.fault("how", "not available in this version", remedy)
        return Match(
            task=task,
            file=_file(table),
            gold=_gold(table, how),
            how=how,
            tol=table.number("tol", DEFAULT_TOL, Range(0, 1, is_closed=True)) if "tol" in table else None,
        )


def _file(table: Table) -> str:
    path, source = table.text("file", ""), table.text("source", "")
    if bool(path) == bool(source):
        remedy = 'write file = "answer.txt", or source = "message"'
        table.fault("file", "an answer comes from `file` or from `source`, and not both", remedy)
    elif source and source != MESSAGE:
        table.fault("source", "not a known source", 'write "message"')
    elif path and (path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/"))):
        table.fault("file", "not a path inside the workspace", 'write a relative one, such as "answer.txt"')
    return path


def _gold(table: Table, how: How) -> str:
    raw = table.values.get("gold")
    gold = str(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else table.text("gold", "")
    if "gold" not in table or not normalised(gold):
        table.fault("gold", "missing or blank", "write the right answer: a blank one is met by no answer")
    elif how is How.NUMERIC and parse_number(gold.strip()) is None:
        table.fault("gold", "not a number", "write a decimal number, or use another `how`")
    return gold
