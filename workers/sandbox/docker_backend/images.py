"""Which image a task's name for it means on this engine, and what that image has at the workspace's path.

Invariants: an image is used by its content digest, so that a name that moves can't change a run; what an image
has in the workspace is the lowest layer there, read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from workers.archive import EMPTY, Archive, pack
from workers.errors import SandboxError, Unsupported
from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.engine import Engine, EngineError, ImageFacts
from workers.sandbox.docker_backend.proof import Fingerprint, fingerprint
from workers.sandbox.docker_backend.tree import Reading, read_back
from workers.sandbox.tree import TooLarge, Tree

_WORKSPACE_LIMIT_BYTES = 1 << 30


def tag_of(image: str) -> str:
    """The name under which the image of a `dockerfile:…` lies on the engine."""
    return f"rollcage-task:{image.removeprefix('dockerfile:')}"


class Images:
    """Finds images, each name once; pulls those that the engine does not have."""

    def __init__(
        self, engine: Engine, host_image: str, labels: Mapping[str, str], new_name: Callable[[], str]
    ) -> None:
        self._engine = engine
        self._host_image = host_image
        self._labels = labels
        self._new_name = new_name
        self._found: dict[str, ImageFacts] = {}
        self._workspaces: dict[tuple[str, str], Archive] = {}
        self._fingerprints: dict[str, Fingerprint] = {}
        self._turn = asyncio.Lock()

    async def find(self, image: str) -> ImageFacts:
        """Raises SandboxError `image_missing`, or Unsupported."""
        async with self._turn:
            if image not in self._found:
                self._found[image] = await self._look(image)
            return self._found[image]

    async def workspace(self, image: ImageFacts, path: str) -> Archive:
        """What an image has at `path`. Raises SandboxError where it is too much."""
        key = (image.identity, path)
        async with self._turn:
            if key not in self._workspaces:
                self._workspaces[key] = await self._read(image, path)
            return self._workspaces[key]

    async def fingerprint(self, identity: str) -> Fingerprint:
        """A digest of each name in the image. Raises SandboxError where it can't be read."""
        async with self._turn:
            if identity not in self._fingerprints:
                name, body = self._new_name(), self._unstarted(identity)
                try:
                    self._fingerprints[identity] = await self._engine.call(
                        lambda client: docker.export_image(client, name, body, fingerprint)
                    )
                except EngineError as error:
                    raise SandboxError("image_missing", str(error)) from error
            return self._fingerprints[identity]

    def _unstarted(self, identity: str) -> dict[str, object]:
        """A container that is never started: the engine reads images through nothing else."""
        labels = dict(self._labels)
        return {"Image": identity, "Entrypoint": ["none"], "NetworkDisabled": True, "Labels": labels}

    async def _read(self, image: ImageFacts, path: str) -> Archive:
        name, body = self._new_name(), self._unstarted(image.identity)
        try:
            tree = await self._engine.call(lambda c: docker.read_image(c, name, body, path, _all_of_it))
        except EngineError as error:
            if error.is_missing:
                return EMPTY
            raise SandboxError("create_failed", f"reading {path} of the image: {error}") from error
        except TooLarge as error:
            raise SandboxError("image_too_large", f"{path} of the image holds {error}") from error
        return pack(tree.entries)

    async def _look(self, image: str) -> ImageFacts:
        if image.startswith("compose:"):
            raise Unsupported("an image of several services", 'a Dockerfile, or image = "docker:NAME"')
        if image.startswith("dockerfile:"):
            return await self._inspect(tag_of(image), "its Dockerfile was not built on this host's engine")
        name = self._host_image if image == "host" else image.removeprefix("docker:")
        try:
            return await self._engine.call(lambda client: docker.image_facts(client, name))
        except EngineError as error:
            if not error.is_missing:
                raise SandboxError("engine_unreachable", str(error)) from error
        try:
            await self._engine.call(lambda client: docker.pull_image(client, name))
        except EngineError as error:
            raise SandboxError(
                "image_missing", f"{name}: not on this engine, and pull failed: {error}"
            ) from error
        return await self._inspect(name, "not there after a pull")

    async def _inspect(self, name: str, why: str) -> ImageFacts:
        try:
            return await self._engine.call(lambda client: docker.image_facts(client, name))
        except EngineError as error:
            raise SandboxError("image_missing", f"{name}: {why}: {error}") from error


def _all_of_it(chunks: Iterator[bytes]) -> Tree:
    return read_back(chunks, Reading({}, _WORKSPACE_LIMIT_BYTES))
