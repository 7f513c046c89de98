"""`rollcage measure`: a run that probes every task and trains on none."""

from __future__ import annotations

from orchestrator.commands import run as run_command
from orchestrator.exits import ExitCode
from orchestrator.invocation import Invocation


def run(asked: Invocation, *, is_json: bool) -> ExitCode:
    return run_command.run(asked, resume=None, is_json=is_json, is_measuring=True)
