"""`rollcage run`: one run for each point asked for, one after another; each ends with its summary."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from orchestrator.compose import compose
from orchestrator.config import Config
from orchestrator.console import output
from orchestrator.exits import ExitCode
from orchestrator.invocation import Invocation
from orchestrator.launch import ready, resumed
from orchestrator.paths import config_dirs, run_folder
from orchestrator.stats import Ending
from orchestrator.summary import as_json, ending, print_summary
from orchestrator.view import showing
from workers.errors import ConfigError


def run(asked: Invocation, *, resume: str | None, is_json: bool, is_measuring: bool = False) -> ExitCode:
    """Stops at the first run that does not end well, and returns its code."""
    dirs = config_dirs(asked.config_dirs)
    if resume is not None:
        if asked.config_file or asked.is_sweep:
            raise ConfigError("--resume takes the run's own configuration", "leave out --config and -m")
        folder = run_folder(resume)
        if ending(folder) is Ending.DONE and not asked.overrides:
            print(
                f"{folder.name} is finished: nothing is left to resume. Look at it by: rollcage show {resume}"
            )
            return ExitCode.DONE
        return _one(resumed(folder, asked.overrides, asked.config_dirs), folder, is_json, is_measuring)
    configs = [ready(compose(point, dirs, asked.config_file)) for point in asked.points()]
    folders = [config.run_dir for config in configs]
    if len(set(folders)) < len(folders):
        raise ConfigError("the runs of this sweep share one folder", "leave out run_dir and run_id")
    for config in configs:
        code = _one(config, None, is_json, is_measuring)
        if code is not ExitCode.DONE:
            return code
    return ExitCode.DONE


def _one(config: Config, resume: Path | None, is_json: bool, is_measuring: bool) -> ExitCode:
    from orchestrator import driver

    with showing(Console(stderr=True)) as view:
        result = driver.run(config, resume=resume, is_measuring=is_measuring, on_progress=view)
    if is_json:
        print(json.dumps(as_json(result.stats)))
    else:
        print_summary(result.stats, output())
    return result.exit_code
