"""Typed reads from a table that somebody wrote by hand, every fault collected and none raised.

A read always answers: the value where it is right, the default where it is absent or wrong; a wrong value
leaves a fault behind, so a task with any fault is never built from those defaults.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from workers.errors import Fault

SHOWN_VALUE_CHARS = 80
MAX_NUMBER_BITS = 1000
"""An integer beyond this does not fit a float."""


@dataclass(slots=True)
class Findings:
    """The faults found so far in one task."""

    task: str
    faults: list[Fault] = field(default_factory=list)

    def add(self, file: str, key: str, value: object, problem: str, remedy: str) -> None:
        self.faults.append(Fault(self.task, file, key, shown(value), problem, remedy))


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be: more than `low` (or equal, where `is_closed`), at most `high`."""

    low: float
    high: float
    is_closed: bool = False
    unit: str = ""

    def holds(self, value: float) -> bool:
        return (value >= self.low if self.is_closed else value > self.low) and value <= self.high

    def __str__(self) -> str:
        above = "at least" if self.is_closed else "more than"
        return f"a number {above} {self.low:g} and at most {self.high:g}{self.unit and ' ' + self.unit}"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a file. `prefix` is where it lies in the file: `agent.`, or nothing at the root."""

    values: Mapping[str, object]
    findings: Findings
    file: str
    prefix: str = ""

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def fault(self, key: str, problem: str, remedy: str) -> None:
        self.findings.add(self.file, self.prefix + key, self.values.get(key, ""), problem, remedy)

    def number(self, key: str, default: float, allowed: Range) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, str):
            self.fault(key, "text where a number belongs", f"write {allowed}, without quotes")
        elif not _is_finite_number(value):
            self.fault(key, "not a finite number", f"write {allowed}")
        elif not allowed.holds(value):
            self.fault(key, "out of range", f"write {allowed}")
        else:
            return float(value)
        return default

    def whole(self, key: str, default: int, allowed: Range) -> int:
        value = self.values.get(key)
        if isinstance(value, float) and not value.is_integer():
            self.fault(key, "not a whole number", f"write {allowed}, without a fraction")
            return default
        return int(self.number(key, default, allowed))

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.fault(key, "not true or false", "write true or false, without quotes")
        return default

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fault(key, "not text", "write it in quotes")
        elif not is_encodable(value):
            self.fault(key, "holds a lone surrogate, which is no character", "write valid Unicode text")
        else:
            return value
        return default

    def choice(self, key: str, default: str, allowed: Collection[str]) -> str:
        value = self.text(key, default)
        if value in allowed:
            return value
        self.fault(key, "not a known value", f"{suggestion(value, allowed)}use one of: {', '.join(allowed)}")
        return default

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, list | tuple) and all(
            isinstance(item, str) and is_encodable(item) for item in value
        ):
            return tuple(value)
        self.fault(key, "not a list of texts", 'write a list such as ["a", "b"]')
        return default

    def table(self, key: str) -> Table:
        """The table under `key`; an empty one where it is absent or not a table."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            self.fault(key, "not a table", f"write its keys under [{self.prefix}{key}]")
        values = value if isinstance(value, Mapping) else {}
        return Table(values, self.findings, self.file, f"{self.prefix}{key}.")

    def refuse_unknown(self, known: Iterable[str], remedy: str = "") -> None:
        """A fault for each key that is none of `known`, with the nearest known one."""
        names = tuple(known)
        for key in self.values:
            if key not in names:
                hint = suggestion(key, names) + (remedy or f"the keys are: {', '.join(names)}")
                self.fault(key, "unknown key", hint)


def suggestion(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""


def shown(value: object) -> str:
    """A value as a fault shows it: short, on one line, empty for no value."""
    if value is None or value == "":
        return ""
    try:
        text = repr(value)
    except ValueError:
        return "(a number of too many digits)"
    return text if len(text) <= SHOWN_VALUE_CHARS else text[: SHOWN_VALUE_CHARS - 1] + "…"


def _is_finite_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() < MAX_NUMBER_BITS
    return isinstance(value, float) and math.isfinite(value)


def is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
