"""The fake backend, watched: which sandboxes are still open, and failures of the host on demand."""

from __future__ import annotations

from workers.archive import Archive, Entry, EntryKind, pack
from workers.errors import SandboxError
from workers.sandbox.fake import FakeBackend, FakeSandbox
from workers.sandbox.protocol import Command, ExecResult, FinalState, SandboxSpec, Snapshot, StateDiff


class WatchedSandbox:
    def __init__(self, inner: FakeSandbox, fails_with: SandboxError | None) -> None:
        self._inner = inner
        self._fails_with = fails_with
        self.reset_digest = inner.reset_digest
        self.is_open = True

    async def exec(self, command: Command) -> ExecResult:
        if self._fails_with:
            raise self._fails_with
        return await self._inner.exec(command)

    async def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        return await self._inner.read_file(path, max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._inner.write_file(path, data)

    async def diff(self, max_bytes: int = 64 << 20) -> StateDiff:
        return await self._inner.diff(max_bytes)

    async def snapshot(self) -> Snapshot:
        return await self._inner.snapshot()

    async def restore(self, snapshot: Snapshot) -> None:
        await self._inner.restore(snapshot)

    async def verify(self) -> None:
        await self._inner.verify()

    async def freeze(self, max_bytes: int = 64 << 20) -> FinalState:
        return await self._inner.freeze(max_bytes)

    async def close(self) -> None:
        self.is_open = False
        await self._inner.close()


class WatchedBackend:
    def __init__(self) -> None:
        self._inner = FakeBackend()
        self.made: list[WatchedSandbox] = []
        self.fails_with: SandboxError | None = None
        self.commands_fail_with: SandboxError | None = None

    async def start(self) -> None:
        await self._inner.start()

    async def create(self, spec: SandboxSpec) -> WatchedSandbox:
        if self.fails_with:
            raise self.fails_with
        sandbox = WatchedSandbox(await self._inner.create(spec), self.commands_fail_with)
        self.made.append(sandbox)
        return sandbox

    async def fork(self, snapshot: Snapshot) -> WatchedSandbox:
        sandbox = WatchedSandbox(await self._inner.fork(snapshot), self.commands_fail_with)
        self.made.append(sandbox)
        return sandbox

    async def export(self, snapshot: Snapshot, max_bytes: int = 64 << 20) -> Archive:
        return await self._inner.export(snapshot, max_bytes)

    async def import_snapshot(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        return await self._inner.import_snapshot(archive, spec)

    async def discard(self, snapshot: Snapshot) -> None:
        await self._inner.discard(snapshot)

    async def close(self) -> None:
        for sandbox in self.made:
            await sandbox.close()
        await self._inner.close()

    @property
    def open_count(self) -> int:
        return sum(sandbox.is_open for sandbox in self.made)


def files(**contents: str) -> Archive:
    return pack([Entry(name, EntryKind.FILE, data=text.encode()) for name, text in contents.items()])
