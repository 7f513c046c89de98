"""Plain data: read strictly, compared as Python would, at a cost that the solution can't choose."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.verifier import runner
from workers.verifier.compare import Equality, canonical
from workers.verifier.values import Bag, Value, loads, read

EXACT = Equality()

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(1 << 300), max_value=1 << 300)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
HASHABLE = st.recursive(
    SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4), max_leaves=6
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.frozensets(HASHABLE, max_size=4)
        | st.sets(HASHABLE, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=4)
    ),
    max_leaves=12,
)


def crossed(value: object) -> Value:
    """A value as the judge sees it after the pipe."""
    return read(loads(json.dumps(runner.Encoder().value(value))))


def want(text: str) -> Value:
    return read(loads(text))


@given(PLAIN)
def test_a_value_that_crossed_equals_itself(value: object) -> None:
    assert EXACT.holds(crossed(value), crossed(value))


@given(PLAIN, PLAIN)
def test_crossed_values_are_equal_where_python_says_so(one: object, other: object) -> None:
    if not isinstance(one, list | dict) and not isinstance(other, tuple):
        assert EXACT.holds(crossed(one), crossed(other)) == (one == other)


@given(HASHABLE, HASHABLE)
def test_canonical_texts_agree_with_python(one: object, other: object) -> None:
    assert (canonical(crossed(one)) == canonical(crossed(other))) == (one == other)


@given(PLAIN)
def test_what_crossed_can_be_made_again(value: object) -> None:
    assert runner.decode(json.loads(json.dumps(runner.Encoder().value(value)))) == value


@pytest.mark.parametrize(
    ("wanted", "got", "is_equal"),
    [
        ("[1, 2]", (1, 2), True),
        ('{"$tuple": [1, 2]}', [1, 2], False),
        ('{"$tuple": [1, 2]}', (1, 2), True),
        ("1", True, True),
        ("1", "1", False),
        ("[1]", [1, 2], False),
        ("0.0", -0.0, True),
        ('{"$float": "inf"}', float("inf"), True),
        ('{"$float": "inf"}', 1e308, False),
        ("0.3", 0.1 + 0.2, False),
        ('{"$set": [1, 2]}', frozenset({2, 1}), True),
        ('{"$set": [1, 2]}', [1, 2], False),
        ('{"$set": [[1, 2]]}', {(1, 2)}, True),
        ('{"$dict": [[[0, 1], "a"]]}', {(0, 1): "a"}, True),
        ('{"1": 2}', {1: 2}, False),
        ('{"$dict": [[1, 2]]}', {1.0: 2}, True),
        ('{"$bytes": "ff00"}', b"\xff\x00", True),
        ('{"$bytes": "61"}', "a", False),
        ('{"$complex": [0, 1]}', 1j, True),
        ('{"$int": "-ffffffffffffffffffffffff"}', -0xFFFFFFFFFFFFFFFFFFFFFFFF, True),
        ("null", None, True),
        ("null", 0, False),
        ('"é"', "e\u0301", False),
    ],
)
def test_equality_is_pythons_own_but_for_tuples_that_meet_lists(
    wanted: str, got: object, is_equal: bool
) -> None:
    assert EXACT.holds(want(wanted), crossed(got)) is is_equal


def test_a_nan_equals_nothing_unless_the_case_wants_it() -> None:
    nan = crossed(float("nan"))
    assert not EXACT.holds(nan, nan)
    assert not Equality(tol=1e9).holds(crossed(0.6), nan)
    assert not Equality(nan_ok=True).holds(crossed(0.6), nan)
    assert Equality(nan_ok=True).holds(nan, nan)
    assert not Equality(nan_ok=True).holds(nan, crossed(0.6))


def test_the_tolerance_is_absolute_and_reaches_into_containers() -> None:
    near = Equality(tol=1e-6)
    assert near.holds(crossed({"a": [0.3, (1.0,)]}), crossed({"a": [0.1 + 0.2, (1,)]}))
    assert not near.holds(crossed([0.0]), crossed([1e-5]))
    assert not near.holds(crossed(1.0), crossed(10**400))
    assert not near.holds(crossed(1.0), crossed("1.0"))
    assert not near.holds(crossed(float("inf")), crossed(float("-inf")))


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        '{"a": 1, "a": 2}',
        '{"$tuple": 3}',
        '{"$tupel": []}',
        '{"$dict": [[1]]}',
        '{"$float": "1"}',
        '{"$int": "zz"}',
        '{"$bytes": "f"}',
        '{"$complex": [1]}',
        "[" * 100_000,
        "[" * 70 + "]" * 70,
        "1" * 5000,
    ],
)
def test_what_is_not_plain_data_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read(loads(text))


def test_keys_that_collide_in_pythons_tables_cost_the_judge_nothing() -> None:
    colliding = Bag(tuple(number * ((1 << 61) - 1) for number in range(100_000)))
    started_s = time.monotonic()
    assert not EXACT.holds(crossed({1, 2, 3}), colliding)
    assert EXACT.holds(colliding, colliding)
    assert time.monotonic() - started_s < 5


def test_overridden_methods_of_a_subclass_are_never_run() -> None:
    class Lying(list):  # type: ignore[type-arg]
        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    class Text(str):
        def __str__(self) -> str:
            raise AssertionError

    class Whole(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __int__(self) -> int:
            raise AssertionError

        def __hash__(self) -> int:
            return 0

    assert EXACT.holds(want('["a", 3]'), crossed(Lying([Text("a"), Whole(3)])))
    assert not EXACT.holds(want("4"), crossed(Whole(3)))
