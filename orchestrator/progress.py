"""How far a run has come: a snapshot that the driver hands to whoever shows it. A leaf."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.types import Fate


class Phase(StrEnum):
    STARTING = "starting"
    PROBING = "probing"
    ROLLING = "rolling"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True)
class Straggler:
    """An episode that has been playing for long."""

    task_id: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """One moment of a run. `detail` is a word on what is going on now ("loading the model").

    `groups_asked` is 0 while it is not known. `eta_s` is None while there is nothing to reckon it from.
    `failures` counts failed episodes by "boundary/cause".
    """

    phase: Phase
    elapsed_s: float
    detail: str = ""
    tasks_total: int = 0
    tasks_decided: int = 0
    probes_done: int = 0
    groups_asked: int = 0
    groups: dict[Fate, int] = field(default_factory=dict)
    episodes_ok: int = 0
    episodes_passed: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    tokens_per_s: float | None = None
    eta_s: float | None = None
    stragglers: tuple[Straggler, ...] = ()

    @property
    def groups_done(self) -> int:
        return sum(self.groups.values())

    @property
    def episodes_failed(self) -> int:
        return sum(self.failures.values())
