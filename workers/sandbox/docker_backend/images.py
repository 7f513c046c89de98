"""Which image a task's name for it means on this engine, and how one is built.

Invariants: an image is used by its content digest, so that a name that moves can't change a run; what fails says
in which phase it failed.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from workers.errors import SandboxError, Unsupported
from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.engine import Engine, EngineError, ImageFacts

_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)$")
_KEPT_LINES = 20


def tag_of(image: str) -> str:
    """The name under which the image of a `dockerfile:…` lies on the engine."""
    return f"rollcage-task:{image.removeprefix('dockerfile:')}"


class Images:
    """Finds images, each name once; pulls those that the engine does not have."""

    def __init__(self, engine: Engine, host_image: str) -> None:
        self._engine = engine
        self._host_image = host_image
        self._found: dict[str, ImageFacts] = {}
        self._turn = asyncio.Lock()

    async def find(self, image: str) -> ImageFacts:
        """Raises SandboxError `image_missing`, or Unsupported."""
        async with self._turn:
            if image not in self._found:
                self._found[image] = await self._look(image)
            return self._found[image]

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


async def build(engine: Engine, folder: Path, image: str, timeout_s: float) -> str:
    """Build a task's `environment/` as its image; the digest. Raises SandboxError `image_build_failed`."""
    tag = tag_of(image)
    try:
        failed, lines = await engine.call(
            lambda client: docker.build_image(client, str(folder), tag, int(timeout_s))
        )
        if not failed:
            return (await engine.call(lambda client: docker.image_facts(client, tag))).identity
    except EngineError as error:
        failed, lines = str(error), []
    raise SandboxError("image_build_failed", f"{folder}/Dockerfile: {phase(lines)}: {failed}{_tail(lines)}")


def phase(lines: list[str]) -> str:
    """What the build was at: the last step that it named."""
    steps = [match for line in lines if (match := _STEP.match(line))]
    if not steps:
        return "while the build was being prepared"
    number, count, text = steps[-1].groups()
    word = text.split(" ", 1)[0].upper()
    what = "while its base image was fetched" if word == "FROM" else f"in step {number} of {count}"
    return f"{what} ({text})"


def _tail(lines: list[str]) -> str:
    said = [line for line in lines if not _STEP.match(line) and not line.startswith("--->")]
    return "".join(f"\n  | {line}" for line in said[-_KEPT_LINES:])
