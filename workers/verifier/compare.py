"""Whether what came back is what was wanted: Python's `==` on plain values, computed by the judge alone.

Beyond `==`: a wanted list is met by a tuple too (a wanted tuple only by a tuple), `tol` is an absolute
tolerance on every real or complex number outside sets and keys, and a wanted NaN is met by a NaN where the
case says so. A NaN never equals anything else. Sets and keys are matched by a canonical text, so that the
time stays close to linear whatever the solution chose to answer.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from workers.verifier.values import Bag, Items, Number, Pairs, Value


@dataclass(frozen=True, slots=True)
class Equality:
    """How strict a case is."""

    tol: float = 0.0
    nan_ok: bool = False

    def holds(self, want: Value, got: Value) -> bool:
        match want:
            case bool() | int() | float() | complex():
                return isinstance(got, bool | int | float | complex) and self._numbers(want, got)
            case Items():
                return (
                    isinstance(got, Items)
                    and (got.is_tuple or not want.is_tuple)
                    and len(want.items) == len(got.items)
                    and all(map(self.holds, want.items, got.items))
                )
            case Bag():
                return isinstance(got, Bag) and _same_elements(want, got)
            case Pairs():
                return isinstance(got, Pairs) and self._tables(want, got)
            case str() | bytes() | None:
                return type(want) is type(got) and want == got

    def _numbers(self, want: Number, got: Number) -> bool:
        if want == got:
            return True
        if _is_nan(want):
            return self.nan_ok and _is_nan(got)
        if not self.tol:
            return False
        try:
            return abs(got - want) <= self.tol
        except OverflowError:
            return False

    def _tables(self, want: Pairs, got: Pairs) -> bool:
        if len(want.pairs) != len(got.pairs):
            return False
        wanted = {canonical(key): value for key, value in want.pairs}
        for key, value in got.pairs:
            name = canonical(key)
            if name is None or name not in wanted or not self.holds(wanted.pop(name), value):
                return False
        return not wanted


def canonical(value: Value) -> str | None:
    """A text that two hashable values share exactly where Python calls them equal; None for a NaN inside."""
    match value:
        case None:
            return "n"
        case bool() | int() | float() | complex():
            return _canonical_number(value)
        case str():
            return "s" + json.dumps(value)
        case bytes():
            return "b" + value.hex()
        case Items(items=items):
            parts = [canonical(item) for item in items]
            texts = [part for part in parts if part is not None]
            return f"({','.join(texts)})" if len(texts) == len(parts) else None
        case Bag(items=items):
            parts = [canonical(item) for item in items]
            texts = [part for part in parts if part is not None]
            return f"<{','.join(sorted(set(texts)))}>" if len(texts) == len(parts) else None
        case Pairs():
            return None


def _same_elements(want: Bag, got: Bag) -> bool:
    wanted, found = canonical(want), canonical(got)
    return wanted is not None and wanted == found


def _canonical_number(value: Number) -> str | None:
    if isinstance(value, complex):
        if value.imag != 0:
            return None if _is_nan(value) else f"c{value.real + 0.0!r},{value.imag!r}"
        value = value.real
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if not value.is_integer():
            return f"f{value!r}"
        value = int(value)
    return f"i{int(value):x}"


def _is_nan(value: Number) -> bool:
    if isinstance(value, complex):
        return math.isnan(value.real) or math.isnan(value.imag)
    return isinstance(value, float) and math.isnan(value)
