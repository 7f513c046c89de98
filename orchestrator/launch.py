"""What must hold before a run begins: a name and a folder, files that are there, options that fit together.

Paths are made absolute, so that the resolved configuration repeats the run from any folder.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.compose import compose
from orchestrator.config import Config, PolicyConfig, SchedulerConfig, TasksConfig
from orchestrator.config_files import read_root
from orchestrator.overrides import Override
from orchestrator.paths import config_dirs, task_set_path
from workers.errors import ConfigError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAY_CHANGE = (
    "rollout.groups",
    "rollout.concurrency",
    "sandbox.pool_size",
    "sandbox.keepers",
    "scorer.",
    "cluster.",
    "metrics.",
    "policy.url",
    "policy.parallel",
    "policy.threads",
    "policy.deadline_s",
    "log_level",
)


def ready(config: Config) -> Config:
    """The same, named and checked. Raises ConfigError that says what to add or mend."""
    run_id = config.run_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"run_id={run_id}: not a name for a run", "use letters, digits, dots, dashes; at most 64"
        )
    run_dir = Path(config.run_dir or Path("runs") / run_id).absolute()
    if os.path.lexists(run_dir) and not run_dir.is_dir():
        raise ConfigError(f"run_dir={run_dir}: not a folder", "give a folder that is new or empty")
    return dataclasses.replace(
        config,
        tasks=_tasks(config.tasks),
        policy=_policy(config.policy),
        scheduler=_scheduler(config.scheduler),
        run_id=run_id,
        run_dir=str(run_dir),
    )


def playable(config: Config) -> Config:
    """The same with its tasks checked: what a command needs that plays tasks but makes no run."""
    return dataclasses.replace(config, tasks=_tasks(config.tasks))


def resumed(run_dir: Path, overrides: Sequence[Override], dirs: Sequence[Path]) -> Config:
    """The configuration of an earlier run, with only what may differ in its second life overridden."""
    for override in overrides:
        if not override.key.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{override.argument}: can't change when a run is resumed",
                f"may change: {', '.join(MAY_CHANGE)}",
            )
    file = run_dir / "config.yaml"
    config = compose(overrides, config_dirs(dirs), file)
    names = {setting.key: setting.value for setting in read_root(file).settings}
    return ready(dataclasses.replace(config, run_id=str(names.get("run_id") or ""), run_dir=str(run_dir)))


def _tasks(tasks: TasksConfig) -> TasksConfig:
    """With an absolute path, or none where a shipped set is meant."""
    if not tasks.path:
        task_set_path(tasks.name)
        return tasks
    path = _existing("tasks.path", tasks.path, "give a task folder, a folder of them, or a file of rows")
    return dataclasses.replace(tasks, path=path, name=Path(path).stem)


def _scheduler(scheduler: SchedulerConfig) -> SchedulerConfig:
    if not scheduler.ratings:
        return scheduler
    ratings = _existing("scheduler.ratings", scheduler.ratings, "give RUN/tasks.parquet of an earlier run")
    return dataclasses.replace(scheduler, ratings=ratings)


def _policy(policy: PolicyConfig) -> PolicyConfig:
    match policy.kind:
        case "local" if policy.url:
            raise ConfigError(f"policy.url={policy.url} with policy.kind=local", "add policy=openai")
        case "local" if policy.gguf:
            gguf = _existing("policy.gguf", policy.gguf, "give a GGUF model file")
            return dataclasses.replace(policy, gguf=gguf)
        case "openai":
            return _server(policy)
        case "script":
            if not policy.script:
                raise ConfigError("policy=script without policy.script", "add policy.script=FILE or FOLDER")
            # What is no file may be each task's own scripts: players.read_scripts knows the words.
            script = Path(policy.script).expanduser().absolute()
            return dataclasses.replace(policy, script=str(script)) if script.exists() else policy
    return policy


def _server(policy: PolicyConfig) -> PolicyConfig:
    if not policy.url.startswith(("http://", "https://")):
        shown = f"policy.url={policy.url}" if policy.url else "policy=openai without policy.url"
        raise ConfigError(shown, "give the server's address: policy.url=http://HOST:PORT/v1")
    tokenizer = Path(policy.tokenizer)
    if policy.tokenizer and tokenizer.exists():
        return dataclasses.replace(policy, tokenizer=str(tokenizer.absolute()))
    return policy


def _existing(key: str, value: str, remedy: str) -> str:
    path = Path(value).expanduser().absolute()
    if not path.exists():
        raise ConfigError(f"{key}={value}: there is no such file or folder", remedy)
    return str(path)
