"""The override syntax, as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.overrides import Operation, Plain, expand, parse
from workers.errors import ConfigError


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("a.b=1", 1),
        ("a=-2", -2),
        ("a=5_000", 5000),
        ("a=1e-3", 0.001),
        ("a=true", True),
        ("a=null", None),
        ("a=", ""),
        ("a=on", "on"),
        ("a=two words", "two words"),
        ("a='1,2'", "1,2"),
        ('a="say \\"hi\\""', 'say "hi"'),
        ("a=x\\,y", "x,y"),
        ("a=[1, 'b', c]", [1, "b", "c"]),
        ("a=[]", []),
        ("a={x: 1, y: {z: http://h:80/v1}}", {"x": 1, "y": {"z": "http://h:80/v1"}}),
        ("a=http://127.0.0.1:8000/v1?x=1&y=[2]", "http://127.0.0.1:8000/v1?x=1&y=[2]"),
        ("a=${oc.env:HOME,x}/y", "${oc.env:HOME,x}/y"),
        ("a=it's", "it's"),
    ],
)
def test_a_value_is_read_as_it_is_meant(argument: str, value: Plain) -> None:
    (element,) = parse(argument).elements
    assert element.value == value


def test_not_a_number_and_infinity_are_numbers() -> None:
    assert math.isnan(float(str(parse("a=nan").elements[0].value)))
    assert parse("a=-inf").elements[0].value == -math.inf


def test_a_bare_value_keeps_its_spelling_and_a_quoted_one_is_a_text() -> None:
    assert parse("a=007").elements[0].text == "007"
    assert parse("a='7'").elements[0].value == "7"


@pytest.mark.parametrize(
    ("argument", "operation"),
    [("a=1", Operation.SET), ("+a=1", Operation.ADD), ("++a=1", Operation.FORCE), ("~a", Operation.DELETE)],
)
def test_a_sign_says_what_to_do(argument: str, operation: Operation) -> None:
    assert parse(argument).operation is operation


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("a=1,2,3", [1, 2, 3]),
        ("a='x,y',z", ["x,y", "z"]),
        ("a=choice(x, y)", ["x", "y"]),
        ("a=range(1,4)", [1, 2, 3]),
        ("a=range(3,0,-1)", [3, 2, 1]),
        ("a=range(0,1,0.5)", [0, 0.5]),
        ("a=[1,2],[3]", [[1, 2], [3]]),
    ],
)
def test_several_values_are_a_sweep(argument: str, values: list[Plain]) -> None:
    override = parse(argument)
    assert override.is_sweep
    assert [element.value for element in override.elements] == values


def test_a_sweep_is_the_product_with_the_last_key_fastest() -> None:
    points = list(expand([parse("a=1,2"), parse("b=x,y"), parse("~c")]))
    assert [(p[0].elements[0].value, p[1].elements[0].value) for p in points] == [
        (1, "x"),
        (1, "y"),
        (2, "x"),
        (2, "y"),
    ]
    assert all(point[2].operation is Operation.DELETE for point in points)


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "a",
        "+a",
        "=1",
        "a b=1",
        " a=1",
        "a..b=1",
        "--a=1",
        "a=[1",
        "a={x}",
        "a='x",
        "a='x'y",
        "a=${x",
        "a=1,",
        "a=range(0,inf)",
        "a=range(0,1,0)",
        "a=range(x)",
        "a=range(0,1e9)",
        "a=choice(1",
    ],
)
def test_nonsense_is_refused_with_the_argument_in_the_message(argument: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argument)
    assert repr(argument) in str(caught.value)
    assert caught.value.remedy


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_can_be_quoted(text: str) -> None:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    assert parse(f"a='{quoted}'").elements[0].value == text


@given(st.text(max_size=60))
def test_any_argument_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ConfigError:
        pass
