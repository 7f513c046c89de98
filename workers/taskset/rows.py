"""A task set in one file: JSON Lines or Parquet, one row a task.

A row: `id`, `instruction`, `verifier`, and optionally `files` and `protected` ({path: text}; `protected` is
what a folder's `tests/` would hold), `solution` (a script), `attacks` and `honest` ({name: script}),
`agent_timeout_s`, `limits`, the keys of `[rollcage]`, and `metadata`, which is not looked at. In Parquet a
structured column may be a struct, a map, or JSON text. Every line is read, whatever the lines before it hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from workers.archive import EMPTY, Archive
from workers.errors import ConfigError
from workers.table import Findings, Table, is_encodable
from workers.task import Script, VerifierSpec
from workers.taskset.assembly import Pieces
from workers.taskset.files import MAX_TREE_BYTES, pack_texts
from workers.taskset.folder import Reading
from workers.taskset.settings import (
    DEFAULT_AGENT_TIMEOUT_S,
    DEFAULT_VERIFIER_TIMEOUT_S,
    OUR_KEYS,
    TIMEOUT,
    Defaults,
    read_limits,
    read_settings,
    read_verifier,
)

SUFFIXES = (".jsonl", ".parquet")
MAX_LINE_BYTES = 64 << 20
MAX_ID_CHARS = 200
_STRUCTURED = ("files", "protected", "verifier", "attacks", "honest", "limits", "tools", "metadata")
_ROW_KEYS = (
    "id", "instruction", "files", "protected", "solution", "attacks", "honest", "agent_timeout_s", "metadata",
)  # fmt: skip
_LIMIT_KEYS = ("cpus", "memory_mb", "storage_mb", "gpus", "allow_internet", "inodes", "pids", "open_files")


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it was read, and where it stands. `problem` is set where it could not be read at all."""

    place: str
    values: Mapping[str, object]
    problem: str = ""

    @property
    def task(self) -> str:
        """The row's id where it has a usable one, else its place."""
        task_id = self.values.get("id")
        return task_id if isinstance(task_id, str) and task_id and is_encodable(task_id) else self.place


def read_rows(path: Path) -> Iterator[Row]:
    """Raises ConfigError where the file as a whole can't be read."""
    try:
        yield from _jsonl(path) if path.suffix == ".jsonl" else _parquet(path)
    except OSError as error:
        raise ConfigError(f"can't read the task set {path}: {error.strerror}", "check the path") from error


def read_row(row: Row, path: Path, reading: Reading, findings: Findings) -> tuple[Pieces | None, bool]:
    """The pieces of a task (None where something is wrong), and whether its instruction is overlong."""
    table = Table(row.values, findings, row.place)
    if row.problem:
        findings.add(row.place, "", "", row.problem, "write one JSON object a line")
        return None, False
    table.refuse_unknown((*_ROW_KEYS, *OUR_KEYS), "put data of your own under `metadata`")
    task_id = _task_id(table)
    instruction = table.text("instruction", "")
    if not instruction.strip() and (
        isinstance(row.values.get("instruction"), str) or "instruction" not in table
    ):
        table.fault("instruction", "missing, empty or blank", "write what the agent is to do")
    limits = table.table("limits")
    limits.refuse_unknown(_LIMIT_KEYS)
    pieces = Pieces(
        task_id=task_id,
        task_set=reading.task_set,
        source=f"{path}: {row.place}",
        instruction=instruction,
        workspace=_files(table, "files"),
        settings=read_settings(table, Defaults()),
        limits=read_limits(limits, limits, reading.caps),
        agent_timeout_s=table.number("agent_timeout_s", DEFAULT_AGENT_TIMEOUT_S, TIMEOUT),
        verifier=_verifier(table) or VerifierSpec(kind=""),
        protected=_files(table, "protected"),
        solution=Script("solve", table.text("solution", "")) if "solution" in table else None,
        attacks=_scripts(table, "attacks"),
        honest=_scripts(table, "honest"),
    )
    is_overlong = len(instruction.encode()) > reading.limit_instruction_bytes
    return (None if findings.faults else pieces), is_overlong


def _task_id(table: Table) -> str:
    task_id = table.text("id", "")
    if not task_id or len(task_id) > MAX_ID_CHARS or not task_id.isprintable() or task_id != task_id.strip():
        remedy = f"give a printable text of at most {MAX_ID_CHARS} characters, without spaces at its ends"
        table.fault("id", "missing or not usable as an id", remedy)
    return task_id


def _verifier(table: Table) -> VerifierSpec | None:
    if "verifier" not in table:
        table.fault("verifier", "nothing judges this task", "add a verifier table with its kind")
        return None
    return read_verifier(table.table("verifier"), DEFAULT_VERIFIER_TIMEOUT_S)


def _files(table: Table, key: str) -> Archive:
    files = table.table(key)
    texts = {path: files.text(path, "") for path in files.values}
    if sum(map(len, texts.values())) > MAX_TREE_BYTES:
        table.findings.add(
            table.file, key, "", f"more than {MAX_TREE_BYTES} bytes", "use task folders and an image"
        )
        return EMPTY
    try:
        return pack_texts(texts)
    except ValueError as error:
        table.findings.add(
            table.file, key, "", str(error), "use relative paths without .., each a file or a folder"
        )
        return EMPTY


def _scripts(table: Table, key: str) -> tuple[Script, ...]:
    scripts = table.table(key)
    return tuple(Script(name, scripts.text(name, "")) for name in sorted(scripts.values))


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            place = f"line {number}"
            if len(line) > MAX_LINE_BYTES:
                yield Row(place, {}, f"longer than {MAX_LINE_BYTES} bytes")
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
            elif line.strip():
                yield _json_row(place, line)


def _json_row(place: str, line: bytes) -> Row:
    try:
        values = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Row(place, {}, f"broken JSON: {error}")
    if not isinstance(values, dict):
        return Row(place, {}, "not a JSON object")
    return Row(place, values)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parquet(path: Path) -> Iterator[Row]:
    # Late: only who loads such a file needs pyarrow.
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=256)
        number = 0
        for batch in batches:
            for values in batch.to_pylist():
                number += 1
                yield _parquet_row(f"row {number}", values)
    except pyarrow.ArrowException as error:
        raise ConfigError(f"can't read the task set {path}: {error}", "write it again as Parquet") from error


def _parquet_row(place: str, values: dict[str, object]) -> Row:
    found: dict[str, object] = {}
    for key, value in values.items():
        if value is None:
            continue
        try:
            found[key] = _structure(value) if key in _STRUCTURED else value
        except ValueError as error:
            return Row(place, {"id": values.get("id")}, f"broken JSON in {key}: {error}")
    return Row(place, found)


def _structure(value: object) -> object:
    """JSON text parsed, a map's pairs as an object, a struct without the fields that this row lacks."""
    if isinstance(value, str):
        return json.loads(value, parse_constant=_refuse_constant)
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    if isinstance(value, list) and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return dict(value)
    return value
