"""A sandbox without walls, for tests of everything above it: a temporary folder and plain child processes.

Invariants: it keeps the contract of the protocol (layers, results, frozen states, errors), except that nothing
is isolated and only time and output are limited. Absolute paths given to its methods lie in the temporary
folder; the commands themselves see the real machine. Never for code that isn't trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path, PurePosixPath

from workers.archive import EMPTY, Archive, pack, unpack
from workers.errors import SandboxError, Unsupported
from workers.sandbox import files
from workers.sandbox.changes import changes
from workers.sandbox.layers import unpack_into
from workers.sandbox.protocol import Command, ExecResult, FinalState, SandboxSpec, Snapshot, StateDiff
from workers.sandbox.results import OUTPUT, TIMEOUT, change_of, check_paths, exec_result, file_error, refused
from workers.sandbox.supervisor import Capture
from workers.sandbox.tree import TooLarge, Tree, walk
from workers.sandbox.union import difference, merge
from workers.sandbox.wire import memory_file

_OUTPUT_KILL_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
_POLL_MS = 20
_REAP_TIMEOUT_S = 10.0
_SNAPSHOT_LIMIT_BYTES = 1 << 30


class FakeBackend:
    """Makes fake sandboxes."""

    def __init__(self) -> None:
        self._sandboxes: list[FakeSandbox] = []
        self._snapshots: dict[str, Archive] = {}
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Nothing to make ready."""

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        """A temporary folder with the spec's layers and mounts laid out."""
        return await self._make(spec, EMPTY)

    async def fork(self, snapshot: Snapshot) -> FakeSandbox:
        """A temporary folder with the spec's layers and the snapshot laid out."""
        return await self._make(snapshot.spec, self.held(snapshot))

    async def export(self, snapshot: Snapshot, max_bytes: int = 64 << 20) -> Archive:
        """The snapshot's archive, which is how it is kept."""
        archive = self.held(snapshot)
        if archive.size_bytes > max_bytes:
            raise SandboxError("snapshot_too_large", f"more than {max_bytes} bytes")
        return archive

    async def import_snapshot(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        """Keep an archive."""
        check_paths(spec)
        for _ in unpack(archive):
            pass  # raises where it is none
        return self.hold(archive, spec)

    async def discard(self, snapshot: Snapshot) -> None:
        """Drop the archive. Safe twice."""
        self._snapshots.pop(snapshot.name, None)

    def hold(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        snapshot = Snapshot(f"fake-{id(self)}-{next(self._numbers)}", spec)
        self._snapshots[snapshot.name] = archive
        return snapshot

    def held(self, snapshot: Snapshot) -> Archive:
        """A snapshot's archive. Raises SandboxError `bad_snapshot`."""
        if snapshot.name not in self._snapshots:
            raise SandboxError("bad_snapshot", f"{snapshot.name} is not kept here")
        return self._snapshots[snapshot.name]

    async def _make(self, spec: SandboxSpec, above: Archive) -> FakeSandbox:
        check_paths(spec)
        sandbox = await asyncio.to_thread(FakeSandbox, self, spec, above)
        self._sandboxes.append(sandbox)
        return sandbox

    async def close(self) -> None:
        """Close every sandbox that it made. Safe twice."""
        self._snapshots.clear()
        sandboxes, self._sandboxes = self._sandboxes, []
        for sandbox in sandboxes:
            await sandbox.close()


class FakeSandbox:
    """One temporary folder."""

    def __init__(self, backend: FakeBackend, spec: SandboxSpec, above: Archive) -> None:
        self._backend = backend
        self._spec = spec
        self._folder = Path(tempfile.mkdtemp(prefix="rollcage-fake-"))
        self._root, self._base = self._folder / "root", self._folder / "base"
        self._sessions: set[int] = set()
        self._is_closed = self._is_frozen = False
        unpack_into(_made(self._base), merge(spec.layers))
        self.reset_digest = self._lay(above)

    async def exec(self, command: Command) -> ExecResult:
        """Run one command to its end or to a limit, on this machine itself."""
        self._check_usable()
        return await asyncio.to_thread(self._run, command)

    async def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Read a regular file."""
        self._check_usable()
        try:
            return await asyncio.to_thread(files.read, str(self._place(path)), max_bytes)
        except OSError as error:
            raise file_error(error, path) from error

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file, making folders on the way."""
        self._check_usable()
        await asyncio.to_thread(files.write, str(self._place(path)), data)

    async def diff(self, max_bytes: int = 64 << 20) -> StateDiff:
        """Compare the workspace with what it began as."""
        self._check_usable()
        state = await asyncio.to_thread(self._difference, max_bytes)
        return StateDiff(state.changes, state.too_large)

    async def snapshot(self) -> Snapshot:
        """End the commands' sessions, then keep the difference."""
        self._check_usable()
        self._kill_sessions()
        state = await asyncio.to_thread(self._difference, _SNAPSHOT_LIMIT_BYTES)
        if state.archive is None:
            raise SandboxError("snapshot_too_large", state.too_large)
        return self._backend.hold(state.archive, self._spec)

    async def restore(self, snapshot: Snapshot) -> None:
        """Lay the folder out anew."""
        self._check_usable()
        if snapshot.spec != self._spec:
            raise SandboxError("bad_snapshot", f"{snapshot.name} is of another spec")
        above = self._backend.held(snapshot)
        self._kill_sessions()
        self.reset_digest = await asyncio.to_thread(self._lay, above)

    async def verify(self) -> None:
        raise Unsupported("proof of what a sandbox without walls stands on", "sandbox=bubblewrap")

    async def freeze(self, max_bytes: int = 64 << 20) -> FinalState:
        """End the commands' sessions, then compare the workspace with what it began as."""
        self._check_usable()
        self._is_frozen = True
        self._kill_sessions()
        return await asyncio.to_thread(self._difference, max_bytes)

    async def close(self) -> None:
        """Remove the folder. Safe twice."""
        if not self._is_closed:
            self._is_closed = True
            self._kill_sessions()
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def _workspace(self) -> Path:
        return self._root / self._spec.workspace_path.lstrip("/")

    def _place(self, path: str) -> Path:
        absolute = PurePosixPath(self._spec.workspace_path) / path
        return self._root / str(absolute).lstrip("/")

    def _lay(self, above: Archive) -> str:
        """Lay the layers, `above` and the mounts; the reset digest."""
        spec = self._spec
        shutil.rmtree(self._root, ignore_errors=True)
        unpack_into(_made(self._workspace), merge((*spec.layers, above)))
        for item in spec.read_only:
            place = self._place(item.path)
            if place.is_dir():
                shutil.rmtree(place)
            unpack_into(_made(place), unpack(item.files))
        facts = [spec.image, spec.workspace_path, *(layer.digest for layer in spec.layers)]
        facts += [f"{item.path} {item.files.digest}" for item in spec.read_only]
        facts += [] if above == EMPTY else [f"snapshot {above.digest}"]
        return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()

    def _check_usable(self) -> None:
        if self._is_closed or self._is_frozen:
            raise SandboxError("closed", "the sandbox was frozen or closed")

    def _kill_sessions(self) -> None:
        for session in self._sessions:
            try:
                os.killpg(session, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _run(self, command: Command) -> ExecResult:
        if command.user not in ("", "agent"):
            raise Unsupported(f"user {command.user!r} in a fake sandbox", "sandbox=docker")
        if command.open_files is not None or command.cpu_s is not None:
            raise Unsupported("limits of one command in a fake sandbox", "sandbox=bubblewrap")
        started = time.monotonic()
        cwd = self._place(command.cwd or self._spec.workspace_path)
        stdin = memory_file(command.stdin) if command.stdin else os.open("/dev/null", os.O_RDONLY)
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self._folder), "LANG": "C.UTF-8", **dict(command.env)
        }  # fmt: skip
        try:
            process = subprocess.Popen(
                list(command.argv), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=env,
                start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError as error:
            return refused(127, f"{error.filename}: not found")
        except (OSError, ValueError) as error:
            return refused(126, str(error))
        finally:
            os.close(stdin)
        self._sessions.add(process.pid)
        with process:
            captures, limit = _watch(process, command, started)
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()
            code = process.wait(_REAP_TIMEOUT_S)
        stdout, stderr = (capture.result() for capture in captures)
        dropped = sum(capture.total for capture in captures) - len(stdout) - len(stderr)
        return exec_result(code, limit, stdout, stderr, dropped, time.monotonic() - started)

    def _difference(self, max_bytes: int) -> FinalState:
        try:
            now, before = _walk(self._workspace, max_bytes), _walk(self._base, 1 << 62)
        except TooLarge as error:
            return FinalState(None, str(error), ())
        mounted = tuple(
            item.path.removeprefix(f"{self._spec.workspace_path}/")
            for item in self._spec.read_only
            if item.path.startswith(f"{self._spec.workspace_path}/")
        )
        entries, old = (
            [entry for entry in found.entries if not _is_within(entry.path, mounted)]
            for found in (now, before)
        )
        tree = Tree(difference(entries, old), now.skipped, now.size_bytes)
        listed = changes(tree, [str(self._base)])
        return FinalState(pack(tree.entries), "", tuple(change_of(change.to_json()) for change in listed))


def _made(place: Path) -> str:
    """`place`, with the folders on the way to it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    return str(place)


def _watch(process: subprocess.Popen[bytes], command: Command, started: float) -> tuple[list[Capture], str]:
    """Collect output until the process ends or passes a limit."""
    assert process.stdout is not None
    assert process.stderr is not None
    captures = {
        pipe.fileno(): Capture(command.output_limit_bytes) for pipe in (process.stdout, process.stderr)
    }
    poll, limit = select.poll(), ""
    for fd in captures:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    while True:
        is_over = process.poll() is not None
        found = False
        for fd, _ in poll.poll(0 if is_over else _POLL_MS):
            chunk = os.read(fd, _CHUNK_BYTES)
            found = found or bool(chunk)
            captures[fd].add(chunk)
            if not chunk:
                poll.unregister(fd)
        if is_over and (not found or limit):
            return list(captures.values()), limit
        if not limit:
            limit = _passed_limit(captures, command, started)
            if limit:
                os.killpg(process.pid, signal.SIGKILL)


def _passed_limit(captures: dict[int, Capture], command: Command, started: float) -> str:
    if sum(capture.total for capture in captures.values()) > _OUTPUT_KILL_BYTES:
        return OUTPUT
    return TIMEOUT if time.monotonic() - started > command.timeout_s else ""


def _walk(folder: Path, max_bytes: int) -> Tree:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return walk(fd, max_bytes)
    finally:
        os.close(fd)


def _is_within(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
