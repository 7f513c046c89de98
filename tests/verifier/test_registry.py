"""Every fault of a verifier's table is found at load, with what mends it."""

from __future__ import annotations

import json

import pytest

from tests.verifier.making import task_of
from workers.errors import TaskError
from workers.verifier import registry

CALL = {"module": "solution", "function": "f", "want": 1}


def problems(kind: str, options: dict[str, object], protected: dict[str, str] | None = None) -> list[str]:
    return [str(fault) for fault in registry.faults(task_of(kind, options, protected=protected))]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("calls", {"cases": [CALL]}),
        ("calls", {"cases": [{"module": "a.b", "func": "f.g", "args": [1], "raises": "KeyError"}]}),
        ("calls", {"cases": [{"module": "a", "class": "B", "steps": [["get", 1]], "want": [None]}]}),
        ("calls", {"cases": [CALL], "score": "fraction", "import_from": ["src"]}),
        ("stdio", {"command": ["cat"], "cases": [{"stdin": "a", "stdout": "a"}], "compare": "tokens"}),
        ("match", {"file": "out/a.txt", "gold": "x"}),
        ("match", {"source": "message", "gold": 3, "how": "numeric", "tol": 0.1}),
        ("script", {"command": ["true"], "range": [-1, 1]}),
    ],
)
def test_a_right_table_has_no_fault(kind: str, options: dict[str, object]) -> None:
    assert problems(kind, options) == []


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("cals", {}, "did you mean 'calls'"),
        ("pytest", {}, "not available in this version"),
        ("calls", {"casse": [CALL]}, "did you mean 'cases'"),
        ("calls", {}, "no protected file 'tests/calls.json'"),
        ("calls", {"cases": []}, "not a list of objects, or empty"),
        ("calls", {"cases": [CALL], "score": "some"}, "use one of: all, fraction"),
        ("calls", {"cases": [{"module": "m", "function": "f"}]}, "[0].want"),
        ("calls", {"cases": [{**CALL, "raises": "ValueError"}]}, "and not both"),
        ("calls", {"cases": [{**CALL, "wnat": 1}]}, "[0].wnat"),
        ("calls", {"cases": [{"module": "m", "function": "f", "raises": "ValuError"}]}, "'ValueError'"),
        ("calls", {"cases": [{**CALL, "want": {"$float": "nan"}}]}, "nan_ok"),
        ("calls", {"cases": [{**CALL, "want": {"$tupel": []}}]}, "unknown tag"),
        ("calls", {"cases": [{**CALL, "args": 3}]}, "[0].args"),
        ("calls", {"cases": [{**CALL, "module": "math"}]}, "standard library"),
        ("calls", {"cases": [{**CALL, "module": "a-b"}]}, "not a Python name"),
        ("calls", {"cases": [{**CALL, "tol": "1e-9"}]}, "text where a number belongs"),
        ("calls", {"cases": [CALL], "import_from": ["../x"]}, "inside the workspace"),
        (
            "calls",
            {"cases": [{"module": "m", "class": "C", "steps": [["a"], ["b"]], "want": [1]}]},
            "1 results for 2 steps",
        ),
        ("stdio", {"cases": [{"stdout": ""}]}, "rollcage.verifier.command"),
        ("stdio", {"command": ["cat"], "cases": [{"stdin": "a"}]}, "[0].stdout"),
        (
            "stdio",
            {"command": ["cat"], "cases": [{"stdout": "", "files": {"../a": ""}}]},
            "path not allowed",
        ),
        ("match", {"gold": "x"}, "not both"),
        ("match", {"file": "a", "source": "message", "gold": "x"}, "not both"),
        ("match", {"file": "/etc/passwd", "gold": "x"}, "inside the workspace"),
        ("match", {"file": "a", "gold": "  "}, "blank"),
        ("match", {"file": "a", "gold": "many", "how": "numeric"}, "not a number"),
        ("match", {"file": "a", "gold": "x", "how": "normalized"}, "did you mean 'normalised'"),
        ("script", {}, "no protected file 'tests/test.sh'"),
        ("script", {"command": ["true"], "range": [1, 0]}, "range"),
    ],
)
def test_a_wrong_table_is_refused_with_the_place_and_the_remedy(
    kind: str, options: dict[str, object], said: str
) -> None:
    found = problems(kind, options)
    assert any(said in problem for problem in found), found
    with pytest.raises(TaskError):
        registry.build(task_of(kind, options))


def test_every_fault_of_a_case_file_is_told_at_once() -> None:
    cases = json.dumps([{"module": "m"}, {**CALL, "extra": 1}, {**CALL, "max_s": -1}])
    found = problems("calls", {}, {"calls.json": cases})
    assert len([problem for problem in found if "tests/calls.json" in problem]) >= 4


def test_a_case_file_that_is_not_json_names_itself() -> None:
    [found] = problems("calls", {}, {"calls.json": "[NaN]"})
    assert "tests/calls.json" in found
    assert "not JSON" in found


def test_a_script_with_windows_line_ends_is_refused() -> None:
    [found] = problems("script", {}, {"test.sh": "#!/bin/bash\r\necho 1\r\n"})
    assert "Windows line ends" in found
