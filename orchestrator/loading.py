"""From a config to the tasks that it names, or to everything that is wrong with them. Needs no cluster."""

from __future__ import annotations

import logging

from orchestrator.config import Config
from orchestrator.images import prepare_images
from orchestrator.paths import task_source
from workers.errors import ConfigError
from workers.task import Task
from workers.taskset import load

logger = logging.getLogger(__name__)


def load_tasks(config: Config) -> tuple[Task, ...]:
    """The tasks that the config names. Raises TaskError or ConfigError with everything that is wrong."""
    chosen = config.tasks
    loaded = load(task_source(chosen), chosen.on_bad_task, chosen.max_instruction_bytes)
    for fault in loaded.faults:
        logger.warning("left out: %s", fault)
    for dropped in loaded.dropped:
        logger.warning("left out: %s: %s", dropped.task_id, dropped.reason)
    tasks = [t for t in loaded.tasks if chosen.split in ("any", t.public.split.value)][: chosen.limit]
    if not tasks:
        raise ConfigError(
            f"no task to play in {task_source(chosen)}: {len(loaded.tasks)} loaded, {len(loaded.dropped)} overlong,"
            f" none of split {chosen.split}",
            "give another tasks.path, tasks.split or tasks.max_instruction_bytes",
        )
    prepare_images(tasks, config.sandbox)
    return tuple(tasks)
