"""What judges: a verifier reads the final state and answers a verdict, or says that there is none.

A verdict is a `Verdict`. No verdict is a `VerifierError`, raised only from evidence on the judge's own side
of the pipe; whatever the solution does to itself is a verdict of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from workers.archive import Archive
from workers.errors import Fault
from workers.sandbox.protocol import SandboxBackend
from workers.task import Task
from workers.trajectory import Message, ToolCall, Verdict


@dataclass(frozen=True, slots=True)
class Submission:
    """What is graded. `state` is None where the final state passed a cap."""

    state: Archive | None
    messages: tuple[Message, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()


class Verifier(Protocol):
    """Judges one task's submissions."""

    async def verify(self, submission: Submission, sandboxes: SandboxBackend) -> Verdict:
        """Raises VerifierError where the judge's side gave no verdict, SandboxError where the host failed."""
        ...


class VerifierKind(Protocol):
    """Makes verifiers of one kind."""

    def faults(self, task: Task) -> tuple[Fault, ...]:
        """Everything wrong with the task's verifier table and protected files; empty when `build` will work."""
        ...

    def build(self, task: Task) -> Verifier: ...
