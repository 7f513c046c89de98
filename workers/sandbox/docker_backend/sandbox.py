"""One container as a sandbox.

Invariants: a command's end is judged by its own process and its limits by the container's cgroup; a limit kills
everything in the container but its first process; the files that the host reads or writes go through a process
with the agent's rights, and a frozen workspace is read only when nothing in it runs.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from workers.archive import Archive, Entry
from workers.errors import SandboxError
from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.container import HOME
from workers.sandbox.docker_backend.engine import Engine, EngineError
from workers.sandbox.docker_backend.first import Counts, FirstProcess
from workers.sandbox.docker_backend.run import Job, Run
from workers.sandbox.docker_backend.scripts import READ, RUN, WRITE
from workers.sandbox.docker_backend.state import final_state
from workers.sandbox.protocol import Command, ExecResult, FinalState, SandboxSpec, Snapshot, StateDiff
from workers.sandbox.results import file_error, refused

_FILE_TIMEOUT_S = 20.0
_SNAPSHOT_LIMIT_BYTES = 1 << 30
_NOT_RUN = (126, 127, 128 + 9)  # no process to be had inside, or killed at once
_HIGHEST_ERROR = 133
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Container:
    """A container that runs. `before` is its workspace as it was laid."""

    identity: str
    image: str
    first: FirstProcess
    user: str
    path: str
    before: tuple[Entry, ...]
    reset_digest: str


class Maker(Protocol):
    """What a sandbox needs of the backend that made it."""

    async def make(self, spec: SandboxSpec, above: Archive) -> Container:
        """Another container from a spec, with a snapshot's archive above its layers."""
        ...

    async def remove(self, container: Container) -> None:
        """Remove a container. Safe twice."""
        ...

    async def prove(self, container: Container, spec: SandboxSpec) -> None:
        """Raises SandboxError `dirty_reset` where a container is not on what it should be."""
        ...

    def keep(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        """Hold an archive as a snapshot."""
        ...

    def kept(self, snapshot: Snapshot) -> Archive:
        """A snapshot's archive. Raises SandboxError `bad_snapshot`."""
        ...


class DockerSandbox:
    """One container, which `restore` replaces by another."""

    def __init__(
        self, engine: Engine, maker: Maker, spec: SandboxSpec, container: Container, output_kill_bytes: int
    ) -> None:
        self._engine = engine
        self._maker = maker
        self._spec = spec
        self._container = container
        self._output_kill_bytes = output_kill_bytes
        self._seen = Counts()
        self._is_over = self._is_closed = False

    @property
    def reset_digest(self) -> str:
        return self._container.reset_digest

    async def is_alive(self) -> bool:
        """Whether commands can still be run in it."""
        try:
            await self._container.first.counts()
        except SandboxError:
            return False
        return True

    async def exec(self, command: Command) -> ExecResult:
        """Run one command to its end or to a limit."""
        self._check_usable()
        words = [*command.argv, *(f"{name}={value}" for name, value in command.env)]
        if not command.argv or any("\0" in word for word in words):
            return refused(126, "an argument is empty or holds a NUL byte")
        container = self._container
        lower = ["" if value is None else str(value) for value in (command.open_files, command.cpu_s)]
        script = [self._absolute(command.cwd or "."), "given" if command.stdin else "none", *lower]
        job = Job(
            argv=["/bin/sh", "-c", RUN, "run", *script, *command.argv],
            env=self._environment(command),
            user=container.user if command.user in ("", "agent") else command.user,
            stdin=command.stdin,
            timeout_s=command.timeout_s,
            output_limit_bytes=command.output_limit_bytes,
            output_kill_bytes=self._output_kill_bytes,
        )
        result, self._seen = await Run(self._engine, container.identity, container.first, job).result(
            self._seen
        )
        return result

    async def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Read a regular file as the agent would."""
        place = self._absolute(path)
        script = ("/bin/sh", "-c", READ, "read", place, str(max_bytes + 1))
        command = Command(script, _FILE_TIMEOUT_S, cwd="/", output_limit_bytes=2 * (max_bytes + 1))
        result = await self.exec(command)
        if result.exit_code:
            raise file_error(_os_error(result, place), path)
        if len(result.stdout) > max_bytes:
            raise ValueError(f"{path}: larger than {max_bytes} bytes")
        return result.stdout

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file as the agent would, making folders on the way."""
        place = self._absolute(path)
        script = ("/bin/sh", "-c", WRITE, "write", place)
        result = await self.exec(Command(script, _FILE_TIMEOUT_S, stdin=data, cwd="/"))
        if result.exit_code:
            raise _os_error(result, place)

    async def diff(self, max_bytes: int = 64 << 20) -> StateDiff:
        """What the workspace changes now."""
        self._check_usable()
        state = await self._state(max_bytes)
        return StateDiff(state.changes, state.too_large)

    async def snapshot(self) -> Snapshot:
        """Keep the workspace's difference as an archive, after every process was ended."""
        self._check_usable()
        await self._container.first.kill_all()
        state = await self._state(_SNAPSHOT_LIMIT_BYTES)
        if state.archive is None:
            raise SandboxError("snapshot_too_large", state.too_large)
        return self._maker.keep(state.archive, self._spec)

    async def restore(self, snapshot: Snapshot) -> None:
        """Take another container in this one's place."""
        self._check_usable()
        if snapshot.spec != self._spec:
            raise SandboxError("bad_snapshot", f"{snapshot.name} is of another spec")
        old = self._container
        self._container = await self._maker.make(self._spec, self._maker.kept(snapshot))
        self._seen = Counts()
        await self._maker.remove(old)

    async def verify(self) -> None:
        """Read back the image and the protected mounts. The workspace is a copy that was laid, not stood on."""
        self._check_usable()
        await self._maker.prove(self._container, self._spec)

    async def freeze(self, max_bytes: int = 64 << 20) -> FinalState:
        """End every process, stop the container, then read what changed in the workspace."""
        self._check_usable()
        self._is_over = True
        await self._container.first.kill_all()
        try:
            await self._engine.call(lambda client: docker.pause(client, self._container.identity))
        except EngineError as error:
            raise SandboxError("sandbox_died", str(error)) from error
        return await self._state(max_bytes)

    async def close(self) -> None:
        """Remove the container. Safe twice."""
        if not self._is_closed:
            self._is_closed = self._is_over = True
            await self._maker.remove(self._container)

    async def _state(self, max_bytes: int) -> FinalState:
        container = self._container
        return await final_state(self._engine, container.identity, self._spec, container.before, max_bytes)

    def _absolute(self, path: str) -> str:
        return str(PurePosixPath(self._spec.workspace_path) / path)

    def _environment(self, command: Command) -> dict[str, str]:
        return {
            "PATH": self._container.path or _DEFAULT_PATH, "HOME": HOME, "USER": "agent", "LOGNAME": "agent",
            "SHELL": "/bin/sh", "LANG": "C.UTF-8", "TERM": "dumb", **dict(command.env),
        }  # fmt: skip

    def _check_usable(self) -> None:
        if self._is_over:
            raise SandboxError("closed", "the sandbox was frozen or closed")


def _os_error(result: ExecResult, path: str) -> OSError:
    """The error whose number a script gave as its exit code."""
    if result.timed_out:
        return TimeoutError(110, f"took longer than {_FILE_TIMEOUT_S} s", path)
    number = errno.EAGAIN if result.exit_code in _NOT_RUN else min(result.exit_code, _HIGHEST_ERROR)
    return OSError(number, os.strerror(number), path)
