"""What a sandbox is, whichever backend makes it.

A sandbox starts from exact bytes: an image and ordered layers, each named by its digest, laid at fixed
paths. What its processes do to themselves is an observation (`ExecResult`); only what the host fails to
give is a `SandboxError`, and what a backend can't do at all is `Unsupported`, with what to use instead.
Closing is safe twice and leaves nothing.

State is the workspace's files, never processes. It comes out in three ways: `diff` looks at a living sandbox,
`snapshot` keeps it with the backend to restore or fork from in milliseconds, `freeze` ends the sandbox and
takes it out as an archive, as `export` does with a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self

from workers.archive import EMPTY, Archive
from workers.task import Limits
from workers.trajectory import Change


@dataclass(frozen=True, slots=True)
class ReadOnlyMount:
    """Protected files shown read-only at `path`, opaque over whatever else lay there."""

    path: str
    files: Archive


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to build. `layers` are laid over each other at `workspace_path`, the first lowest."""

    image: str = "host"
    workspace_path: str = "/workspace"
    layers: tuple[Archive, ...] = (EMPTY,)
    read_only: tuple[ReadOnlyMount, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `argv[0]` is looked up on PATH. Without `stdin` it reads /dev/null.

    Of stdout and stderr at most `output_limit_bytes` each are kept: the first half and the last half.
    `cwd` defaults to the workspace; `env` is added to a clean environment; `user` is the agent unless it names
    another, which few backends can be; `open_files` and `cpu_s` (seconds of one process) are lower limits than
    the sandbox's own.
    """

    argv: Sequence[str]
    timeout_s: float = 60.0
    stdin: bytes = b""
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    output_limit_bytes: int = 64 * 1024
    user: str = ""
    open_files: int | None = None
    cpu_s: int | None = None

    @classmethod
    def shell(cls, line: str, timeout_s: float = 60.0) -> Self:
        """A line for bash (sh where the image has no bash)."""
        return cls(argv=("bash", "-c", line), timeout_s=timeout_s)


class Bound(StrEnum):
    """A limit that makes calls fail inside the sandbox, without ending the command."""

    PIDS = "pids"
    DISK = "disk"
    INODES = "inodes"
    OPEN_FILES = "open_files"


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended, judged from outside the sandbox.

    `exit_code` is 128 + signal where a signal ended it, 127 where the program was not found.
    `dropped_bytes` counts output that was not kept. Exactly one of the flags is set when a limit ended it.
    `bounds_met` are those that the sandbox was seen to stand at, by evidence from outside.
    """

    exit_code: int
    signal: int | None
    stdout: bytes
    stderr: bytes
    dropped_bytes: int
    timed_out: bool
    oom_killed: bool
    output_killed: bool
    duration_s: float
    cpu_killed: bool = False
    bounds_met: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class FinalState:
    """A workspace's difference from its layers, after every process in the sandbox was killed.

    `archive` is None when the state passes a cap, and `too_large` then says which: the agent's own doing.
    """

    archive: Archive | None
    too_large: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class StateDiff:
    """What a workspace changes against its spec's layers, by path. `too_large` names the cap that it passes."""

    changes: tuple[Change, ...]
    too_large: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A workspace as it was, immutable, kept by the backend that made it until it is discarded.

    `spec` is what the sandbox was made from; `name` is the backend's own and never used again.
    """

    name: str
    spec: SandboxSpec


class Sandbox(Protocol):
    """One sandbox. Not shared between episodes, ever."""

    @property
    def reset_digest(self) -> str:
        """sha256 over the image, the layers and the mounts that were really mounted."""
        ...

    async def exec(self, command: Command) -> ExecResult:
        """Run one command to its end or to a limit."""
        ...

    async def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Read a regular file as the agent would. Raises FileNotFoundError, IsADirectoryError, PermissionError
        or ValueError (not a regular file, or larger than `max_bytes`)."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file as the agent would, making folders on the way. Raises OSError as the agent would meet it."""
        ...

    async def diff(self, max_bytes: int = 64 << 20) -> StateDiff:
        """What the workspace changes now. Running processes go on, so it is exact only where none writes."""
        ...

    async def snapshot(self) -> Snapshot:
        """Keep the workspace as it is now, and go on from there. The processes in the sandbox may be ended."""
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Become what `backend.fork(snapshot)` would be: every process is ended, every later file is gone.

        Raises SandboxError `bad_snapshot` where it is not of this backend and spec, or was discarded."""
        ...

    async def verify(self) -> None:
        """Read back all that the sandbox stands on, byte by byte. Raises SandboxError `dirty_reset` where it is
        not what the digests say."""
        ...

    async def freeze(self, max_bytes: int = 64 << 20) -> FinalState:
        """Kill every process in the sandbox, then read what changed in the workspace. Ends its use."""
        ...

    async def close(self) -> None:
        """Destroy it. Safe twice."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes on this host; owns every process and mount of theirs."""

    async def start(self) -> None:
        """Make ready. Raises SandboxError with the remedy where this machine can't."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox, its reset proved. Raises SandboxError (`dirty_reset`, `create_failed`, …)."""
        ...

    async def fork(self, snapshot: Snapshot) -> Sandbox:
        """A fresh sandbox that starts from a snapshot, its reset proved. Raises SandboxError `bad_snapshot`."""
        ...

    async def export(self, snapshot: Snapshot, max_bytes: int = 64 << 20) -> Archive:
        """What a snapshot changes against its spec's layers, as one more layer to lay over them.

        Raises SandboxError `snapshot_too_large` past `max_bytes` or another cap, `bad_snapshot`."""
        ...

    async def import_snapshot(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        """Keep an exported archive as a snapshot of `spec`."""
        ...

    async def discard(self, snapshot: Snapshot) -> None:
        """Give up a snapshot; sandboxes that stand on it go on. Safe twice."""
        ...

    async def close(self) -> None:
        """Destroy all that it made. Safe twice."""
        ...
