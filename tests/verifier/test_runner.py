"""The program in the solution's slot: whatever a solution does, frames say no more than its own values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workers.verifier.calls import PYTHON, runner_text
from workers.verifier.compare import Equality
from workers.verifier.frames import Answer, Answers, Broken, Raised, Returned, read_frames
from workers.verifier.values import read


def asked(root: Path, calls: list[dict[str, object]], total_bytes: int = 1 << 20) -> Answers:
    request = {
        "workspace": str(root),
        "import_from": ["."],
        "frame_bytes": 1 << 18,
        "total_bytes": total_bytes,
        "calls": calls,
    }
    done = subprocess.run(
        [sys.executable, *PYTHON[1:], runner_text()],
        input=json.dumps(request).encode(),
        capture_output=True,
        cwd="/",
        env={},
        timeout=60,
        check=False,
    )
    assert done.stderr == b""
    return read_frames(done.stdout, len(calls))


def call(function: str, *args: object, **kwargs: object) -> dict[str, object]:
    return {"module": "solution", "function": function, "args": list(args), "kwargs": kwargs}


def answers_of(root: Path, source: str, *calls: dict[str, object]) -> tuple[Answer, ...]:
    (root / "solution.py").write_text(source, encoding="utf-8")
    answers = asked(root, list(calls))
    assert answers.is_ready
    return answers.answers


def returned(answer: Answer, raw: object) -> bool:
    return isinstance(answer, Returned) and Equality().holds(read(raw), answer.value)


def test_results_come_back_as_plain_values(tmp_path: Path) -> None:
    source = """
import collections, enum
class Level(enum.IntEnum):
    HIGH = 3
Point = collections.namedtuple("Point", "x y")
def things():
    counts = collections.defaultdict(list); counts[1].append(Level.HIGH)
    return [Point(1, 2), counts, collections.OrderedDict(a=1), 2**200, -0.0, b"x", {1}, None]
"""
    [answer] = answers_of(tmp_path, source, call("things"))
    wanted = [
        {"$tuple": [1, 2]},
        {"$dict": [[1, [3]]]},
        {"a": 1},
        {"$int": f"{2**200:x}"},
        0.0,
        {"$bytes": "78"},
        {"$set": [1]},
        None,
    ]
    assert returned(answer, wanted)


def test_arguments_are_made_afresh_for_each_call(tmp_path: Path) -> None:
    source = "def grow(items, /, by=0):\n    items.append(by)\n    return items\n"
    first, second = answers_of(tmp_path, source, call("grow", [], by=1), call("grow", [], by=1))
    assert returned(first, [1])
    assert returned(second, [1])


def test_steps_are_answered_one_by_one_with_the_values_of_their_moment(tmp_path: Path) -> None:
    source = """
class Box:
    def __init__(self, *items): self.items = list(items)
    def add(self, item): self.items.append(item)
    def all(self): return self.items
    def fail(self): raise KeyError("k")
