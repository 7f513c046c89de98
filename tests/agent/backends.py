"""The fake backend, watched: which sandboxes are still open, and failures of the host on demand."""

from __future__ import annotations

from workers.archive import Archive, Entry, EntryKind, pack
from workers.errors import SandboxError
from workers.sandbox.fake import FakeBackend, FakeSandbox
from workers.sandbox.protocol import Command, ExecResult, FinalState, SandboxSpec


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

    async def close(self) -> None:
        for sandbox in self.made:
            await sandbox.close()
        await self._inner.close()

    @property
    def open_count(self) -> int:
        return sum(sandbox.is_open for sandbox in self.made)


def files(**contents: str) -> Archive:
    return pack([Entry(name, EntryKind.FILE, data=text.encode()) for name, text in contents.items()])
