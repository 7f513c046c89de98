"""What a task asks for, apart from its files: limits, times, tools, image, verifier.

The same settings come from a folder's `task.toml` and from a row. Tables that other tools own are not ours to
judge; in our own, an unknown key is a fault. A task that asks for more than `Caps` is a fault at once: it
would wait for ever.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from dataclasses import dataclass

from workers.table import Range, Table, suggestion
from workers.task import ALL_TOOLS, Limits, Scope, Split, VerifierSpec

OUR_KEYS = (
    "workspace",
    "scope",
    "split",
    "tools",
    "answer_file",
    "image",
    "pass_threshold",
    "limits",
    "verifier",
)
DEFAULT_AGENT_TIMEOUT_S = 300.0
DEFAULT_VERIFIER_TIMEOUT_S = 60.0
MAX_TIMEOUT_S = 7 * 86_400.0

TIMEOUT = Range(0, MAX_TIMEOUT_S, unit="seconds")
_RESERVED_ROOTS = ("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])I?B?", re.IGNORECASE)
_SIZE_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that one sandbox can be given where the tasks will run."""

    memory_mb: int
    cpus: float
    storage_mb: int = 1 << 24

    @staticmethod
    def of_this_machine() -> Caps:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Caps(memory_mb=memory_bytes >> 20, cpus=float(os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a task gets where it says nothing."""

    workspace_path: str = "/workspace"
    image: str = "host"


@dataclass(frozen=True, slots=True)
class Settings:
    """Ours: what `[rollcage]` or a row says."""

    workspace_path: str
    image: str
    scope: Scope
    split: Split
    tools: tuple[str, ...]
    answer_file: str
    pass_threshold: float


def read_settings(table: Table, defaults: Defaults) -> Settings:
    return Settings(
        workspace_path=_workspace_path(table, defaults.workspace_path),
        image=_image(table, defaults.image),
        scope=Scope(table.choice("scope", Scope.WORKSPACE, tuple(Scope))),
        split=Split(table.choice("split", Split.TRAIN, tuple(Split))),
        tools=_tools(table),
        answer_file=_answer_file(table),
        pass_threshold=table.number("pass_threshold", 1.0, Range(0, 1)),
    )


def read_limits(environment: Table, own: Table, caps: Caps) -> Limits:
    """`environment` holds what any harness knows (cpus, memory…), `own` what only we do (pids…)."""
    unset = Limits()
    if environment.number("gpus", 0, Range(0, 1024, is_closed=True)) > 0:
        environment.fault("gpus", "sandboxes have no GPU", "take the task out of the set")
    return Limits(
        cpus=environment.number("cpus", unset.cpus, Range(0, caps.cpus, unit="(this cluster's largest)")),
        memory_mb=_size_mb(environment, "memory", unset.memory_mb, caps.memory_mb),
        storage_mb=_size_mb(environment, "storage", unset.storage_mb, caps.storage_mb),
        inodes=own.whole("inodes", unset.inodes, Range(16, 10_000_000, is_closed=True)),
        pids=own.whole("pids", unset.pids, Range(4, 32_768, is_closed=True)),
        open_files=own.whole("open_files", unset.open_files, Range(16, 1_048_576, is_closed=True)),
        allow_internet=environment.flag("allow_internet", unset.allow_internet),
    )


def read_verifier(table: Table, timeout_s: float) -> VerifierSpec | None:
    """The verifier of a table that names a kind; its own settings travel as JSON for the kind to judge."""
    kind = table.text("kind", "")
    if not kind:
        table.fault(
            "kind", "no kind of verifier", 'add kind = "calls", "stdio", "match", "script" or another'
        )
        return None
    timeout_s = table.number("timeout_s", timeout_s, TIMEOUT)
    options = {key: value for key, value in table.values.items() if key not in ("kind", "timeout_s")}
    try:
        text = json.dumps(options, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        table.findings.add(
            table.file, table.prefix.rstrip("."), "", f"not plain data: {error}", "use plain values"
        )
        return None
    return VerifierSpec(kind=kind, options_json=text, timeout_s=timeout_s)


def escapes(path: str) -> bool:
    """Whether a path is absolute, climbs with `..`, or can't be a path."""
    return path.startswith("/") or "\0" in path or ".." in path.split("/")


def _size_mb(table: Table, what: str, default_mb: int, cap_mb: int) -> int:
    """`what`_mb in MB; or `what` as Harbor once wrote it, such as "2G"."""
    allowed = Range(1, cap_mb, is_closed=True, unit="MB (this cluster's largest)")
    if f"{what}_mb" in table or what not in table:
        return table.whole(f"{what}_mb", default_mb, allowed)
    match = _SIZE.fullmatch(table.text(what, "").strip())
    size_mb = float(match[1]) * _SIZE_MB[match[2].upper()] if match else 0.0
    if allowed.holds(size_mb):
        return int(size_mb)
    table.fault(what, "not a size that can be had", f"write {what}_mb with {allowed}")
    return default_mb


def _workspace_path(table: Table, default: str) -> str:
    path = table.text("workspace", default)
    if not path.startswith("/") or posixpath.normpath(path) != path or "\0" in path:
        table.fault("workspace", "not a clean absolute path", 'write one such as "/workspace"')
    elif path in _RESERVED_ROOTS or path.startswith(tuple(root + "/" for root in _RESERVED_ROOTS[1:])):
        table.fault("workspace", "a folder of the system", 'use one of its own, such as "/workspace"')
    else:
        return path
    return default


def _image(table: Table, default: str) -> str:
    image = table.text("image", default)
    if image == "host" or image.startswith(("docker:", "dockerfile:", "compose:")):
        return image
    table.fault("image", "not an image", 'write "host", or "docker:" and a name')
    return default


def _tools(table: Table) -> tuple[str, ...]:
    tools = table.texts("tools", ALL_TOOLS)
    for tool in tools:
        if tool not in ALL_TOOLS:
            remedy = f"{suggestion(tool, ALL_TOOLS)}the tools are: {', '.join(ALL_TOOLS)}"
            table.fault("tools", f"unknown tool {tool!r}", remedy)
    if not tools or len(set(tools)) < len(tools):
        table.fault(
            "tools", "empty, or a tool twice", "name each tool once, or leave the key out for all of them"
        )
    return tools


def _answer_file(table: Table) -> str:
    path = table.text("answer_file", "")
    if path and (escapes(path) or posixpath.normpath(path) != path or path == "."):
        table.fault("answer_file", "not a path inside the workspace", 'write one such as "answer.txt"')
    return path
