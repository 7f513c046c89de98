"""Building a task's image from its `environment/` folder.

Invariants: one failure is one message, which names the phase (the folder, the base image, which step) and ends
with the last that the build said; a build that is up to date costs a look at the engine's own cache.
"""

from __future__ import annotations

import re
from pathlib import Path

from workers.errors import SandboxError
from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.engine import Engine, EngineError
from workers.sandbox.docker_backend.images import tag_of

_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)$")
_NOISE = ("--->", "Removing intermediate", "Successfully")
_KEPT_LINES = 20


def build(engine: Engine, folder: Path, image: str, timeout_s: float) -> str:
    """Build `folder` as `image`; its content digest. Raises SandboxError `image_build_failed`. Blocks."""
    tag, lines = tag_of(image), list[str]()
    try:
        failed = engine.call_now(lambda c: docker.build_image(c, str(folder), tag, timeout_s, lines))
        if not failed:
            return engine.call_now(lambda client: docker.image_facts(client, tag)).identity
    except EngineError as error:
        failed = str(error)
    raise SandboxError("image_build_failed", f"{phase(lines)}: {failed}{_tail(lines)}")


def phase(lines: list[str]) -> str:
    """What a build was at: the last step that it named."""
    steps = [match for line in lines if (match := _STEP.match(line))]
    if not steps:
        return "before the first step"
    number, count, text = steps[-1].groups()
    is_base = text.split(" ", 1)[0].upper() == "FROM"
    return f"fetching the base image ({text})" if is_base else f"step {number} of {count} ({text})"


def _tail(lines: list[str]) -> str:
    said = [line for line in lines if not _STEP.match(line) and not line.startswith(_NOISE)]
    return "".join(f"\n  | {line}" for line in said[-_KEPT_LINES:])
