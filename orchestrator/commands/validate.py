"""`rollcage validate`: the gate that every task passes before a policy is trained on it.

A table for people, JSON for programs; red for one task is exit code 3. Needs sandboxes but neither Ray nor a
policy.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.build import make_backend
from orchestrator.compose import compose
from orchestrator.config import Config
from orchestrator.console import output
from orchestrator.exits import ExitCode
from orchestrator.invocation import Invocation
from orchestrator.launch import playable
from orchestrator.loading import load_tasks
from orchestrator.paths import config_dirs
from workers.errors import ConfigError
from workers.task import Task
from workers.validate import Check, Options, Report, validate_all

MAX_GOLD_RUNS = 1_000
KINDS = ("solution", "no-op", "attack", "honest", "reset", "protected files")


def run(asked: Invocation, json_file: Path | None, gold_runs: int) -> ExitCode:
    """Checks the tasks of each point asked for, and writes all reports to `json_file` where one is given."""
    if not 1 <= gold_runs <= MAX_GOLD_RUNS:
        raise ConfigError(f"--gold-runs {gold_runs}", f"give a number from 1 to {MAX_GOLD_RUNS}")
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ConfigError(f"--json {json_file}: its folder is not there", "make the folder first")
    dirs = config_dirs(asked.config_dirs)
    configs = [playable(compose(point, dirs, asked.config_file)) for point in asked.points()]
    reports = [report for config in configs for report in asyncio.run(_validate(config, gold_runs))]
    if json_file is not None:
        json_file.write_text(
            json.dumps([as_json(report) for report in reports], indent=1) + "\n", encoding="utf-8"
        )
    print_reports(reports, output())
    return ExitCode.DONE if all(report.is_ok for report in reports) else ExitCode.RED


async def _validate(config: Config, gold_runs: int) -> tuple[Report, ...]:
    tasks = load_tasks(config)
    options = Options(gold_runs, min(config.sandbox.pool_size, len(os.sched_getaffinity(0))))
    backend = make_backend(config.sandbox)
    try:
        await backend.start()
        return await validate_all(tasks, backend, options, _Teller(tasks))
    finally:
        await backend.close()


class _Teller:
    """Says on stderr how each task fared as it comes."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._console, self._total, self._done = Console(stderr=True), len(tasks), 0

    def __call__(self, report: Report) -> None:
        self._done += 1
        word = "ok" if report.is_ok else "RED"
        self._console.print(Text(f"{self._done}/{self._total} {report.task_id} {word}"), soft_wrap=True)


def as_json(report: Report) -> dict[str, object]:
    return {
        "task_id": report.task_id,
        "is_ok": report.is_ok,
        "is_quarantined": report.is_quarantined,
        "flake_rate": report.flake_rate,
        "checks": [dataclasses.asdict(check) for check in report.checks],
    }


def print_reports(reports: Sequence[Report], console: Console) -> None:
    """A row a task; then every red check with what was wanted and what came."""
    table = Table(title="Tasks checked", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("task", *KINDS, "verdict"):
        table.add_column(name, no_wrap=True)
    for report in reports:
        table.add_row(Text(report.task_id), *(_cell(report, kind) for kind in KINDS), _verdict(report))
    console.print(table)
    for report in reports:
        for check in report.checks:
            if not check.is_ok:
                console.print(Text(_told(report, check)), soft_wrap=True)
    good = sum(report.is_ok for report in reports)
    console.print(f"{good} of {len(reports)} tasks are fit to train on")


def _told(report: Report, check: Check) -> str:
    detail = f" ({check.detail})" if check.detail else ""
    return f"{report.task_id}: {check.name}: wanted {check.wanted}, got {check.got}{detail}"


def _cell(report: Report, kind: str) -> Text:
    """The checks of a kind: how many of how many are well, or what came where there is one."""
    found = [check for check in report.checks if check.name == kind or check.name.startswith(f"{kind} ")]
    if not found:
        return Text("–")
    good = sum(check.is_ok for check in found)
    shown = "ok" if good == len(found) == 1 else f"{good}/{len(found)}"
    return Text(shown, "green" if good == len(found) else "red")


def _verdict(report: Report) -> Text:
    if report.is_ok:
        return Text("ok", "green")
    if report.is_quarantined:
        return Text(f"quarantined: flakes {report.flake_rate:.0%}", "red")
    return Text("red", "red")
