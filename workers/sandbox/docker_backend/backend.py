"""Sandboxes as containers of this host's Docker engine.

Invariants: a container's name is recorded before it exists; it bears its owner in its labels and its owner holds
its stdin, so that it ends with its owner, and where the engine missed that, the sweep at start and every minute
removes it; its memory, volumes and processes go with it. The image is read-only; the workspace's layers are laid
before anything runs in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workers.archive import EMPTY, Archive, Entry, unpack
from workers.errors import SandboxError, Unsupported
from workers.sandbox.docker_backend import container as settings
from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.engine import Engine, EngineError, ImageFacts
from workers.sandbox.docker_backend.first import FirstProcess
from workers.sandbox.docker_backend.images import Images
from workers.sandbox.docker_backend.owner import labels
from workers.sandbox.docker_backend.proof import prove
from workers.sandbox.docker_backend.sandbox import Container, DockerSandbox
from workers.sandbox.docker_backend.state import visible
from workers.sandbox.docker_backend.sweep import keep_sweeping, sweep
from workers.sandbox.docker_backend.tree import laid
from workers.sandbox.protocol import SandboxSpec, Snapshot
from workers.sandbox.results import check_paths
from workers.sandbox.union import merge
from workers.sandbox.warm import WarmOptions, WarmPool

_PREPARED = 16
_ROOT = ("0", "root")


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """How this host's engine is used.

    url: the engine's address; empty means DOCKER_HOST or the usual socket.
    image: what a task whose image is `host` gets.
    run: what containers are labelled with.
    user: `uid:gid` of the agent; empty means the image's own user, or 1000:1000 where that is root.
    threads: calls to the engine at once.
    call_timeout_s: how long the engine may take for one.
    output_kill_mb: a command that prints more than this is killed.
    warm: how many sandboxes are made ahead of need.
    """

    url: str = ""
    image: str = "python:3.11-slim"
    run: str = ""
    user: str = ""
    threads: int = 8
    call_timeout_s: float = 120.0
    output_kill_mb: int = 64
    warm: WarmOptions = field(default_factory=WarmOptions)


class DockerBackend:
    """Makes containers. `record` is told each one's name before it is asked for."""

    def __init__(
        self, options: DockerOptions = DockerOptions(), record: Callable[[str], None] = lambda name: None
    ) -> None:
        self._options = options
        self._record = record
        self._engine: Engine | None = None
        self._images: Images | None = None
        self._labels = labels(options.run)
        self._sweeper: asyncio.Task[None] | None = None
        self._warm: WarmPool[DockerSandbox] | None = None
        self._living: dict[str, Container] = {}
        self._snapshots: dict[str, Archive] = {}
        self._numbers = itertools.count(1)
        self._prepared: OrderedDict[str, tuple[tuple[Entry, ...], list[tuple[str, bytes]]]] = OrderedDict()
        self._laying = threading.Lock()

    async def start(self) -> None:
        """Reach the engine and remove what dead owners left. Raises SandboxError with the remedy."""
        if self._engine is not None:
            return
        engine = Engine(self._options.url, self._options.threads, self._options.call_timeout_s)
        try:
            await engine.call(docker.version)
            await sweep(engine)
        except EngineError as error:
            engine.close()
            remedy = "start dockerd, give this user access to its socket, or use sandbox=bubblewrap"
            raise SandboxError("engine_unreachable", f"{error}; {remedy}") from error
        self._engine = engine
        self._images = Images(engine, self._options.image, self._labels, self._new_name)
        self._warm = WarmPool(lambda spec: self._sandbox(spec, EMPTY), self._options.warm)
        self._sweeper = asyncio.create_task(keep_sweeping(engine))

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """A fresh container with the spec's layers laid: one that is ready, else one made now."""
        self._check(spec)
        if self._warm is None:
            raise SandboxError("create_failed", "the backend was not started, or was closed")
        return await self._warm.take(spec)

    async def prewarm(self, spec: SandboxSpec) -> None:
        """Make some sandboxes ready for a spec that will be asked for."""
        self._check(spec)
        if self._warm is not None:
            await self._warm.prewarm(spec)

    async def fork(self, snapshot: Snapshot) -> DockerSandbox:
        """A fresh container with the snapshot's archive above the spec's layers."""
        return await self._sandbox(snapshot.spec, self.kept(snapshot))

    async def export(self, snapshot: Snapshot, max_bytes: int = 64 << 20) -> Archive:
        """The snapshot's archive, which is how it is kept."""
        archive = self.kept(snapshot)
        if archive.size_bytes > max_bytes:
            raise SandboxError("snapshot_too_large", f"more than {max_bytes} bytes")
        return archive

    async def import_snapshot(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        """Keep an exported archive. Raises ValueError where it is none."""
        check_paths(spec)
        for _ in unpack(archive):
            pass
        return self.keep(archive, spec)

    async def discard(self, snapshot: Snapshot) -> None:
        """Drop a snapshot's archive. Safe twice."""
        self._snapshots.pop(snapshot.name, None)

    async def close(self) -> None:
        """Remove every container. Safe twice."""
        warm, self._warm = self._warm, None
        if warm is not None:
            await warm.close()
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        living, self._living = list(self._living.values()), {}
        await asyncio.gather(*(_remove(engine, container) for container in living))
        self._snapshots.clear()
        engine.close()

    def keep(self, archive: Archive, spec: SandboxSpec) -> Snapshot:
        """Hold an archive as a snapshot."""
        snapshot = Snapshot(f"docker-{secrets.token_hex(4)}-{next(self._numbers)}", spec)
        self._snapshots[snapshot.name] = archive
        return snapshot

    def kept(self, snapshot: Snapshot) -> Archive:
        """A snapshot's archive. Raises SandboxError `bad_snapshot`."""
        if snapshot.name not in self._snapshots:
            raise SandboxError("bad_snapshot", f"{snapshot.name} is not kept here")
        return self._snapshots[snapshot.name]

    async def make(self, spec: SandboxSpec, above: Archive) -> Container:
        """A container that runs, with everything laid. Raises SandboxError; nothing stays where it does."""
        self._check(spec)
        engine, images = self._parts()
        image = await images.find(spec.image)
        user = self._user(image)
        layers = (await images.workspace(image, spec.workspace_path), *spec.layers)
        before, contents = await engine.work(lambda: self._laid(spec, layers, above, user))
        name = self._new_name()
        body = settings.request(image.identity, spec, user, self._labels)
        making = asyncio.create_task(_bring_up(engine, name, body, contents))
        try:
            identity, first = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(lambda task: None if task.cancelled() else task.exception())
            await asyncio.wait((making,), timeout=self._options.call_timeout_s)
            if making.done() and not making.cancelled() and making.exception() is None:
                making.result()[1].close()
            await asyncio.shield(_remove_named(engine, name))
            raise
        container = Container(
            identity, image.identity, first, user, image.path, before, _digest(image, spec, above)
        )
        self._living[identity] = container
        return container

    async def remove(self, container: Container) -> None:
        """Remove a container. Safe twice, and under cancellation."""
        if self._living.pop(container.identity, None) is not None and self._engine is not None:
            await asyncio.shield(_remove(self._engine, container))

    async def prove(self, container: Container, spec: SandboxSpec) -> None:
        """Raises SandboxError `dirty_reset` where a container is not on what it should be."""
        engine, images = self._parts()
        wanted = await images.fingerprint(container.image)
        await prove(engine, container.identity, container.image, wanted, spec)

    async def _sandbox(self, spec: SandboxSpec, above: Archive) -> DockerSandbox:
        engine, _ = self._parts()
        container = await self.make(spec, above)
        return DockerSandbox(engine, self, spec, container, self._options.output_kill_mb << 20)

    def _laid(
        self, spec: SandboxSpec, layers: tuple[Archive, ...], above: Archive, user: str
    ) -> tuple[tuple[Entry, ...], list[tuple[str, bytes]]]:
        """The workspace as its layers make it, and what is laid where. Pools ask for the same again and again."""
        key = _digest_of(spec, layers, above, user)
        with self._laying:
            if (known := self._prepared.get(key)) is not None:
                self._prepared.move_to_end(key)
                return known
        before = visible(merge(layers), spec)
        filled = before if above == EMPTY else visible(merge((*layers, above)), spec)
        made = (before, _contents(spec, filled, user))
        with self._laying:
            self._prepared[key] = made
            while len(self._prepared) > _PREPARED:
                self._prepared.popitem(last=False)
        return made

    def _new_name(self) -> str:
        name = f"rollcage-{secrets.token_hex(8)}"
        self._record(name)
        return name

    @staticmethod
    def _check(spec: SandboxSpec) -> None:
        check_paths(spec)
        if spec.limits.allow_internet:
            raise Unsupported("internet access from a sandbox", "an image that holds what the task needs")

    def _parts(self) -> tuple[Engine, Images]:
        if self._engine is None or self._images is None:
            raise SandboxError("create_failed", "the backend was not started, or was closed")
        return self._engine, self._images

    def _user(self, image: ImageFacts) -> str:
        """Numbers, since files are laid by them; a name of the image's is left to 1000."""
        wanted = self._options.user or image.user
        uid, _, gid = wanted.partition(":")
        if uid in _ROOT or not uid.isdigit() or (gid and not gid.isdigit()):
            return settings.AGENT
        return f"{uid}:{gid or uid}"


async def _bring_up(
    engine: Engine, name: str, body: settings.Json, contents: list[tuple[str, bytes]]
) -> tuple[str, FirstProcess]:
    """Create, hold, start and fill a container; nothing of it stays where that fails."""
    first: FirstProcess | None = None
    try:
        identity = await engine.call(lambda client: docker.create_container(client, name, body))
        first = FirstProcess(await engine.call(lambda client: docker.attach(client, identity)))
        await engine.call(lambda client: docker.start(client, identity))
        for path, data in contents:
            await engine.call(lambda c, p=path, d=data: docker.put_archive(c, identity, p, d))  # type: ignore[misc]
        await first.counts()
        return identity, first
    except BaseException as error:
        if first is not None:
            first.close()
        await _remove_named(engine, name)
        if isinstance(error, EngineError):
            raise SandboxError("create_failed", str(error)) from error
        raise


def _contents(spec: SandboxSpec, workspace: tuple[Entry, ...], user: str) -> list[tuple[str, bytes]]:
    """What is laid where: the agent's own files, then the protected ones, which are root's."""
    uid, _, gid = user.partition(":")
    contents = [(spec.workspace_path, laid(workspace, int(uid), int(gid)))] if workspace else []
    return contents + [(item.path, laid(unpack(item.files), 0, 0)) for item in spec.read_only]


def _digest(image: ImageFacts, spec: SandboxSpec, above: Archive) -> str:
    """The reset digest. The engine answers for the image, whose identity is its content's."""
    return hashlib.sha256(
        f"image {image.identity}\n{_digest_of(spec, spec.layers, above, '')}".encode()
    ).hexdigest()


def _digest_of(spec: SandboxSpec, layers: Sequence[Archive], above: Archive, user: str) -> str:
    facts = [
        f"workspace {spec.workspace_path}",
        f"user {user}",
        *(f"layer {layer.digest}" for layer in layers),
    ]
    facts += [
        f"mount {item.path} {item.files.digest}" for item in sorted(spec.read_only, key=lambda m: m.path)
    ]
    facts += [] if above == EMPTY else [f"snapshot {above.digest}"]
    return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


async def _remove(engine: Engine, container: Container) -> None:
    try:
        await _remove_named(engine, container.identity)
    finally:
        container.first.close()


async def _remove_named(engine: Engine, name: str) -> None:
    try:
        await engine.call(lambda client: docker.remove_container(client, name))
    except EngineError as error:
        raise SandboxError("remove_failed", str(error)) from error
