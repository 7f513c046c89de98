"""Removing what dead owners left, where the engine did not notice their death.

Invariants: only what bears the label of an owner that is known to be dead is touched; one that can't be removed
does not keep the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.engine import Engine, EngineError, Found
from workers.sandbox.docker_backend.owner import OWNER, is_dead

logger = logging.getLogger(__name__)
Removal = Callable[[docker.Client, str], None]
_EVERY_S = 60.0


async def sweep(engine: Engine) -> int:
    """Remove every container and volume whose owner is dead; how many there were. Raises EngineError."""
    containers = await engine.call(lambda client: docker.labelled(client, OWNER))
    volumes = await engine.call(lambda client: docker.labelled_volumes(client, OWNER))
    dead: list[tuple[Found, Removal]] = []
    dead += [(found, docker.remove_container) for found in containers if is_dead(found.labels)]
    dead += [(found, docker.remove_volume) for found in volumes if is_dead(found.labels)]
    for found, remove in dead:
        await _remove(engine, found, remove)
    return len(dead)


async def _remove(engine: Engine, found: Found, remove: Removal) -> None:
    logger.warning("removing %s, whose owner is dead", found.name)
    try:
        await engine.call(lambda client: remove(client, found.identity))
    except EngineError as error:
        logger.warning("%s stays: %s", found.name, error)


async def keep_sweeping(engine: Engine) -> None:
    """Sweep every minute until cancelled."""
    while True:
        await asyncio.sleep(_EVERY_S)
        try:
            await sweep(engine)
        except EngineError as error:
            logger.warning("could not look for containers of dead owners: %s", error)