"""
    steps: dict[str, object] = {"module": "solution", "class": "Box", "init": [1]}
    good = {**steps, "steps": [["all"], ["add", 2], ["all"]]}
    last = {**steps, "steps": [["all"], ["fail"]]}
    early = {**steps, "steps": [["fail"], ["all"]]}
    values, raised, broken = answers_of(tmp_path, source, good, last, early)
    assert returned(values, [[1], None, [1, 2]])
    assert isinstance(raised, Raised)
    assert raised.classes[:2] == ("KeyError", "LookupError")
    assert isinstance(broken, Broken)


@pytest.mark.parametrize(
    "body",
    [
        "return object()",
        "return (item for item in [1])",
        "return lambda: 1",
        "x = []; x.append(x); return x",
        "return 'x' * (1 << 20)",
        "return list(range(500_000))",
    ],
)
def test_what_is_not_plain_or_too_large_is_broken_and_the_next_call_is_answered(
    tmp_path: Path, body: str
) -> None:
    source = f"def odd():\n    {body}\ndef one():\n    return 1\n"
    odd, one = answers_of(tmp_path, source, call("odd"), call("one"))
    assert isinstance(odd, Broken)
    assert returned(one, 1)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise ValueError('at import')", "ValueError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("other = 1", "AttributeError"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_failed_import_is_never_the_exception_that_a_case_wants(
    tmp_path: Path, source: str, why: str
) -> None:
    [answer] = answers_of(tmp_path, source, call("f"))
    assert isinstance(answer, Broken)
    assert why in answer.why


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(0)",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getpid(), 9)",
        "threading.Timer(0.05, os._exit, [0]).start(); time.sleep(30)",
        "signal.signal(signal.SIGALRM, lambda *_: os._exit(0)); signal.alarm(1); time.sleep(30)",
        "os.closerange(0, 100)",
    ],
)
def test_a_process_that_ends_itself_owes_its_answer(tmp_path: Path, body: str) -> None:
    source = f"import os, signal, threading, time\ndef one():\n    return 1\ndef f():\n    {body}\n"
    answers = answers_of(tmp_path, source, call("one"), call("f"), call("one"))
    assert len(answers) == 1
    assert returned(answers[0], 1)


def test_exits_and_prints_of_the_call_are_no_answers_of_its_own(tmp_path: Path) -> None:
    source = """
import sys, os
def leave():
    print("x" * 100000); sys.stderr.write("y" * 100000); os.write(1, b"\\0\\0\\0\\2{}"); sys.exit(0)
def read():
    return sys.stdin.read()
"""
    left, nothing = answers_of(tmp_path, source, call("leave"), call("read"))
    assert isinstance(left, Raised)
    assert left.classes[0] == "SystemExit"
    assert returned(nothing, "")


def test_a_child_that_comes_back_answers_nothing(tmp_path: Path) -> None:
    source = "import os\ndef f():\n    child = os.fork()\n    if child: os.waitpid(child, 0)\n    return 1\n"
    answers = answers_of(tmp_path, source, call("f"), call("f"))
    assert len(answers) == 2
    assert all(returned(answer, 1) for answer in answers)


def test_the_rest_is_left_to_another_process_when_the_answers_are_many(tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("def f():\n    return 'x' * 1000\n", encoding="utf-8")
    answers = asked(tmp_path, [call("f")] * 10, total_bytes=3500)
    assert answers.asks_for_more
    assert len(answers.answers) == 3


def test_a_stale_compiled_file_is_not_run(tmp_path: Path) -> None:
    import os
    import py_compile

    source = tmp_path / "solution.py"
    source.write_text("def f():\n    return 1\n", encoding="utf-8")
    os.utime(source, (1000, 1000))
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    source.write_text("def f():\n    return 2\n", encoding="utf-8")
    os.utime(source, (1000, 1000))
    [answer] = asked(tmp_path, [call("f")]).answers
    assert returned(answer, 2)


def test_nothing_of_the_workspace_is_imported_before_the_runner_is_ready(tmp_path: Path) -> None:
    for name in ("json", "os", "sitecustomize", "usercustomize", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit", encoding="utf-8")
    [answer] = answers_of(tmp_path, "def f():\n    return 1\n", call("f"))
    assert returned(answer, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02{}",
        b"\0\0\0\x04null",
        b"\0\0\0\x05{\xff\xff}}",
    ],
)
def test_forged_starts_are_not_ready(data: bytes) -> None:
    assert read_frames(data, 3) == Answers(False, (), False)


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in (b'{"ready":true}', *bodies))


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b'{"value":1,"raised":[]}',
        b'{"value":NaN}',
        b'{"raised":"ValueError","text":""}',
        b'{"broken":3}',
        b'{"value":1,"value":2}',
        b"[" * 100_000,
        b'{"value":' + b"1" * 5000 + b"}",
    ],
)
def test_a_malformed_frame_ends_the_reading(body: bytes) -> None:
    answers = read_frames(framed(b'{"value":1}', body, b'{"value":1}'), 3)
    assert len(answers.answers) == 1


def test_frames_beyond_the_calls_are_not_read() -> None:
    assert len(read_frames(framed(*[b'{"value":1}'] * 9), 2).answers) == 2
