"""`rollcage config`: what would hold, without running anything. Loads OmegaConf only where it is needed."""

from __future__ import annotations

import dataclasses
import json
import sys

from orchestrator.config import options
from orchestrator.exits import ExitCode
from orchestrator.invocation import Invocation
from orchestrator.paths import config_dirs


def run(asked: Invocation) -> ExitCode:
    """Prints YAML that `--config` reads back; one document for each point of a sweep."""
    from orchestrator.compose import compose, to_yaml

    dirs = config_dirs(asked.config_dirs)
    documents = [to_yaml(compose(point, dirs, asked.config_file)) for point in asked.points()]
    sys.stdout.write("---\n".join(documents))
    return ExitCode.DONE


def schema(*, is_json: bool) -> ExitCode:
    """Every option: key, type, default and what it is for."""
    if is_json:
        print(json.dumps([dataclasses.asdict(option) for option in options()], indent=1))
        return ExitCode.DONE
    for option in options():
        default = "null" if option.default is None else json.dumps(option.default)
        print(f"{option.key} = {default}\n    {option.doc} ({option.wanted})")
    return ExitCode.DONE
