"""Reads what a server answered: every field is checked before it is believed, each fault has its cause.

Nothing but these functions touches untyped JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from workers.errors import PolicyError
from workers.policy.protocol import VersionSpan

Json = Mapping[str, object]


def parse_object(data: bytes) -> Json:
    """The JSON object that a body holds. Raises PolicyError `broken_json`."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PolicyError("broken_json", f"{error}: {_excerpt(data)}") from None
    if not isinstance(value, dict):
        raise PolicyError("broken_json", f"not an object: {_excerpt(data)}")
    return value


def bad(what: str) -> PolicyError:
    return PolicyError("bad_response", what)


def as_object(value: object, name: str) -> Json:
    if not isinstance(value, dict):
        raise bad(f"{name} is not an object")
    return value


def as_list(value: object, name: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise bad(f"{name} is not a list")
    return value


def as_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise bad(f"{name} is not a text")
    return value


def as_int(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad(f"{name} is not an integer")
    return value


def first_choice(body: Json) -> Json:
    """The one choice of an OpenAI-like answer. Raises PolicyError `no_choices`."""
    choices = as_list(body.get("choices"), "choices")
    if not choices:
        raise PolicyError("no_choices", "the server answered with an empty list of choices")
    return as_object(choices[0], "choices[0]")


def as_ids(value: object, name: str) -> NDArray[np.int32]:
    """Token ids: non-negative, at least one. An answer without a token is no sample of any policy."""
    ids = [as_int(item, name) for item in as_list(value, name)]
    if not ids:
        raise bad(f"{name} is empty: the server sampled nothing")
    if min(ids) < 0 or max(ids) > np.iinfo(np.int32).max:
        raise bad(f"{name} holds a number that is no token id")
    return np.asarray(ids, np.int32)


def as_logprobs(values: Sequence[object], count: int) -> NDArray[np.float32]:
    """One finite log-probability for each of `count` tokens. Raises PolicyError `no_logprobs`."""
    if len(values) != count:
        raise PolicyError("no_logprobs", f"{count} tokens, {len(values)} log-probabilities")
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != count or not all(math.isfinite(number) for number in numbers):
        raise PolicyError("no_logprobs", "a sampled token has no finite log-probability")
    return np.minimum(np.asarray(numbers, np.float32), np.float32(0.0))


def version_number(label: object) -> int | None:
    """A server's version label as the integer that it spells, if it spells one."""
    if isinstance(label, bool):
        return None
    if isinstance(label, int):
        return label
    if isinstance(label, str) and label.strip().removeprefix("v").isdecimal():
        return int(label.strip().removeprefix("v"))
    return None


def version_spans(value: object, count: int, fallback: int) -> tuple[VersionSpan, ...]:
    """Spans that tile [0, count), read from `[{version, start, end}, …]`; one where there is no such list.

    Labels that are no number stand for `fallback`.
    """
    if value is None:
        return (VersionSpan(0, count, fallback),)
    spans: list[VersionSpan] = []
    at = 0
    for item in as_list(value, "weight_versions"):
        span = as_object(item, "weight_versions[]")
        start, end = as_int(span.get("start"), "start"), as_int(span.get("end"), "end")
        if start != at or end < start:
            raise bad("weight_versions do not tile the completion")
        number = version_number(span.get("version"))
        if end > start:
            spans.append(VersionSpan(start, end, fallback if number is None else number))
        at = end
    if at != count:
        raise bad("weight_versions do not tile the completion")
    return tuple(spans)


def _excerpt(data: bytes) -> str:
    return data[:200].decode("utf-8", "replace")
