"""What a sandbox is, whichever backend makes it.

A sandbox starts from exact bytes: an image and ordered layers, each named by its digest, laid at fixed
paths. What its processes do to themselves is an observation (`ExecResult`); only what the host fails to
give is a `SandboxError`. Closing is safe twice and leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    `cwd` defaults to the workspace; `env` is added to a clean environment.
    """

    argv: Sequence[str]
    timeout_s: float = 60.0
    stdin: bytes = b""
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    output_limit_bytes: int = 64 * 1024

    @classmethod
    def shell(cls, line: str, timeout_s: float = 60.0) -> Self:
        """A line for bash (sh where the image has no bash)."""
        return cls(argv=("bash", "-c", line), timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended, judged from outside the sandbox.

    `exit_code` is 128 + signal where a signal ended it, 127 where the program was not found.
    `dropped_bytes` counts output that was not kept. Exactly one of the flags is set when a limit ended it.
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


@dataclass(frozen=True, slots=True)
class FinalState:
    """A workspace's difference from its layers, after every process in the sandbox was killed.

    `archive` is None when the state passes a cap, and `too_large` then says which: the agent's own doing.
    """

    archive: Archive | None
    too_large: str
    changes: tuple[Change, ...]


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

    async def close(self) -> None:
        """Destroy all that it made. Safe twice."""
        ...
