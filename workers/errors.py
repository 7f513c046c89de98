"""Every error that Rollcage raises on purpose.

RollcageError
├── ConfigError            bad usage: a file, a key, a value and what to do about it
├── TaskError              every fault of every task of a set, at once
├── Unsupported            a backend can't do it; says what to use instead
└── BoundaryError          an episode failed at a boundary, with a cause from evidence outside the sandbox
    ├── SandboxError
    ├── PolicyError
    ├── VerifierError
    └── InfrastructureError

All of them survive pickling, so that a cause crosses processes whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Boundary(StrEnum):
    """Where an episode failed."""

    SANDBOX = "sandbox"
    POLICY = "policy"
    VERIFIER = "verifier"
    INFRASTRUCTURE = "infrastructure"


class RollcageError(Exception):
    """The root of the tree."""


class ConfigError(RollcageError):
    """Bad usage or configuration: names the place, the key, the value and the remedy. Exit code 2."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with one task: where it is and what mends it."""

    task: str
    file: str
    key: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        key = f" [{self.key}]" if self.key else ""
        value = f" = {self.value}" if self.value else ""
        return f"{self.task}: {self.file}{key}{value}: {self.problem}; {self.remedy}"


class TaskError(RollcageError):
    """A task set can't be used. `faults` lists everything wrong with every task. Exit code 2."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        lines = "\n".join(f"  {fault}" for fault in self.faults)
        return f"{len(self.faults)} fault(s) in the task set:\n{lines}"


class Unsupported(RollcageError):
    """The chosen backend can't do this; `instead` says what can."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, instead)
        self.what = what
        self.instead = instead

    def __str__(self) -> str:
        return f"{self.what}; instead: {self.instead}"


class BoundaryError(RollcageError):
    """An episode could not be played or judged. Never a reward: the episode is `failed`.

    `cause` is a short snake_case word that metrics use as a label (`pool_lost`, `endpoint_unreachable`,
    `judge_crashed`); `detail` is for people.
    """

    boundary: Boundary

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.cause = cause
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"{self.boundary}: {self.cause}: {self.detail}"
            if self.detail
            else f"{self.boundary}: {self.cause}"
        )


class SandboxError(BoundaryError):
    """The host could not give or keep a sandbox."""

    boundary = Boundary.SANDBOX


class PolicyError(BoundaryError):
    """The policy's endpoint did not answer as it must."""

    boundary = Boundary.POLICY


class VerifierError(BoundaryError):
    """The judge's side gave no verdict."""

    boundary = Boundary.VERIFIER


class InfrastructureError(BoundaryError):
    """Rollcage itself or the cluster under it failed."""

    boundary = Boundary.INFRASTRUCTURE
