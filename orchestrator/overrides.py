"""Hydra's override syntax, as text: what an argument of the command line says, before any option is known.

`a.b=v` sets, `+a.b=v` adds, `++a.b=v` sets or adds, `~a.b` takes back. A value is null, true, false, a
number, a quoted or a bare text, a list or a table; several of them, `choice(…)` and `range(…)` are a sweep.
A bare text keeps its own spelling, so that an option that is text gets `007` as `007`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from workers.errors import ConfigError

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

_KEY = re.compile(r"(\+\+|\+|~|)([A-Za-z_][\w\-]*(?:\.[\w\-]+)*)(=?)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+(_\d+)*")
_FLOAT = re.compile(r"[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)
_WORDS: dict[str, bool | None] = {"null": None, "true": True, "false": False}
_FUNCTION = re.compile(r"(choice|range)\(")
MAX_SWEEP = 10_000


class Operation(StrEnum):
    SET = ""
    ADD = "+"
    FORCE = "++"
    DELETE = "~"


@dataclass(frozen=True, slots=True)
class Element:
    """One value. `text` is its spelling where it was bare, and None where it was quoted or built of parts."""

    value: Plain
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """One argument. `elements` is empty where there is no `=`; more than one makes a sweep."""

    operation: Operation
    key: str
    elements: tuple[Element, ...]
    argument: str

    @property
    def is_sweep(self) -> bool:
        return len(self.elements) > 1


def parse(argument: str) -> Override:
    """Raises ConfigError that shows the argument and what is wrong with it."""
    match = _KEY.match(argument)
    if match is None or (match.end() != len(argument) and not match[3]):
        raise ConfigError(f"{argument!r} is not an override", "write key=value, such as rollout.groups=8")
    operation, key = Operation(match[1]), match[2]
    if not match[3]:
        if operation is not Operation.DELETE:
            raise ConfigError(f"{argument!r} has no value", f"write {argument}=VALUE")
        return Override(operation, key, (), argument)
    return Override(operation, key, _Scanner(argument, match.end()).sweep(), argument)


def expand(overrides: Sequence[Override]) -> Iterator[tuple[Override, ...]]:
    """One tuple of single-valued overrides for each point of the sweep, the last key varying fastest."""
    axes = [
        [Override(item.operation, item.key, (element,), item.argument) for element in item.elements] or [item]
        for item in overrides
    ]
    return itertools.product(*axes)


class _Scanner:
    """Reads values from `text`, from `at` on."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def sweep(self) -> tuple[Element, ...]:
        """The rest of the argument: one value, or several."""
        elements: list[Element] = []
        while True:
            function = _FUNCTION.match(self.text, self.at)
            if function:
                self.at = function.end()
                elements += self._function(function[1])
            else:
                elements.append(self._element(","))
            if len(elements) > MAX_SWEEP:
                raise self._error(f"more than {MAX_SWEEP} values")
            if not self._accept(","):
                break
        if self.at < len(self.text):
            raise self._error(f"unexpected {self.text[self.at :]!r}")
        if len(elements) > 1 and any(element.text == "" for element in elements):
            raise self._error("one of several values is empty")
        return tuple(elements)

    def _function(self, name: str) -> list[Element]:
        arguments: list[Element] = []
        while not self._accept(")"):
            arguments.append(self._element(",)"))
            if not self._accept(",") and self._peek() != ")":
                raise self._error(f"{name}( is not closed")
        return arguments if name == "choice" else self._range(arguments)

    def _range(self, arguments: Sequence[Element]) -> list[Element]:
        numbers = [item.value for item in arguments]
        bounds = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool)]
        if len(bounds) != len(numbers) or not 1 <= len(bounds) <= 3:
            raise self._error("range takes one to three numbers")
        start, stop = (0, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        step = bounds[2] if len(bounds) == 3 else 1
        if not step or not abs((stop - start) / step) <= MAX_SWEEP:
            raise self._error(f"range is endless or has more than {MAX_SWEEP} values")
        values = (start + index * step for index in itertools.count())
        is_inside = (lambda v: v < stop) if step > 0 else (lambda v: v > stop)
        return [Element(value, f"{value}") for value in itertools.takewhile(is_inside, values)]

    def _element(self, ends: str) -> Element:
        """One value, up to an unescaped character of `ends`."""
        self._skip_blanks()
        first = self._peek()
        if first in ("'", '"') and first:
            return Element(self._quoted())
        if first == "[":
            return Element(self._list())
        if first == "{":
            return Element(self._table())
        text = self._bare(ends)
        return Element(_convert(text), text)

    def _list(self) -> list[Plain]:
        self.at += 1
        items: list[Plain] = []
        while not self._accept("]"):
            items.append(self._element(",]").value)
            if not self._accept(",") and self._peek() != "]":
                raise self._error("[ is not closed")
        return items

    def _table(self) -> dict[str, Plain]:
        self.at += 1
        items: dict[str, Plain] = {}
        while not self._accept("}"):
            self._skip_blanks()
            key = self._quoted() if self._peek() in ("'", '"') and self._peek() else self._bare(":,}")
            if not self._accept(":"):
                raise self._error("a table is written {key: value}")
            items[key] = self._element(",}").value
            if not self._accept(",") and self._peek() != "}":
                raise self._error("{ is not closed")
        return items

    def _quoted(self) -> str:
        quote = self.text[self.at]
        pieces: list[str] = []
        at = self.at + 1
        while at < len(self.text):
            if self.text.startswith(("\\" + quote, "\\\\"), at):
                pieces.append(self.text[at + 1])
                at += 2
            elif self.text[at] == quote:
                self.at = at + 1
                return "".join(pieces)
            else:
                pieces.append(self.text[at])
                at += 1
        raise self._error(f"{quote} is not closed")

    def _bare(self, ends: str) -> str:
        """A backslash takes the next character as it is; an interpolation ${…} is kept whole."""
        pieces: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in ends:
            size = 1
            if self.text[self.at] == "\\" and self.at + 1 < len(self.text):
                self.at += 1
            elif self.text.startswith("${", self.at):
                size = self._interpolation_size()
            pieces.append(self.text[self.at : self.at + size])
            self.at += size
        return "".join(pieces).strip()

    def _interpolation_size(self) -> int:
        depth = 0
        for at in range(self.at, len(self.text)):
            depth += {"{": 1, "}": -1}.get(self.text[at], 0)
            if self.text[at] == "}" and depth == 0:
                return at + 1 - self.at
        raise self._error("${ is not closed")

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _accept(self, char: str) -> bool:
        self._skip_blanks()
        is_there = self._peek() == char
        self.at += is_there
        return is_there

    def _skip_blanks(self) -> None:
        while self._peek() == " ":
            self.at += 1

    def _error(self, problem: str) -> ConfigError:
        remedy = "quote a text that holds , [ ] { } or quotes: 'key=\"a, b\"'"
        return ConfigError(f"{self.text!r}, at character {self.at + 1}: {problem}", remedy)


def _convert(text: str) -> Plain:
    """What a bare text stands for."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
