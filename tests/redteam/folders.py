"""Reads red-team folders: `task/` for the agent, `hidden/` protected, a cheat or an honest trap, a gold.

`calls.json` holds the hidden checks as plain values in three shapes: calls of functions, a program with its
files and output, a file with its wanted text. Each is judged by the kind that fits.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.verifier.making import LIMITS
from workers.archive import Archive, Entry, EntryKind, pack
from workers.task import PublicTask, Script, Split, Task, VerifierSpec

ROOT = Path(__file__).parents[1] / "data" / "redteam"
FOLDERS = sorted(folder for folder in ROOT.glob("*/*") if folder.is_dir() and folder.name[0] not in "._")

SLOW_ANSWER_S = 2.5
MORE_ITEMS = 3
"""In place of 0.2 s for a call alone: ours bounds a whole process, its start included, on a busy machine. With
three times the items a quadratic program needs nine times as long, and a linear one hardly longer."""


def read_folder(folder: Path, scratch: Path) -> Task:
    is_honest = folder.parent.name == "honest"
    script = Script(folder.name, _text(folder / "attack.sh"))
    return Task(
        public=PublicTask(
            task_id=folder.name,
            task_set=folder.parent.name,
            split=Split.EVAL,
            instruction=_text(folder / "task" / "README.md"),
            workspace=_tree(_prepared(folder, scratch)),
            limits=LIMITS,
            agent_timeout_s=10.0,
        ),
        verifier=_verifier(folder),
        protected=_tree(folder / "hidden"),
        solution=Script("gold", _text(folder / "gold.sh")),
        attacks=() if is_honest else (script,),
        honest=(script,) if is_honest else (),
    )


def _verifier(folder: Path) -> VerifierSpec:
    cases = json.loads(_text(folder / "calls.json"))
    if "module" in cases[0]:
        return _spec("calls", {"cases": [_call(case) for case in cases]})
    if "cmd" in cases[0]:
        runs = [{"files": case["files"], "stdout": case["want_stdout"]} for case in cases]
        return _spec("stdio", {"command": cases[0]["cmd"], "cases": runs})
    [case] = cases
    return _spec("match", {"file": case["file"], "gold": case["want_text"]})


def _call(case: dict[str, object]) -> dict[str, object]:
    if "range_arg" not in case:
        return case
    assert isinstance(case["range_arg"], int)
    items = list(range(MORE_ITEMS * case["range_arg"]))
    named = {key: case[key] for key in ("module", "func")}
    return {**named, "args": [items], "want": items, "max_s": SLOW_ANSWER_S}


def _spec(kind: str, options: dict[str, object]) -> VerifierSpec:
    return VerifierSpec(kind=kind, options_json=json.dumps(options), timeout_s=8.0)


def _prepared(folder: Path, scratch: Path) -> Path:
    """The workspace as a careful author ships it: whatever its history held, one commit is left of it."""
    if not (folder / "prepare.sh").exists() or not shutil.which("git"):
        return folder / "task"
    made = scratch / folder.name
    shutil.copytree(folder / "task", made)
    _run(made, scratch, "bash", str(folder / "prepare.sh"))
    shutil.rmtree(made / ".git")
    _run(made, scratch, "git", "init", "-q")
    _run(made, scratch, "git", "add", "-A")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    _run(made, scratch, "git", *author, "commit", "-q", "-m", "start")
    return made


def _run(folder: Path, home: Path, *argv: str) -> None:
    env = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True, timeout=60)


def _tree(folder: Path) -> Archive:
    entries = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            entries.append(Entry(name, EntryKind.LINK, target=str(path.readlink())))
        elif path.is_dir():
            entries.append(Entry(name, EntryKind.FOLDER, 0o755))
        else:
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            entries.append(Entry(name, EntryKind.FILE, mode, data=path.read_bytes()))
    return pack(entries)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")
