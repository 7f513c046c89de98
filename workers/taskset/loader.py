"""Loads a task set whole or says everything that is wrong with it.

Order is that of the folders' names, or of the rows. An id comes once. A task with any fault is never among
the tasks. A task whose instruction is overlong is left out and counted, before any sandbox starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workers.errors import ConfigError, Fault, TaskError
from workers.table import Findings
from workers.task import Task
from workers.taskset.assembly import Pieces, assemble, digest_of_set
from workers.taskset.folder import TASK_FILE, Reading, is_task_folder, read_folder
from workers.taskset.rows import SUFFIXES, read_row, read_rows
from workers.taskset.settings import Caps
from workers.verifier import registry

OnBadTask = Literal["error", "skip"]
DEFAULT_LIMIT_INSTRUCTION_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Dropped:
    """A task that was left out though nothing is wrong with it, and why: `overlong`."""

    task_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TaskSet:
    """What was loaded. `faults` is empty unless bad tasks were skipped. `digest` is the set's version."""

    name: str
    tasks: tuple[Task, ...]
    faults: tuple[Fault, ...]
    dropped: tuple[Dropped, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class _Read:
    """One task as far as it came. `file` is what names it: its `task.toml`, or its row."""

    task_id: str
    file: str
    pieces: Pieces | None
    is_overlong: bool
    findings: Findings


def load(
    path: Path,
    on_bad_task: OnBadTask = "error",
    limit_instruction_bytes: int = DEFAULT_LIMIT_INSTRUCTION_BYTES,
    caps: Caps | None = None,
) -> TaskSet:
    """Load the folder of task folders, the task folder, or the file of rows at `path`.

    `caps` is the most that a sandbox can be given (default: what this machine has). Raises ConfigError where
    `path` is no task set, and TaskError with every fault of every task unless those are to be skipped.
    """
    path = path.resolve()
    name = path.stem if path.is_file() else path.name
    reading = Reading(name, caps or Caps.of_this_machine(), limit_instruction_bytes)
    tasks: dict[str, Task] = {}
    faults: list[Fault] = []
    dropped: list[Dropped] = []
    seen: set[str] = set()
    for read in _read_all(path, reading):
        if read.task_id in seen:
            problem, remedy = "an id that came before", "give each task an id of its own"
            read.findings.add(read.file, "id", read.task_id, problem, remedy)
        seen.add(read.task_id)
        task = _judge(read)
        if read.findings.faults:
            faults.extend(read.findings.faults)
        elif read.is_overlong:
            dropped.append(Dropped(read.task_id, "overlong"))
        elif task is not None:
            tasks[task.task_id] = task
    if not seen:
        raise ConfigError(f"no task in {path}", "put task folders into it, or name a file of rows")
    if faults and on_bad_task == "error":
        raise TaskError(tuple(faults))
    loaded = tuple(tasks.values())
    return TaskSet(reading.task_set, loaded, tuple(faults), tuple(dropped), digest_of_set(loaded))


def _judge(read: _Read) -> Task | None:
    """The task, once its verifier has nothing to say against it either."""
    if read.pieces is None:
        return None
    task = assemble(read.pieces)
    read.findings.faults.extend(registry.faults(task))
    return task


def _read_all(path: Path, reading: Reading) -> Iterator[_Read]:
    if path.is_dir():
        yield from _read_folders(path, reading)
    elif path.is_file() and path.suffix in SUFFIXES:
        yield from _read_file(path, reading)
    elif path.exists():
        raise ConfigError(
            f"not a task set: {path}", f"name a folder, or a file that ends in {' or '.join(SUFFIXES)}"
        )
    else:
        raise ConfigError(f"no such task set: {path}", "check the path")


def _read_folders(path: Path, reading: Reading) -> Iterator[_Read]:
    for folder in [path] if is_task_folder(path) else _folders_in(path):
        findings = Findings(folder.name)
        pieces, is_overlong = read_folder(folder, reading, findings)
        yield _Read(folder.name, TASK_FILE, pieces, is_overlong, findings)


def _read_file(path: Path, reading: Reading) -> Iterator[_Read]:
    for row in read_rows(path):
        findings = Findings(row.task)
        pieces, is_overlong = read_row(row, path, reading, findings)
        yield _Read(row.task, row.place, pieces, is_overlong, findings)


def _folders_in(path: Path) -> list[Path]:
    """Every folder but hidden ones and Python's caches. Loose files beside the tasks are nobody's."""
    try:
        return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))
    except OSError as error:
        raise ConfigError(
            f"can't read the task set {path}: {error.strerror}", "check its permissions"
        ) from error
