"""Reads the protected files that a verifier's table names, every fault collected."""

from __future__ import annotations

from workers.archive import EntryKind, unpack
from workers.table import Findings, Table, suggestion
from workers.task import Task
from workers.verifier.values import loads

PREFIX = "tests/"


def option_table(task: Task, findings: Findings) -> Table:
    """The settings in the verifier's own table. Raises ValueError where its text is not a JSON object."""
    values = loads(task.verifier.options_json)
    if not isinstance(values, dict):
        raise ValueError("a verifier's options must be a JSON object")
    return Table(values, findings, "task.toml", "rollcage.verifier.")


def protected_file(task: Task, table: Table, key: str, path: str) -> bytes | None:
    """The bytes of a protected file, named as it lies in the task's folder; None leaves a fault behind."""
    files = {e.path: e.data for e in unpack(task.protected) if e.kind is EntryKind.FILE}
    name = path.removeprefix(PREFIX)
    if name in files:
        return files[name]
    if path in files:
        return files[path]
    known = sorted(PREFIX + name for name in files)
    listed = ", ".join(known[:10]) or "none"
    table.fault(key, f"no protected file {path!r}", f"{suggestion(path, known)}protected files: {listed}")
    return None


def read_cases(task: Task, table: Table, default: str) -> tuple[tuple[dict[str, object], ...], str]:
    """The cases under the key `cases`, a list in place or the name of a JSON file, and where they lie."""
    raw = table.values.get("cases", default)
    if isinstance(raw, list):
        return _objects(raw, table, table.file), table.file
    if not isinstance(raw, str):
        table.fault("cases", "not a list of cases", f'write the list, or the name of its file, "{default}"')
        return (), table.file
    data = protected_file(task, table, "cases", raw)
    if data is None:
        return (), raw
    try:
        return _objects(loads(data), table, raw), raw
    except ValueError as error:
        table.findings.add(raw, "", "", f"not usable as JSON: {error}", "mend the file")
        return (), raw


def _objects(raw: object, table: Table, file: str) -> tuple[dict[str, object], ...]:
    if isinstance(raw, list) and raw and all(isinstance(case, dict) for case in raw):
        return tuple(raw)
    table.findings.add(file, "cases", "", "not a list of objects, or empty", "write one object a case")
    return ()
