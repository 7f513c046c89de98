"""Where the shipped files lie, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.config import TasksConfig
from orchestrator.suggest import did_you_mean
from workers.errors import ConfigError

HERE = Path(__file__).resolve().parent


def shipped_configs() -> Path:
    """`configs/` beside the package in a checkout, inside it in a wheel."""
    inside = HERE / "configs"
    return inside if inside.is_dir() else HERE.parent / "configs"


def config_dirs(extra: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Where group files are looked for, the user's own first. Raises ConfigError where one is not there."""
    for folder in extra:
        if not folder.is_dir():
            raise ConfigError(
                f"--config-dir {folder}: no such folder", "give the folder that holds GROUP/NAME.yaml"
            )
    return (*extra, shipped_configs())


def shipped_task_sets() -> tuple[str, ...]:
    """Names that `tasks.name` may take."""
    folder = HERE / "tasksets"
    if not folder.is_dir():
        return ()
    return tuple(sorted(item.name for item in folder.iterdir() if item.is_dir() and item.name[0] not in "._"))


def task_set_path(name: str) -> Path:
    """The folder of a shipped task set, or its file of rows where it is one."""
    names = shipped_task_sets()
    if name not in names:
        known = ", ".join(names) or "none"
        raise ConfigError(
            f"tasks.name={name}: there is no task set of this name{did_you_mean(name, names)}",
            f"shipped are: {known}; for one of your own give tasks.path=FOLDER",
        )
    folder = HERE / "tasksets" / name
    for suffix in (".jsonl", ".parquet"):
        rows = folder / f"{name}{suffix}"
        if rows.is_file():
            return rows
    return folder


def task_source(tasks: TasksConfig) -> Path:
    """The task set to load: the user's own path, else the shipped set."""
    return Path(tasks.path) if tasks.path else task_set_path(tasks.name)


def run_folder(name: str) -> Path:
    """The folder of a run, by its path or by its id under runs/."""
    for folder in (Path(name), Path("runs") / name):
        if (folder / "config.yaml").is_file():
            return folder.resolve()
    runs = sorted(path.parent.name for path in Path("runs").glob("*/config.yaml"))
    known = f"runs/ has {', '.join(runs[-5:])}" if runs else "runs/ has none here"
    raise ConfigError(f"{name}: there is no run in this folder{did_you_mean(name, runs)}", known)
