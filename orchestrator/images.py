"""The images that tasks bring: which of them a backend can make, and making them before a run begins.

Invariants: a task whose image no node can make is told of before anything is played, with every other one; an
image is built on the engine of the host that starts the run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from orchestrator.config import SandboxConfig
from workers.errors import Fault, SandboxError, TaskError
from workers.task import Task

logger = logging.getLogger(__name__)
_THREADS = 1


def prepare_images(tasks: Sequence[Task], config: SandboxConfig) -> None:
    """Build what is to be built. Raises TaskError with every image that can't be had."""
    if faults := tuple(fault for task in tasks for fault in _refused(task, config.backend)):
        raise TaskError(faults)
    to_build = {task.public.image: task for task in tasks if task.public.image.startswith("dockerfile:")}
    if to_build and (faults := _build_all(list(to_build.values()), config)):
        raise TaskError(faults)


def _refused(task: Task, backend: str) -> tuple[Fault, ...]:
    """A task whose image no node can make would wait for ever."""
    image = task.public.image
    if image == "host" or (backend == "docker" and image.startswith(("docker:", "dockerfile:"))):
        return ()
    remedy = 'put the files that it needs into environment/files and set [rollcage] image = "host"'
    if image.startswith("compose:"):
        remedy = f"describe one image in environment/Dockerfile, or {remedy}"
    elif backend != "docker":
        remedy = f"use sandbox=docker, or {remedy}"
    problem = f"the {backend} backend has no way to make this image"
    return (Fault(task.task_id, "task.toml", "image", image, problem, remedy),)


def _build_all(tasks: Sequence[Task], config: SandboxConfig) -> tuple[Fault, ...]:
    from workers.sandbox.docker_backend.build import build  # costs what other backends need not pay
    from workers.sandbox.docker_backend.engine import Engine

    engine = Engine(config.engine, _THREADS, config.build_timeout_s)
    faults = []
    try:
        for task in tasks:
            logger.info("building the image of %s", task.task_id)
            try:
                build(engine, Path(task.source) / "environment", task.public.image, config.build_timeout_s)
            except SandboxError as error:
                remedy = "mend the Dockerfile, or make its base image available to the engine"
                faults.append(Fault(task.task_id, "environment/Dockerfile", "", "", error.detail, remedy))
    finally:
        engine.close()
    return tuple(faults)
