"""Sandboxes by bubblewrap, without root or a daemon.

Everything that a sandbox is (processes, mounts, files) lives in the namespaces of a keeper process, one for
each core; when the owner dies, however it dies, the kernel removes it all.
Invariants: a sandbox is handed out only with its reset proved from inside the keeper; closing is safe twice and
under cancellation; no wait is without a deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from workers.archive import Archive
from workers.errors import SandboxError, Unsupported
from workers.sandbox.client import KeeperClient
from workers.sandbox.doctor import why_not
from workers.sandbox.image import HostImage, host_image
from workers.sandbox.messages import Close, Create, Exec, Freeze, Mount, Operation, Probe, Read, Setup, Write
from workers.sandbox.protocol import Bound, Command, ExecResult, FinalState, SandboxSpec, Snapshot, StateDiff
from workers.sandbox.results import change_of, check_paths, exec_result, file_error, refused
from workers.sandbox.slot import HOME
from workers.sandbox.warm import WarmOptions, WarmPool, WarmStats

logger = logging.getLogger(__name__)
_GRACE_S = 15.0
_FILE_TIMEOUT_S = 20.0
_PROBE_TIMEOUT_S = 5.0
_FREEZE_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 30.0
_IMPORT_ROUNDS = 4
_MAX_RESTARTS = 16


@dataclass(frozen=True, slots=True)
class BubblewrapOptions:
    """How this host is shared out.

    keepers: keeper processes; 0 means one for each core.
    uid: the user that keepers run under when the owner is root; no other process should have it.
    layer_limit_mb: memory for unpacked layers in each keeper.
    output_kill_mb: a command that prints more than this is killed.
    create_timeout_s: how long a sandbox may take to come up.
    masked: more folders under /usr that no sandbox may see.
    warm: how many sandboxes are made ahead of need.
    """

    keepers: int = 0
    uid: int = 64917
    layer_limit_mb: int = 1024
    output_kill_mb: int = 64
    create_timeout_s: float = 20.0
    masked: tuple[str, ...] = ()
    warm: WarmOptions = field(default_factory=WarmOptions)


class BubblewrapBackend:
    """Makes bubblewrap sandboxes on this host."""

    def __init__(self, options: BubblewrapOptions = BubblewrapOptions()) -> None:
        self._options = options
        self._keepers: list[KeeperClient] = []
        self._numbers = itertools.count(1)
        self._image: HostImage | None = None
        self._mending = asyncio.Lock()
        self._restarts_left = _MAX_RESTARTS
        self._warm: WarmPool[BubblewrapSandbox] | None = None

    async def start(self) -> None:
        """Start the keepers. Raises SandboxError with the remedy where this machine can't."""
        if self._keepers:
            return
        _raise_open_files()
        image = await asyncio.to_thread(host_image, self._options.masked)
        self._image = image
        self._warm = WarmPool(self._make, self._options.warm)
        try:
            for _ in range(self._options.keepers or len(os.sched_getaffinity(0))):
                self._keepers.append(await self._start_keeper(image))
        except SandboxError as error:
            await self.close()
            raise await asyncio.to_thread(why_not) or error from error
        except BaseException:
            await self.close()
            raise

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """A fresh sandbox, its reset proved: one that is ready, else one made now."""
        _check(spec)
        if self._warm is None:
            raise SandboxError("create_failed", "the backend was not started, or was closed")
        return await self._warm.take(spec)

    async def prewarm(self, spec: SandboxSpec) -> None:
        """Make some sandboxes ready for a spec that will be asked for."""
        _check(spec)
        if self._warm is not None:
            await self._warm.prewarm(spec)

    @property
    def warm_stats(self) -> WarmStats:
        """How sandboxes were acquired since the start."""
        return self._warm.stats if self._warm is not None else WarmStats()

    async def _make(self, spec: SandboxSpec) -> BubblewrapSandbox:
        keeper = min(await self._living(), key=lambda k: k.slot_count)
        keeper.slot_count += 1
        number = next(self._numbers)
        try:
            digest = await self._create_on(keeper, number, spec)
        except BaseException:
            keeper.slot_count -= 1
            keeper.post_close(number)
            raise
        assert self._image is not None
        return BubblewrapSandbox(keeper, number, spec, digest, self._image.agent_path, self._options)

    async def fork(self, snapshot: Snapshot) -> BubblewrapSandbox:
        raise _no_snapshots()

    async def export(self, snapshot: Snapshot, max_bytes: int = 64 << 20) -> Archive:
        raise _no_snapshots()

    async def import_snapshot(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        raise _no_snapshots()

    async def discard(self, snapshot: Snapshot) -> None:
        """There is none. Safe twice."""

    async def close(self) -> None:
        """End every keeper and with it every sandbox. Safe twice."""
        warm, self._warm = self._warm, None
        if warm is not None:
            await warm.close()
        keepers, self._keepers = self._keepers, []
        await asyncio.gather(*(keeper.close() for keeper in keepers))

    async def _living(self) -> list[KeeperClient]:
        """The keepers that can take a slot; dead ones are replaced, a bounded number of times."""
        if self._image is None or not self._keepers:
            raise SandboxError("create_failed", "the backend was not started, or was closed")
        async with self._mending:
            for place, keeper in enumerate(self._keepers):
                if not keeper.is_alive and self._restarts_left > 0:
                    self._restarts_left -= 1
                    logger.warning("keeper %d died; another takes its place", keeper.pid)
                    await keeper.close()
                    self._keepers[place] = await self._start_keeper(self._image)
        living = [keeper for keeper in self._keepers if keeper.is_alive]
        if not living:
            raise SandboxError("keeper_died", "every keeper died, too often to start another")
        return living

    async def _start_keeper(self, image: HostImage) -> KeeperClient:
        keeper = await asyncio.to_thread(KeeperClient, image, self._options.uid)
        try:
            await keeper.set_up(self._setup(image), self._options.create_timeout_s)
            await keeper.give(image.etc.digest, image.etc.data, self._options.create_timeout_s)
        except BaseException:
            await keeper.close()
            raise
        return keeper

    def _setup(self, image: HostImage) -> Setup:
        return Setup(
            uid=self._options.uid,
            image_digest=image.digest,
            etc=image.etc.digest,
            binds=image.binds,
            links=image.links,
            path=image.agent_path,
            first_process=image.first_process,
            layer_limit_bytes=self._options.layer_limit_mb << 20,
            create_timeout_s=self._options.create_timeout_s,
        )

    async def _create_on(self, keeper: KeeperClient, number: int, spec: SandboxSpec) -> str:
        """Ask for the slot, handing over the layers that the keeper does not hold."""
        assert self._image is not None
        archives = (self._image.etc, *spec.layers, *(item.files for item in spec.read_only))
        by_digest = {archive.digest: archive for archive in archives}
        request = _create_request(number, spec)
        for _ in range(_IMPORT_ROUNDS):
            answer = await keeper.call(Operation.CREATE, request, self._options.create_timeout_s + _GRACE_S)
            missing = answer.head.get("missing")
            if not isinstance(missing, list):
                return str(answer.head["reset_digest"])
            for digest in missing:
                archive = by_digest[str(digest)]
                await keeper.give(archive.digest, archive.data, self._options.create_timeout_s + _GRACE_S)
        raise SandboxError("layers_full", "the keeper can't hold this sandbox's layers: raise layer_limit_mb")


class BubblewrapSandbox:
    """One slot of a keeper."""

    def __init__(
        self, keeper: KeeperClient, number: int, spec: SandboxSpec, reset_digest: str, path: str,
        options: BubblewrapOptions,
    ) -> None:  # fmt: skip
        self._keeper = keeper
        self._number = number
        self._workspace = spec.workspace_path
        self._path = path
        self._options = options
        self._reset_digest = reset_digest
        self._is_closed = False

    @property
    def reset_digest(self) -> str:
        return self._reset_digest

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
            cwd=self._absolute(command.cwd or self._workspace),
            timeout_s=command.timeout_s,
            output_limit_bytes=command.output_limit_bytes,
            output_kill_bytes=self._options.output_kill_mb << 20,
            open_files=command.open_files,
            cpu_s=command.cpu_s,
        )
        words = [os.fsencode(word) for word in (*command.argv, *self._environment(command))]
        if any(b"\0" in word for word in words) or not command.argv:
            return refused(126, "an argument is empty or holds a NUL byte")
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
        request = Read(self._number, self._absolute(path), max_bytes)
        try:
            answer = await self._keeper.call(Operation.READ, request, _FILE_TIMEOUT_S + _GRACE_S)
        except OSError as error:
            raise file_error(error, path) from error
        return answer.blobs[0]

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file as the agent would, making folders on the way."""
        request = Write(self._number, self._absolute(path))
        await self._keeper.call(Operation.WRITE, request, _FILE_TIMEOUT_S + _GRACE_S, (data,))

    async def diff(self, max_bytes: int = 64 << 20) -> StateDiff:
        raise Unsupported("the diff of a living bubblewrap sandbox", "freeze")

    async def snapshot(self) -> Snapshot:
        raise _no_snapshots()

    async def restore(self, snapshot: Snapshot) -> None:
        raise _no_snapshots()

    async def verify(self) -> None:
        raise Unsupported("proof on demand of a bubblewrap sandbox", "the proof at its reset")

    async def freeze(self, max_bytes: int = 64 << 20) -> FinalState:
        """Kill every process in the sandbox, then read what changed in the workspace."""
        request = Freeze(self._number, max_bytes, _FREEZE_TIMEOUT_S)
        answer = await self._keeper.call(Operation.FREEZE, request, _FREEZE_TIMEOUT_S + _GRACE_S)
        too_large = str(answer.head["too_large"])
        listed = answer.head["changes"]
        assert isinstance(listed, list)
        changes = tuple(change_of(item) for item in listed if isinstance(item, list))
        archive = None if too_large else Archive(answer.blobs[0], str(answer.head["digest"]))
        return FinalState(archive, too_large, changes)

    async def close(self) -> None:
        """Destroy it. Safe twice, and under cancellation."""
        if self._is_closed:
            return
        self._is_closed = True
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
        return str(PurePosixPath(self._workspace) / path)

    def _environment(self, command: Command) -> list[str]:
        variables = {
            "PATH": self._path, "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash",
            "LANG": "C.UTF-8", "TERM": "dumb", **dict(command.env),
        }  # fmt: skip
        return [f"{name}={value}" for name, value in variables.items()]


def _bounds(listed: object) -> tuple[Bound, ...]:
    assert isinstance(listed, list)
    return tuple(Bound(str(name)) for name in listed)


def _no_snapshots() -> Unsupported:
    return Unsupported("snapshots of bubblewrap sandboxes", "freeze, and a layer of its archive")


def _create_request(number: int, spec: SandboxSpec) -> Create:
    return Create(
        slot=number,
        workspace_path=spec.workspace_path,
        layers=_topmost(layer.digest for layer in spec.layers),
        mounts=tuple(Mount(item.path, item.files.digest) for item in spec.read_only),
        limits=spec.limits,
    )


def _topmost(digests: Iterable[str]) -> tuple[str, ...]:
    """Each layer once, where it lies highest: an overlay refuses a second, and below the first it shows nothing."""
    return tuple(dict.fromkeys(reversed(list(digests))))[::-1]


def _check(spec: SandboxSpec) -> None:
    if spec.image != "host":
        raise Unsupported(f"image {spec.image!r}", 'sandbox=docker, or image = "host"')
    if spec.limits.allow_internet:
        raise Unsupported("internet access from a bubblewrap sandbox", "sandbox=docker")
    check_paths(spec)


def _raise_open_files() -> None:
    """The kernel refuses to pass descriptors once a user has more in flight than this, and where we are not root
    every slot is the same user as we are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
