"""The program that calls a solution: it runs inside the solution's slot and knows no wanted value.

It is passed to the image's own interpreter as text, so it needs nothing but Python 3.8's standard library.
On stdin it reads one JSON object: `workspace`, `import_from`, `frame_bytes`, `total_bytes`, `calls`. On what
was its stdout it writes frames, each four bytes of length (big-endian) and JSON: first `{"ready": true}`,
before any code of the solution could run, then for each call in order one of

    {"value": …}  {"raised": [names of built-in classes], "text": …}  {"broken": why}

and `{"more": true}` where the answers would pass `total_bytes`: the rest then needs a process of its own.
Everything in this process belongs to the solution, so a frame proves nothing but its own value. Results are
read by the built-in types' own accessors: what a subclass overrides is not run.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place]

import builtins
import importlib
import json
import math
import os
from collections.abc import Callable
from typing import Any, BinaryIO

MAX_DEPTH = 60
MAX_VALUES = 400_000
MAX_TEXT = 200
SMALL_INT_BITS = 64


class Unplain(Exception):
    """A result that is not plain data, or too much of it."""


class Broken(Exception):
    """There was nothing to call, or it failed before the call that counts."""


class Encoder:
    """Writes one result as tagged JSON data."""

    def __init__(self) -> None:
        self.left = MAX_VALUES

    def value(self, item: Any, depth: int = 0) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Unplain("too many values")
        if depth > MAX_DEPTH:
            raise Unplain("nested too deeply")
        if item is None or item is True or item is False:
            return item
        kind = type(item)
        for base, write in self._writers():
            if type.__subclasscheck__(base, kind):
                return write(item, depth + 1)
        if kind.__module__.split(".")[0] == "numpy" and hasattr(kind, "tolist"):
            return self.value(item.tolist(), depth + 1)
        raise Unplain("a " + kind.__name__ + " is not plain data")

    def _writers(self) -> list[tuple[type, Callable[[Any, int], Any]]]:
        return [
            (int, self._int),
            (float, self._float),
            (str, lambda item, _: str.__str__(item)),
            (list, lambda item, depth: self._items(list.__iter__(item), depth)),
            (tuple, lambda item, depth: {"$tuple": self._items(tuple.__iter__(item), depth)}),
            (dict, self._dict),
            (set, lambda item, depth: {"$set": self._items(set.__iter__(item), depth)}),
            (frozenset, lambda item, depth: {"$frozenset": self._items(frozenset.__iter__(item), depth)}),
            (bytes, lambda item, _: {"$bytes": bytes.hex(item)}),
            (bytearray, lambda item, _: {"$bytes": bytearray.hex(item)}),
            (complex, self._complex),
        ]

    def _int(self, item: Any, _: int) -> Any:
        plain = int.__int__(item)
        return plain if plain.bit_length() <= SMALL_INT_BITS else {"$int": format(plain, "x")}

    def _float(self, item: Any, _: int) -> Any:
        plain = float.__float__(item)
        if math.isfinite(plain):
            return plain
        return {"$float": "nan" if plain != plain else "inf" if plain > 0 else "-inf"}

    def _complex(self, item: Any, depth: int) -> Any:
        plain = complex.__add__(item, 0j)
        return {"$complex": [self._float(plain.real, depth), self._float(plain.imag, depth)]}

    def _items(self, items: Any, depth: int) -> list[Any]:
        return [self.value(item, depth) for item in items]

    def _dict(self, item: Any, depth: int) -> Any:
        pairs = dict.items(item)
        return {"$dict": [[self.value(key, depth), self.value(value, depth)] for key, value in pairs]}


def decode(raw: Any) -> Any:
    """Makes an argument of tagged JSON data, a fresh one each time."""
    if isinstance(raw, list):
        return [decode(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    if len(raw) == 1:
        ((tag, content),) = raw.items()
        if tag in DECODERS:
            return DECODERS[tag](content)
    return {key: decode(item) for key, item in raw.items()}


def decode_key(raw: Any) -> Any:
    """A list can't be a key or an element: there it stands for a tuple."""
    return tuple(decode_key(item) for item in raw) if isinstance(raw, list) else decode(raw)


DECODERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda raw: tuple(decode(item) for item in raw),
    "$set": lambda raw: {decode_key(item) for item in raw},
    "$frozenset": lambda raw: frozenset(decode_key(item) for item in raw),
    "$dict": lambda raw: {decode_key(key): decode(item) for key, item in raw},
    "$float": float,
    "$int": lambda raw: int(raw, 16),
    "$bytes": bytes.fromhex,
    "$complex": lambda raw: complex(*(decode(part) for part in raw)),
}


def find(module: str, path: str) -> Any:
    try:
        found = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        return found
    except BaseException as error:
        raise Broken("can't get " + path + " from " + module + ": " + describe(error)) from None


def describe(error: BaseException) -> str:
    try:
        return (type(error).__name__ + ": " + str(error))[:MAX_TEXT]
    except BaseException:
        return type(error).__name__[:MAX_TEXT]


def run_function(call: dict[str, Any]) -> Any:
    function = find(call["module"], call["function"])
    arguments = decode(call["args"])
    named = {name: decode(item) for name, item in call["kwargs"].items()}
    return Encoder().value(function(*arguments, **named))


def run_steps(call: dict[str, Any]) -> Any:
    made = find(call["module"], call["class"])
    steps = call["steps"]
    try:
        subject = made(*decode(call["init"]))
        results = [run_step(subject, step) for step in steps[:-1]]
    except Exception as error:
        raise Broken("before the last step: " + describe(error)) from None
    return results + [run_step(subject, step) for step in steps[-1:]]


def run_step(subject: Any, step: list[Any]) -> Any:
    return Encoder().value(getattr(subject, step[0])(*decode(step[1:])))


def answer(call: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": run_function(call) if "function" in call else run_steps(call)}
    except (Broken, Unplain) as error:
        return {"broken": str(error)}
    except BaseException as error:
        ours = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == builtins.__name__]
        return {"raised": ours, "text": describe(error)}


def frame(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    return len(body).to_bytes(4, "big") + body


def take_descriptors() -> tuple[bytes, BinaryIO]:
    """Keep the pipe to ourselves; the solution prints to nowhere and reads nothing."""
    asked = sys.stdin.buffer.read()
    pipe = os.fdopen(os.dup(1), "wb", 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return asked, pipe


def main() -> None:
    asked, pipe = take_descriptors()
    pid, write = os.getpid(), pipe.write
    write(frame({"ready": True}))
    request = json.loads(asked)
    os.chdir(request["workspace"])
    roots = [os.path.join(request["workspace"], place) for place in request["import_from"]]
    sys.path[:0] = [os.path.normpath(root) for root in roots]
    written = 0
    for call in request["calls"]:
        data = frame(answer(call))
        if len(data) > request["frame_bytes"]:
            data = frame({"broken": "the result is too large"})
        if os.getpid() != pid:
            os._exit(0)
        if written + len(data) > request["total_bytes"]:
            write(frame({"more": True}))
            break
        written += len(data)
        while data:
            data = data[write(data) or 0 :]
    os._exit(0)


if __name__ == "__main__":
    main()
