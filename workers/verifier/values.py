"""Plain data as it is written in case files and crosses the pipe: JSON, with tags for what JSON lacks.

null, true, false, finite numbers, text and lists stand for themselves; an object is a dict with text keys,
unless its only key is a tag:

    {"$tuple": […]}  {"$set": […]}  {"$frozenset": […]}  {"$dict": [[key, value], …]}
    {"$float": "nan" | "inf" | "-inf"}  {"$int": "-ff"} (hexadecimal, of any size)
    {"$bytes": "c3a9"}  {"$complex": [real, imaginary]}

The judge never makes a set or a dict of what a solution answered: it would hash with keys chosen to collide.
Reading is bounded in depth and in the number of values, and raises ValueError on anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

MAX_DEPTH = 64
MAX_VALUES = 500_000


@dataclass(frozen=True, slots=True)
class Items:
    """A list, or a tuple."""

    items: tuple[Value, ...]
    is_tuple: bool


@dataclass(frozen=True, slots=True)
class Bag:
    """A set or a frozenset, which are equal in Python where their elements are."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """A dict."""

    pairs: tuple[tuple[Value, Value], ...]


Number: TypeAlias = bool | int | float | complex
Value: TypeAlias = bool | int | float | complex | str | bytes | Items | Bag | Pairs | None

_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def loads(text: str | bytes) -> object:
    """Strict JSON: no NaN, no key twice, no number or nesting beyond what Python takes. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read(raw: object) -> Value:
    """The value that a JSON document stands for."""
    return _Reader().value(raw, 0)


class _Reader:
    def __init__(self) -> None:
        self._left = MAX_VALUES
        self._tags: dict[str, Callable[[object, int], Value]] = {
            "$tuple": lambda raw, depth: Items(self._items(raw, depth), is_tuple=True),
            "$set": lambda raw, depth: Bag(self._items(raw, depth)),
            "$frozenset": lambda raw, depth: Bag(self._items(raw, depth)),
            "$dict": self._dict,
            "$float": lambda raw, _: _float(raw),
            "$int": lambda raw, _: _int(raw),
            "$bytes": lambda raw, _: _bytes(raw),
            "$complex": self._complex,
        }

    def value(self, raw: object, depth: int) -> Value:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if raw is None or isinstance(raw, bool | int | float | str):
            return raw
        if isinstance(raw, list):
            return Items(self._items(raw, depth), is_tuple=False)
        if isinstance(raw, dict):
            return self._object(raw, depth)
        raise ValueError(f"not plain data: {type(raw).__name__}")

    def _object(self, raw: dict[str, object], depth: int) -> Value:
        if len(raw) == 1:
            [(key, content)] = raw.items()
            if key in self._tags:
                return self._tags[key](content, depth)
            if key.startswith("$"):
                known = ", ".join(self._tags)
                raise ValueError(f"unknown tag {key!r} (the tags are {known}; write such a dict as $dict)")
        return Pairs(tuple((key, self.value(item, depth + 1)) for key, item in raw.items()))

    def _items(self, raw: object, depth: int) -> tuple[Value, ...]:
        if not isinstance(raw, list):
            raise ValueError("a tag needs a list here")
        return tuple(self.value(item, depth + 1) for item in raw)

    def _dict(self, raw: object, depth: int) -> Value:
        if not isinstance(raw, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in raw):
            raise ValueError("$dict needs a list of [key, value]")
        return Pairs(tuple((self.value(key, depth + 1), self.value(item, depth + 1)) for key, item in raw))

    def _complex(self, raw: object, depth: int) -> complex:
        parts = self._items(raw, depth)
        if len(parts) != 2 or not all(isinstance(part, int | float) for part in parts):
            raise ValueError("$complex needs two numbers")
        real, imaginary = parts
        assert isinstance(real, int | float)
        assert isinstance(imaginary, int | float)
        try:
            return complex(real, imaginary)
        except OverflowError as error:
            raise ValueError("$complex needs numbers that fit a float") from error


def _float(raw: object) -> float:
    if not isinstance(raw, str) or raw not in _FLOATS:
        raise ValueError('$float needs "nan", "inf" or "-inf"')
    return _FLOATS[raw]


def _int(raw: object) -> int:
    if not isinstance(raw, str) or not raw.removeprefix("-").isascii() or not raw.removeprefix("-").isalnum():
        raise ValueError("$int needs hexadecimal text")
    return int(raw, 16)


def _bytes(raw: object) -> bytes:
    if not isinstance(raw, str):
        raise ValueError("$bytes needs hexadecimal text")
    return bytes.fromhex(raw)


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key comes twice in one object")
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f'{name} is not JSON: write {{"$float": "nan"}} or "inf"')
