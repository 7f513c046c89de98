"""A sandbox in a slot of a keeper.

Invariants: it has one slot at a time; after a snapshot it has none until it is used again; closing is safe twice and
under cancellation; no wait is without a deadline.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import PurePosixPath
from typing import Protocol

from workers.archive import EMPTY, Archive
from workers.errors import SandboxError, Unsupported
from workers.sandbox import wire
from workers.sandbox.client import KeeperClient
from workers.sandbox.held import Held, Shelf
from workers.sandbox.messages import Close, Diff, Exec, Freeze, Operation, Probe, Read, Seal, Verify, Write
from workers.sandbox.protocol import Bound, Command, ExecResult, FinalState, SandboxSpec, Snapshot, StateDiff
from workers.sandbox.results import change_of, exec_result, file_error, refused
from workers.sandbox.slot import HOME
from workers.trajectory import Change

_GRACE_S = 15.0
_FILE_TIMEOUT_S = 20.0
_PROBE_TIMEOUT_S = 5.0
_FREEZE_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 30.0


class Ground(Protocol):
    """What a sandbox needs of the backend that made it."""

    shelf: Shelf
    resting: set[BubblewrapSandbox]

    @property
    def output_kill_bytes(self) -> int: ...

    @property
    def agent_path(self) -> str: ...

    async def lay(self, keeper: KeeperClient, number: int, spec: SandboxSpec, held: Held | None) -> str:
        """Make a slot; its reset digest."""
        ...


class BubblewrapSandbox:
    """One slot of a keeper."""

    def __init__(
        self, ground: Ground, keeper: KeeperClient, number: int, spec: SandboxSpec, held: Held | None
    ) -> None:
        self._ground = ground
        self._keeper = keeper
        self._number = number
        self._spec = spec
        self._held = held
        self._resting: Held | None = None
        self._waking = asyncio.Lock()
        self._is_closed = False
        self.reset_digest = ""

    async def begin(self) -> None:
        """Make the slot. Raises SandboxError."""
        digest = await self._ground.lay(self._keeper, self._number, self._spec, self._held)
        self.reset_digest = await self._held.fold(digest) if self._held else digest

    async def is_alive(self) -> bool:
        """Whether commands can still enter it."""
        try:
            await self._keeper.call(Operation.PROBE, Probe(self._number), _PROBE_TIMEOUT_S)
        except SandboxError:
            return False
        return True

    async def exec(self, command: Command) -> ExecResult:
        """Run one command to its end or to a limit."""
        if command.user not in ("", "agent"):
            raise Unsupported(f"user {command.user!r} in a bubblewrap sandbox", "sandbox=docker")
        request = Exec(
            slot=self._number,
            argument_count=len(command.argv),
            cwd=self._absolute(command.cwd or self._spec.workspace_path),
            timeout_s=command.timeout_s,
            output_limit_bytes=command.output_limit_bytes,
            output_kill_bytes=self._ground.output_kill_bytes,
            open_files=command.open_files,
            cpu_s=command.cpu_s,
        )
        words = [os.fsencode(word) for word in (*command.argv, *self._environment(command))]
        if any(b"\0" in word for word in words) or not command.argv:
            return refused(126, "an argument is empty or holds a NUL byte")
        await self.wake()
        answer = await self._keeper.call(
            Operation.EXEC, request, command.timeout_s + _GRACE_S, (b"\0".join(words),), command.stdin
        )
        stdout, stderr = answer.blobs
        return exec_result(
            int(str(answer.head["code"])),
            str(answer.head["limit"]),
            stdout,
            stderr,
            int(str(answer.head["dropped"])),
            float(str(answer.head["duration_s"])),
            _bounds(answer.head["bounds"]),
        )

    async def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Read a regular file as the agent would."""
        await self.wake()
        request = Read(self._number, self._absolute(path), max_bytes)
        try:
            answer = await self._keeper.call(Operation.READ, request, _FILE_TIMEOUT_S + _GRACE_S)
        except OSError as error:
            raise file_error(error, path) from error
        return answer.blobs[0]

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file as the agent would, making folders on the way."""
        await self.wake()
        request = Write(self._number, self._absolute(path))
        await self._keeper.call(Operation.WRITE, request, _FILE_TIMEOUT_S + _GRACE_S, (data,))

    async def diff(self, max_bytes: int = 64 << 20) -> StateDiff:
        """What the workspace changes now."""
        await self.wake()
        answer = await self._keeper.call(Operation.DIFF, Diff(self._number, max_bytes), _FREEZE_TIMEOUT_S)
        return StateDiff(_changes(answer), str(answer.head["too_large"]))

    async def snapshot(self) -> Snapshot:
        """End every process, keep the workspace, and go on from it with the next call."""
        await self.wake()
        above = self._held.above if self._held else ()
        self._ground.shelf.check_room(len(above) + 1)
        name = self._ground.shelf.new_name()
        await self._keeper.call(Operation.SEAL, Seal(self._number, name), _CLOSE_TIMEOUT_S)
        archive = self._held.archive if self._held else EMPTY
        held = self._ground.shelf.add(name, self._spec, self._keeper, (*above, name), archive)
        self._held = self._resting = held
        self._ground.resting.add(self)
        return held.snapshot

    async def restore(self, snapshot: Snapshot) -> None:
        """Throw the slot away for one that starts from the snapshot."""
        held = self._ground.shelf.find(snapshot)
        if snapshot.spec != self._spec:
            raise SandboxError("bad_snapshot", f"{snapshot.name} is of another spec")
        if self._is_closed:
            raise SandboxError("closed", "the sandbox was closed")
        self._resting = None
        self._ground.resting.discard(self)
        await self._keeper.call(Operation.CLOSE, Close(self._number), _CLOSE_TIMEOUT_S)
        if held.keeper is not None and held.keeper is not self._keeper:
            self._keeper.slot_count -= 1
            self._keeper = held.keeper
            self._keeper.slot_count += 1
        self._held = held
        await self.begin()

    async def verify(self) -> None:
        """Read back what it stands on. Raises SandboxError `dirty_reset`."""
        await self.wake()
        await self._keeper.call(Operation.VERIFY, Verify(self._number), _FREEZE_TIMEOUT_S)

    async def wake(self) -> None:
        """Make the slot that goes on from a snapshot, if one was taken and nothing was done since."""
        async with self._waking:
            if self._resting is not None and not self._is_closed:
                await self._ground.lay(self._keeper, self._number, self._spec, self._resting)
                self._resting = None
                self._ground.resting.discard(self)

    def rests_on(self, snapshot: Snapshot) -> bool:
        return self._resting is not None and self._resting.snapshot == snapshot

    async def freeze(self, max_bytes: int = 64 << 20) -> FinalState:
        """Kill every process in the sandbox, then read what changed in the workspace."""
        await self.wake()
        request = Freeze(self._number, max_bytes)
        answer = await self._keeper.call(Operation.FREEZE, request, _FREEZE_TIMEOUT_S + _GRACE_S)
        too_large = str(answer.head["too_large"])
        archive = None if too_large else Archive(answer.blobs[0], str(answer.head["digest"]))
        return FinalState(archive, too_large, _changes(answer))

    async def close(self) -> None:
        """Destroy it. Safe twice, and under cancellation."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ground.resting.discard(self)
        self._keeper.slot_count -= 1
        if not self._keeper.is_alive:
            return
        try:
            await self._keeper.call(Operation.CLOSE, Close(self._number), _CLOSE_TIMEOUT_S)
        except SandboxError as error:
            if error.cause != "keeper_died":  # then the kernel has closed it
                raise
        except asyncio.CancelledError:
            self._keeper.post_close(self._number)
            raise

    def _absolute(self, path: str) -> str:
        return str(PurePosixPath(self._spec.workspace_path) / path)

    def _environment(self, command: Command) -> list[str]:
        variables = {
            "PATH": self._ground.agent_path, "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash",
            "LANG": "C.UTF-8", "TERM": "dumb", **dict(command.env),
        }  # fmt: skip
        return [f"{name}={value}" for name, value in variables.items()]


def _changes(answer: wire.Message) -> tuple[Change, ...]:
    listed = answer.head["changes"]
    assert isinstance(listed, list)
    return tuple(change_of(item) for item in listed if isinstance(item, list))


def _bounds(listed: object) -> tuple[Bound, ...]:
    assert isinstance(listed, list)
    return tuple(Bound(str(name)) for name in listed)
