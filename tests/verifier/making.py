"""Makes tasks and states for the tests of verifiers."""

from __future__ import annotations

import json
from collections.abc import Mapping

from workers.archive import Archive, Entry, EntryKind, pack
from workers.task import Limits, PublicTask, Script, Split, Task, VerifierSpec

LIMITS = Limits(memory_mb=512, storage_mb=64, pids=64)


def tree(files: Mapping[str, str | bytes]) -> Archive:
    """An archive of files and the folders that they lie in."""
    entries = [
        Entry(path, EntryKind.FILE, data=body.encode() if isinstance(body, str) else body)
        for path, body in files.items()
    ]
    folders = {path[:at] for path in files for at, char in enumerate(path) if char == "/"}
    return pack([*entries, *(Entry(path, EntryKind.FOLDER, 0o755) for path in folders)])


def task_of(
    kind: str,
    options: Mapping[str, object],
    workspace: Mapping[str, str | bytes] | None = None,
    protected: Mapping[str, str | bytes] | None = None,
    timeout_s: float = 20.0,
    limits: Limits = LIMITS,
    solution: str | None = None,
    attacks: Mapping[str, str] | None = None,
    honest: Mapping[str, str] | None = None,
) -> Task:
    public = PublicTask(
        task_id="a-task",
        task_set="tests",
        split=Split.TRAIN,
        instruction="do it",
        workspace=tree(workspace or {}),
        limits=limits,
        agent_timeout_s=20.0,
    )
    return Task(
        public=public,
        verifier=VerifierSpec(kind=kind, options_json=json.dumps(options), timeout_s=timeout_s),
        protected=tree(protected or {}),
        solution=Script("solve", solution) if solution is not None else None,
        attacks=tuple(Script(name, body) for name, body in (attacks or {}).items()),
        honest=tuple(Script(name, body) for name, body in (honest or {}).items()),
    )
