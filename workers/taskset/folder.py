"""One task folder in Harbor's layout, ours in the `[rollcage]` table.

The agent starts with `environment/files/` and nothing else: the rest of `environment/` is what an image is
built from, and `tests/`, `solution/`, `attacks/` and `honest/` are the protected half. Tables of other tools
are left alone. The folder's name is the task's id, whole.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from workers.archive import Archive, unpack
from workers.table import Findings, Table, is_encodable
from workers.task import Script, VerifierSpec
from workers.taskset.assembly import Pieces
from workers.taskset.dockerfile import COMPOSE_NAMES, image_of, workdir
from workers.taskset.files import Place
from workers.taskset.settings import (
    DEFAULT_AGENT_TIMEOUT_S,
    DEFAULT_VERIFIER_TIMEOUT_S,
    OUR_KEYS,
    TIMEOUT,
    Caps,
    Defaults,
    escapes,
    read_limits,
    read_settings,
    read_verifier,
)

TASK_FILE = "task.toml"
INSTRUCTION_FILE = "instruction.md"
HARBOR_WORKSPACE_PATH = "/app"
HARBOR_ARTIFACTS_PATH = "/logs/artifacts"
_OWN_LIMITS = ("inodes", "pids", "open_files")
_LINE = re.compile(r"\(at (.+)\)$")


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a set: its name and what is too much."""

    task_set: str
    caps: Caps
    limit_instruction_bytes: int


@dataclass(frozen=True, slots=True)
class Instruction:
    text: str
    is_overlong: bool


def is_task_folder(folder: Path) -> bool:
    return any((folder / name).exists() for name in (TASK_FILE, INSTRUCTION_FILE))


def read_folder(folder: Path, reading: Reading, findings: Findings) -> tuple[Pieces | None, bool]:
    """The pieces of a task (None where something is wrong), and whether its instruction is overlong."""
    place = Place(folder, findings)
    if not is_encodable(folder.name):
        place.fault(folder.name, "a folder name that is not UTF-8", "rename the folder: it is the task's id")
    instruction = _instruction(place, reading.limit_instruction_bytes)
    document = _document(place)
    root = Table(document or {}, findings, TASK_FILE)
    protected = place.read_tree("tests")
    defaults = _defaults(place, root)
    own = root.table("rollcage")
    own.refuse_unknown(OUR_KEYS)
    own_limits = own.table("limits")
    own_limits.refuse_unknown(_OWN_LIMITS)
    settings = read_settings(own, defaults)
    _check_artifacts(root, settings.workspace_path)
    verifier = _verifier(root, own, protected) if document is not None else None
    pieces = Pieces(
        task_id=folder.name,
        task_set=reading.task_set,
        source=str(folder),
        instruction=instruction.text,
        workspace=_workspace(place),
        settings=settings,
        limits=read_limits(root.table("environment"), own_limits, reading.caps),
        agent_timeout_s=root.table("agent").number("timeout_sec", DEFAULT_AGENT_TIMEOUT_S, TIMEOUT),
        verifier=verifier or VerifierSpec(kind=""),
        protected=protected,
        solution=_solution(place),
        attacks=_scripts(place, "attacks"),
        honest=_scripts(place, "honest"),
    )
    return (None if findings.faults else pieces), instruction.is_overlong


def _instruction(place: Place, limit_bytes: int) -> Instruction:
    data = place.read_start(INSTRUCTION_FILE, limit_bytes)
    if data is None:
        return Instruction("", is_overlong=False)
    if len(data) > limit_bytes:
        return Instruction("", is_overlong=True)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        place.fault(INSTRUCTION_FILE, f"not UTF-8 at byte {error.start}", "save it as UTF-8")
        return Instruction("", is_overlong=False)
    if not text.strip():
        place.fault(INSTRUCTION_FILE, "empty or blank", "write what the agent is to do")
    return Instruction(text, is_overlong=False)


def _document(place: Place) -> dict[str, object] | None:
    text = place.read_text(TASK_FILE)
    if text is None:
        return None
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        where = _LINE.search(str(error))
        remedy = f"mend the syntax at {where[1]}" if where else "mend the syntax"
        place.fault(TASK_FILE, f"broken TOML: {error}", remedy)
        return None


def _defaults(place: Place, root: Table) -> Defaults:
    """What the folder's image implies where `[rollcage]` says nothing."""
    path = "/workspace" if "rollcage" in root else HARBOR_WORKSPACE_PATH
    image = "host"
    if place.is_there("environment/Dockerfile"):
        text = place.read_text("environment/Dockerfile") or ""
        path, image = workdir(text) or path, image_of("dockerfile", text)
    named = root.table("environment").text("docker_image", "")
    if named:
        image = f"docker:{named}"
    for name in COMPOSE_NAMES:
        if place.is_there(f"environment/{name}"):
            image = image_of("compose", place.read_text(f"environment/{name}") or "")
    return Defaults(workspace_path=path, image=image)


def _workspace(place: Place) -> Archive:
    if place.is_there("environment"):
        place.is_folder("environment")
    return place.read_tree("environment/files")


def _verifier(root: Table, own: Table, protected: Archive) -> VerifierSpec | None:
    timeout_s = root.table("verifier").number("timeout_sec", DEFAULT_VERIFIER_TIMEOUT_S, TIMEOUT)
    if "verifier" in own:
        return read_verifier(own.table("verifier"), timeout_s)
    if any(entry.path == "test.sh" for entry in unpack(protected)):
        return VerifierSpec(kind="script", timeout_s=timeout_s)
    own.fault("verifier", "nothing judges this task", "add tests/test.sh, or a [rollcage.verifier] table")
    return None


def _check_artifacts(root: Table, workspace_path: str) -> None:
    """Harbor's `artifacts` (a list, or a table with `paths`): no path may lead out of where results lie."""
    listed = root.values.get("artifacts")
    table = root.table("artifacts") if isinstance(listed, dict) else root
    key = "paths" if isinstance(listed, dict) else "artifacts"
    paths = table.values.get(key)
    for item in paths if isinstance(paths, list) else []:
        path = item.get("source") if isinstance(item, dict) else item
        if isinstance(path, str) and escapes(_inside(path, (workspace_path, HARBOR_ARTIFACTS_PATH))):
            remedy = f"name a path under {workspace_path}, without .."
            root.findings.add(
                TASK_FILE, table.prefix + key, path, "an artifact path that leads outside", remedy
            )


def _inside(path: str, roots: tuple[str, ...]) -> str:
    """`path` relative to the root that it lies under, else as it is."""
    for root in roots:
        if path == root or path.startswith(root + "/"):
            return path[len(root) :].lstrip("/") or "."
    return path


def _solution(place: Place) -> Script | None:
    if not place.is_there("solution") or not place.is_folder("solution"):
        return None
    if not place.is_there("solution/solve.sh"):
        return None
    body = place.read_text("solution/solve.sh")
    return None if body is None else Script("solve", body)


def _scripts(place: Place, folder: str) -> tuple[Script, ...]:
    """Every `*.sh` of a folder, in the order of their names."""
    if not place.is_there(folder) or not place.is_folder(folder):
        return ()
    names = [name for name in place.names_in(folder) if name.endswith(".sh")]
    bodies = [(name, place.read_text(f"{folder}/{name}")) for name in names]
    return tuple(Script(name.removesuffix(".sh"), body) for name, body in bodies if body is not None)
