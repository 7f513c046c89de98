"""Rows: JSON Lines and Parquet give the same tasks, and one bad row never hides another's fault."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from workers.archive import unpack
from workers.errors import ConfigError, Fault, TaskError
from workers.task import Split
from workers.taskset import Caps, load

CAPS = Caps(memory_mb=65_536, cpus=64)
VERIFIER: dict[str, object] = {"kind": "match", "file": "a.txt", "gold": "42", "how": "exact", "timeout_s": 5}


def row(task_id: str = "t/1", **more: object) -> dict[str, object]:
    return {"id": task_id, "instruction": "Say 42.", "verifier": VERIFIER, **more}


def jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in rows))
    return path


def faults_of(path: Path) -> tuple[Fault, ...]:
    with pytest.raises(TaskError) as caught:
        load(path, caps=CAPS)
    return caught.value.faults


FULL = row(
    files={"src/a.py": "x = 1\r\n", "run.sh": "#!/bin/sh\n"},
    protected={"calls.json": "[]"},
    solution="echo 42 > a.txt\n",
    attacks={"empty": "touch a.txt"},
    honest={"spaces": "echo ' 42' > a.txt"},
    split="eval",
    tools=["run"],
    answer_file="a.txt",
    agent_timeout_s=9.0,
    limits={"memory_mb": 128, "pids": 8},
    metadata={"source": "here"},
)


def test_a_full_row_becomes_a_whole_task(tmp_path: Path) -> None:
    (task,) = load(jsonl(tmp_path, FULL), caps=CAPS).tasks
    assert (task.task_id, task.public.task_set, task.public.split) == ("t/1", "rows", Split.EVAL)
    files = {entry.path: (entry.data, entry.mode) for entry in unpack(task.public.workspace)}
    assert files == {
        "run.sh": (b"#!/bin/sh\n", 0o755),
        "src": (b"", 0o755),
        "src/a.py": (b"x = 1\r\n", 0o644),
    }
    assert [entry.path for entry in unpack(task.protected)] == ["calls.json"]
    assert task.solution is not None
    assert (task.attacks[0].name, task.honest[0].body) == ("empty", "echo ' 42' > a.txt")
    assert (task.public.agent_timeout_s, task.verifier.timeout_s) == (9.0, 5.0)
    assert (task.public.limits.memory_mb, task.public.limits.pids) == (128, 8)
    assert task.source.endswith("rows.jsonl: line 1")


@pytest.mark.parametrize("as_json_text", [True, False])
def test_parquet_rows_are_the_same_tasks(tmp_path: Path, as_json_text: bool) -> None:
    structured = ("files", "protected", "verifier", "attacks", "honest", "limits", "metadata")
    rows = [FULL, row("t/2")]
    flat = [
        {
            key: json.dumps(value) if as_json_text and key in structured else value
            for key, value in item.items()
        }
        for item in rows
    ]
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat), path)
    by_parquet = load(path, caps=CAPS)
    by_jsonl = load(jsonl(tmp_path, *rows), caps=CAPS)
    assert by_parquet.digest == by_jsonl.digest
    assert [task.public for task in by_parquet.tasks] == [task.public for task in by_jsonl.tasks]


def test_a_parquet_map_of_files_is_read(tmp_path: Path) -> None:
    text = pyarrow.string()
    table = pyarrow.table(
        {
            "id": ["a"],
            "instruction": ["Do it."],
            "files": pyarrow.array([[("x/y.txt", "1")]], pyarrow.map_(text, text)),
            "verifier": [json.dumps(VERIFIER)],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    (task,) = load(tmp_path / "m.parquet", caps=CAPS).tasks
    assert [entry.path for entry in unpack(task.public.workspace)] == ["x", "x/y.txt"]


@pytest.mark.parametrize(
    ("bad", "key", "words"),
    [
        (row(anwser_file="a"), "anwser_file", "answer_file"),
        (row(tools=["rum"]), "tools", "run"),
        (row(files={"../x": ""}), "files", "relative"),
        (row(files={"/x": ""}), "files", "relative"),
        (row(files={"a": "", "a/b": ""}), "files", "a file and a folder"),
        (row(files={"a": 3}), "files.a", "not text"),
        (row(files=["a"]), "files", "not a table"),
        (row(agent_timeout_s="60"), "agent_timeout_s", "without quotes"),
        (row(agent_timeout_s=-1), "agent_timeout_s", "more than 0"),
        (row(limits={"memory_mb": 99_999_999}), "limits.memory_mb", "at most 65536"),
        (row(limits={"memroy_mb": 1}), "limits.memroy_mb", "memory_mb"),
        (row(instruction=" \n"), "instruction", "blank"),
        (row(instruction=7), "instruction", "not text"),
        (row(instruction="\ud800"), "instruction", "surrogate"),
        (row(" t"), "id", "spaces"),
        (row("a\nb"), "id", "printable"),
        ({"instruction": "x", "verifier": VERIFIER}, "id", "missing"),
        ({"id": "a", "verifier": VERIFIER}, "instruction", "missing"),
        ({"id": "a", "instruction": "x"}, "verifier", "nothing judges"),
        (row(verifier={"file": "a"}), "verifier.kind", "no kind"),
    ],
)
def test_a_wrong_value_names_its_row_its_key_and_what_would_be_right(
    tmp_path: Path, bad: object, key: str, words: str
) -> None:
    faults = faults_of(jsonl(tmp_path, row("good"), bad))
    assert {(fault.file, fault.key) for fault in faults} == {("line 2", key)}
    assert words in str(faults[0])


def test_broken_lines_are_all_named_and_the_rest_is_still_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path, row("a"), "{", "", "[1]", '{"id": NaN}', row("b"))
    assert [fault.file for fault in faults_of(path)] == ["line 2", "line 4", "line 5"]
    skipped = load(path, on_bad_task="skip", caps=CAPS)
    assert [task.task_id for task in skipped.tasks] == ["a", "b"]
    assert len(skipped.faults) == 3


def test_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(jsonl(tmp_path, row("a:b"), row("a:b")))
    assert (fault.task, fault.key, fault.file) == ("a:b", "id", "line 2")


def test_overlong_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    loaded = load(
        jsonl(tmp_path, row("a"), row("b", instruction="é" * 60)), limit_instruction_bytes=100, caps=CAPS
    )
    assert [task.task_id for task in loaded.tasks] == ["a"]
    assert [drop.task_id for drop in loaded.dropped] == ["b"]


def test_a_file_that_is_not_parquet_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(ConfigError, match="can't read"):
        load(tmp_path / "x.parquet")


def test_an_empty_file_is_no_task_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task in"):
        load(jsonl(tmp_path))
