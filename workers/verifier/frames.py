"""What a runner answered, read from its bytes: bounded, typed, and believed for nothing but the values.

Whatever is cut short, malformed or too large ends the reading there; what came whole before it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from workers.verifier.values import Value, loads, read

MAX_FRAME_BYTES = 1 << 20
MAX_TOTAL_BYTES = 4 << 20
MAX_TEXT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Returned:
    value: Value


@dataclass(frozen=True, slots=True)
class Raised:
    """The built-in classes that the exception is an instance of, the nearest first."""

    classes: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    """No value and no exception: nothing to call, not plain data, or a process that ended."""

    why: str


Answer: TypeAlias = Returned | Raised | Broken


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one process. `is_ready`: it started; `asks_for_more`: the rest wants another process."""

    is_ready: bool
    answers: tuple[Answer, ...]
    asks_for_more: bool


def read_frames(data: bytes, limit: int) -> Answers:
    """At most `limit` answers."""
    is_ready, asks_for_more = False, False
    answers: list[Answer] = []
    for raw in _bodies(data):
        if not is_ready:
            if raw != {"ready": True}:
                break
            is_ready = True
        elif len(answers) == limit:
            break
        elif raw == {"more": True}:
            asks_for_more = True
            break
        else:
            answer = _answer(raw)
            if answer is None:
                break
            answers.append(answer)
    return Answers(is_ready, tuple(answers), asks_for_more)


def _bodies(data: bytes) -> Iterator[object]:
    position = 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        end = position + 4 + size
        if size > MAX_FRAME_BYTES or end > len(data):
            return
        try:
            yield loads(data[position + 4 : end])
        except ValueError:
            return
        position = end


def _answer(raw: object) -> Answer | None:
    match raw:
        case {"value": value, **rest} if not rest:
            try:
                return Returned(read(value))
            except ValueError as error:
                return Broken(f"not plain data: {error}")
        case {"raised": [*names], "text": str(text), **rest} if not rest:
            classes = tuple(name for name in names if isinstance(name, str))
            return Raised(classes, text[:MAX_TEXT_CHARS])
        case {"broken": str(why), **rest} if not rest:
            return Broken(why[:MAX_TEXT_CHARS])
    return None
