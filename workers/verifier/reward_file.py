"""Reads what a verifier script wrote: strictly, since a careless reading is a reward that nobody gave.

`reward.txt` is one finite decimal number with white space around it. `reward.json` is a number, or an object
of named numbers: its `reward` if it has one, else its only number, else the mean of all. Anything else raises
ValueError.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from workers.trajectory import RewardPart
from workers.verifier.values import loads

MAX_PARTS = 100
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reward:
    value: float
    parts: tuple[RewardPart, ...] = ()


def from_text(data: bytes) -> Reward:
    text = data.decode("utf-8").strip()
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"not one decimal number: {text[:80]!r}")
    return Reward(_finite(float(text)))


def from_json(data: bytes) -> Reward:
    raw = loads(data)
    if not isinstance(raw, dict):
        return Reward(_number(raw))
    if not raw or len(raw) > MAX_PARTS:
        raise ValueError(f"an object needs 1 to {MAX_PARTS} named numbers")
    parts = tuple(RewardPart(name=name, value=_number(value)) for name, value in raw.items())
    values = [part.value for part in parts]
    total = _number(raw["reward"]) if "reward" in raw else math.fsum(values) / len(values)
    return Reward(_finite(total), parts)


def _number(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError(f"not a number: {str(raw)[:80]!r}")
    try:
        return _finite(float(raw))
    except OverflowError:
        raise ValueError("not a finite number") from None


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value
