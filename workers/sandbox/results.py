"""Turning what a backend saw into the protocol's results, the same for every backend."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import PurePosixPath

from workers.errors import SandboxError
from workers.sandbox.protocol import Bound, ExecResult, SandboxSpec
from workers.trajectory import Change, ChangeKind

TIMEOUT, MEMORY, OUTPUT, CPU = "timeout", "memory", "output", "cpu"
_RESERVED = (
    "/usr",
    "/etc",
    "/proc",
    "/dev",
    "/tmp",
    "/sys",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/home/agent",
)
_NOT_A_FILE = (errno.EINVAL, errno.EFBIG, errno.ENXIO)


def exec_result(
    code: int,
    limit: str,
    stdout: bytes,
    stderr: bytes,
    dropped_bytes: int,
    duration_s: float,
    bounds_met: tuple[Bound, ...] = (),
) -> ExecResult:
    """`code` is negative where a signal ended the command; `limit` names what was passed, or is empty."""
    return ExecResult(
        exit_code=code if code >= 0 else 128 - code,
        signal=-code if code < 0 else None,
        stdout=stdout,
        stderr=stderr,
        dropped_bytes=dropped_bytes,
        timed_out=limit == TIMEOUT,
        oom_killed=limit == MEMORY,
        output_killed=limit == OUTPUT,
        duration_s=duration_s,
        cpu_killed=limit == CPU,
        bounds_met=bounds_met,
    )


def refused(code: int, why: str) -> ExecResult:
    """A command that never ran."""
    return exec_result(code, "", b"", f"{why}\n".encode("utf-8", "replace"), 0, 0.0)


def file_error(error: OSError, path: str) -> Exception:
    """The protocol's error for a file that could not be read."""
    if error.errno in _NOT_A_FILE:
        return ValueError(f"{path}: {error.strerror}")
    return error


def change_of(item: Sequence[object]) -> Change:
    """A change from its wire form."""
    path, kind, size, mode, text = item
    return Change(str(path), ChangeKind(str(kind)), int(str(size)), int(str(mode)), str(text))


def check_paths(spec: SandboxSpec) -> None:
    """Raise SandboxError where a path of the spec can't be used."""
    if not spec.layers:
        raise SandboxError("bad_spec", "a sandbox needs at least one layer")
    paths = [spec.workspace_path, *(item.path for item in spec.read_only)]
    if len(set(paths)) < len(paths):
        raise SandboxError("bad_spec", "two mounts share one path")
    for path in paths:
        if (
            str(PurePosixPath(path)) != path
            or not path.startswith("/")
            or path == "/"
            or ".." in path.split("/")
        ):
            raise SandboxError("bad_spec", f"not a plain absolute path: {path!r}")
        if any(path == reserved or path.startswith(f"{reserved}/") for reserved in _RESERVED):
            raise SandboxError("bad_spec", f"{path} lies in a folder that belongs to the image")
    for item in spec.read_only:
        if spec.workspace_path.startswith(f"{item.path}/"):
            raise SandboxError("bad_spec", f"{item.path} would hide the workspace")
