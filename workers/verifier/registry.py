"""Which kinds of verifier there are, and the one of a task."""

from __future__ import annotations

from collections.abc import Mapping

from workers.errors import Fault, TaskError
from workers.table import suggestion
from workers.task import Scope, Task
from workers.verifier.calls import CallsKind
from workers.verifier.match import MatchKind
from workers.verifier.protocol import Verifier, VerifierKind
from workers.verifier.script import ScriptKind
from workers.verifier.stdio import StdioKind

KINDS: Mapping[str, VerifierKind] = {
    "calls": CallsKind(),
    "match": MatchKind(),
    "script": ScriptKind(),
    "stdio": StdioKind(),
}
LATER = ("composite", "pytest", "reward_model", "rubric", "state")


def faults(task: Task) -> tuple[Fault, ...]:
    """Everything wrong with the task's verifier; empty exactly where `build` works."""
    kind = KINDS.get(task.verifier.kind)
    if kind is None:
        return (_unknown_kind(task),)
    found: tuple[Fault, ...] = ()
    if task.public.scope is not Scope.WORKSPACE:
        problem = "not available in this version"
        remedy = 'use scope = "workspace"'
        found = (Fault(task.task_id, "task.toml", "rollcage.scope", repr("system"), problem, remedy),)
    return found + kind.faults(task)


def build(task: Task) -> Verifier:
    """Raises TaskError with the faults where there are any."""
    found = faults(task)
    if found:
        raise TaskError(found)
    return KINDS[task.verifier.kind].build(task)


def _unknown_kind(task: Task) -> Fault:
    name, key = task.verifier.kind, "rollcage.verifier.kind"
    known = ", ".join(KINDS)
    if name in LATER:
        problem = "not available in this version"
        return Fault(task.task_id, "task.toml", key, repr(name), problem, f"use one of: {known}")
    remedy = f"{suggestion(name, (*KINDS, *LATER))}use one of: {known}"
    return Fault(task.task_id, "task.toml", key, repr(name), "no such kind of verifier", remedy)
