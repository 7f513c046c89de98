"""A sandbox backend of folders and plain processes, for tests of what stands above sandboxes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from workers.archive import Archive, Entry, EntryKind, pack, unpack
from workers.errors import SandboxError
from workers.sandbox.protocol import Command, ExecResult, FinalState, SandboxSpec
from workers.trajectory import Change, ChangeKind


class FolderSandbox:
    """Paths under the workspace and /tmp lie in a temporary folder; no wall is between it and the host."""

    def __init__(self, spec: SandboxSpec) -> None:
        self._spec = spec
        self.root = Path(tempfile.mkdtemp(prefix="double-"))
        self.workspace = self.root / spec.workspace_path.lstrip("/")
        self.workspace.mkdir(parents=True)
        (self.root / "tmp").mkdir(exist_ok=True)
        for layer in spec.layers:
            for entry in unpack(layer):
                path = self.workspace / entry.path
                path.parent.mkdir(parents=True, exist_ok=True)
                if entry.kind is EntryKind.FILE:
                    path.write_bytes(entry.data)
        self.fails_with: SandboxError | None = None

    @property
    def reset_digest(self) -> str:
        return hashlib.sha256("".join(layer.digest for layer in self._spec.layers).encode()).hexdigest()

    async def exec(self, command: Command) -> ExecResult:
        if self.fails_with:
            raise self.fails_with
        argv = [
            str(self.root / part[1:]) if part.startswith("/tmp/.script") else part for part in command.argv
        ]
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=self.workspace,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        timed_out = False
        reading = asyncio.create_task(process.communicate())
        try:
            out, err = await asyncio.wait_for(asyncio.shield(reading), command.timeout_s)
        except TimeoutError:
            timed_out = True
            os.killpg(process.pid, 9)
            out, err = await reading
        code = process.returncode or 0
        kept_out, kept_err = (_ends(data, command.output_limit_bytes) for data in (out, err))
        return ExecResult(
            exit_code=code if code >= 0 else 128 - code,
            signal=-code if code < 0 else None,
            stdout=kept_out,
            stderr=kept_err,
            dropped_bytes=len(out) + len(err) - len(kept_out) - len(kept_err),
            timed_out=timed_out,
            oom_killed=False,
            output_killed=False,
            duration_s=time.monotonic() - started,
        )

    async def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        data = self._inside(path).read_bytes()
        if len(data) > max_bytes:
            raise ValueError(f"larger than {max_bytes} bytes")
        return data

    async def write_file(self, path: str, data: bytes) -> None:
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def freeze(self, max_bytes: int = 64 << 20) -> FinalState:
        files = sorted(path for path in self.workspace.rglob("*") if path.is_file())
        entries = [
            Entry(str(path.relative_to(self.workspace)), EntryKind.FILE, data=path.read_bytes())
            for path in files
        ]
        changes = tuple(Change(entry.path, ChangeKind.ADDED) for entry in entries)
        return FinalState(pack(entries), "", changes)

    async def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")


class FolderBackend:
    """Remembers its sandboxes, so that a test can see that each was closed."""

    def __init__(self) -> None:
        self.made: list[FolderSandbox] = []
        self.fails_with: SandboxError | None = None
        self.commands_fail_with: SandboxError | None = None

    async def start(self) -> None:
        return None

    async def create(self, spec: SandboxSpec) -> FolderSandbox:
        if self.fails_with:
            raise self.fails_with
        sandbox = FolderSandbox(spec)
        sandbox.fails_with = self.commands_fail_with
        self.made.append(sandbox)
        return sandbox

    async def close(self) -> None:
        for sandbox in self.made:
            await sandbox.close()

    @property
    def leftovers(self) -> list[Path]:
        return [sandbox.root for sandbox in self.made if sandbox.root.exists()]


def files(**contents: str) -> Archive:
    return pack([Entry(name, EntryKind.FILE, data=text.encode()) for name, text in contents.items()])


def _ends(data: bytes, limit: int) -> bytes:
    return data if len(data) <= limit else data[: limit // 2] + data[len(data) - limit // 2 :]
