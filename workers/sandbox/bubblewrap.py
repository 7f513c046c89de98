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
from dataclasses import dataclass, field

from workers.archive import Archive
from workers.errors import SandboxError, Unsupported
from workers.sandbox.bubblewrap_sandbox import BubblewrapSandbox
from workers.sandbox.client import KeeperClient
from workers.sandbox.doctor import why_not
from workers.sandbox.held import Held, Shelf, topmost
from workers.sandbox.image import HostImage, host_image
from workers.sandbox.messages import Create, Export, Mount, Operation, Setup
from workers.sandbox.protocol import SandboxSpec, Snapshot
from workers.sandbox.results import check_paths
from workers.sandbox.warm import WarmOptions, WarmPool, WarmStats

logger = logging.getLogger(__name__)
_GRACE_S = 15.0
_EXPORT_TIMEOUT_S = 120.0
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
    verify_every: of so many fresh sandboxes one is read back byte by byte; 0 means none.
    """

    keepers: int = 0
    uid: int = 64917
    layer_limit_mb: int = 1024
    output_kill_mb: int = 64
    create_timeout_s: float = 20.0
    masked: tuple[str, ...] = ()
    warm: WarmOptions = field(default_factory=WarmOptions)
    verify_every: int = 0


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
        self._samples = itertools.count(1)
        self.shelf = Shelf()
        self.resting: set[BubblewrapSandbox] = set()
        self.dirty_resets = 0

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

    @property
    def output_kill_bytes(self) -> int:
        return self._options.output_kill_mb << 20

    @property
    def agent_path(self) -> str:
        """The PATH of commands."""
        assert self._image is not None
        return self._image.agent_path

    async def _make(self, spec: SandboxSpec) -> BubblewrapSandbox:
        return await self._make_from(spec, None)

    async def _make_from(self, spec: SandboxSpec, held: Held | None) -> BubblewrapSandbox:
        living = await self._living()
        keeper = held.keeper if held and held.keeper else min(living, key=lambda k: k.slot_count)
        keeper.slot_count += 1
        number = next(self._numbers)
        sandbox = BubblewrapSandbox(self, keeper, number, spec, held)
        try:
            await sandbox.begin()
            await self._sample(sandbox)
        except BaseException as error:
            keeper.slot_count -= 1
            keeper.post_close(number)
            if isinstance(error, SandboxError) and error.cause == "dirty_reset":
                self.dirty_resets += 1
            raise
        return sandbox

    async def _sample(self, sandbox: BubblewrapSandbox) -> None:
        """Read every so manieth sandbox back, byte by byte."""
        every = self._options.verify_every
        if every and next(self._samples) % every == 0:
            await sandbox.verify()

    async def fork(self, snapshot: Snapshot) -> BubblewrapSandbox:
        """A fresh sandbox that starts from a snapshot, its reset proved."""
        return await self._make_from(snapshot.spec, self.shelf.find(snapshot))

    async def export(self, snapshot: Snapshot, max_bytes: int = 64 << 20) -> Archive:
        """What a snapshot changes against its spec's layers."""
        held = self.shelf.find(snapshot)
        if held.keeper is None:
            if held.archive.size_bytes > max_bytes:
                raise SandboxError("snapshot_too_large", f"more than {max_bytes} bytes")
            return held.archive
        layers = topmost(layer.digest for layer in snapshot.spec.layers)
        answer = await held.keeper.call(
            Operation.EXPORT, Export(layers, held.above, max_bytes), _EXPORT_TIMEOUT_S
        )
        if answer.head["too_large"]:
            raise SandboxError("snapshot_too_large", str(answer.head["too_large"]))
        return Archive(answer.blobs[0], str(answer.head["digest"]))

    async def import_snapshot(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        """Keep an exported archive as a snapshot."""
        _check(spec)
        return self.shelf.add_archive(archive, spec).snapshot

    async def discard(self, snapshot: Snapshot) -> None:
        """Give up a snapshot; sandboxes that stand on it go on. Safe twice."""
        for sandbox in [s for s in self.resting if s.rests_on(snapshot)]:
            await sandbox.wake()
        await self.shelf.discard(snapshot)

    async def close(self) -> None:
        """End every keeper and with it every sandbox. Safe twice."""
        warm, self._warm = self._warm, None
        if warm is not None:
            await warm.close()
        self.shelf.clear()
        self.resting.clear()
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

    async def lay(self, keeper: KeeperClient, number: int, spec: SandboxSpec, held: Held | None) -> str:
        """Ask for a slot, handing over the layers that the keeper does not hold; its reset digest."""
        assert self._image is not None
        archives = [self._image.etc, *spec.layers, *(item.files for item in spec.read_only)]
        archives += [held.archive] if held else []
        by_digest = {archive.digest: archive for archive in archives}
        request = _create_request(number, spec, held.above if held else ())
        for _ in range(_IMPORT_ROUNDS):
            answer = await keeper.call(Operation.CREATE, request, self._options.create_timeout_s + _GRACE_S)
            missing = answer.head.get("missing")
            if not isinstance(missing, list):
                return str(answer.head["reset_digest"])
            for digest in missing:
                archive = by_digest[str(digest)]
                await keeper.give(archive.digest, archive.data, self._options.create_timeout_s + _GRACE_S)
        raise SandboxError("layers_full", "the keeper can't hold this sandbox's layers: raise layer_limit_mb")


def _create_request(number: int, spec: SandboxSpec, above: tuple[str, ...]) -> Create:
    return Create(
        slot=number,
        workspace_path=spec.workspace_path,
        layers=tuple(
            digest for digest in topmost(layer.digest for layer in spec.layers) if digest not in above
        ),
        above=above,
        mounts=tuple(Mount(item.path, item.files.digest) for item in spec.read_only),
        limits=spec.limits,
    )


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
