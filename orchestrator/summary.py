"""What a run came to: `summary.json` for programs, a table for people.

A task's pass rate is that of rollouts made after it was chosen; where there are none, that of the probes that
set it aside, and it says so. The file is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.stats import Ending, PassRate, Quantiles, RunStats, Spread, TaskStats, pass_rate
from orchestrator.types import Fate, TaskState
from workers.text import one_line

SUMMARY_FILE = "summary.json"
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
_STATES = {
    TaskState.ACTIVE: Text("kept", "green"),
    TaskState.TOO_EASY: Text("aside: too easy", "yellow"),
    TaskState.TOO_HARD: Text("aside: too hard", "yellow"),
    TaskState.QUARANTINED: Text("quarantined", "red"),
}


def write_summary(stats: RunStats) -> Path:
    """Write RUN/summary.json and return its path."""
    path = stats.run_dir / SUMMARY_FILE
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(as_json(stats), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def as_json(stats: RunStats) -> dict[str, Json]:
    """The summary as plain values. Rates are None where nothing was judged."""
    rewards, timings = stats.rewards, stats.timings
    return {
        "run_id": stats.run_id,
        "run_dir": str(stats.run_dir),
        "command": stats.command,
        "ending": stats.ending.value,
        "ending_detail": stats.ending_detail,
        "is_resumed": stats.is_resumed,
        "task_set": stats.task_set,
        "policy": stats.policy,
        "seed": stats.seed,
        "tasks": [_task_json(task) for task in stats.tasks],
        "groups": {"asked": stats.groups_asked, **{fate.value: stats.groups.get(fate, 0) for fate in Fate}},
        "episodes": {
            "ok": stats.episodes_ok,
            "failed": stats.episodes_failed,
            "retries": stats.retries,
            "stops": {stop.stop_reason: stop.count for stop in stats.stops},
            "failures": [
                {"boundary": item.boundary.value, "cause": item.cause, "count": item.count}
                for item in stats.failures
            ],
        },
        "rewards": {
            "count": rewards.count,
            "mean": rewards.mean,
            "std": rewards.std,
            "min": rewards.low,
            "max": rewards.high,
        },
        "reset_s": {"count": stats.resets_s.count, "p50": stats.resets_s.p50, "p95": stats.resets_s.p95},
        "tokens_sampled": stats.tokens_sampled,
        "episodes_per_s": stats.episodes_per_s,
        "timings": {
            "wall_s": timings.wall_s,
            "setup_s": timings.setup_s,
            "probing_s": timings.probing_s,
            "played_s": timings.played_s,
        },
        "peak_memory_mb": stats.peak_memory_mb,
        "files": {name: str(stats.run_dir / name) for name, _ in FILES},
    }


EXAMPLE_CHARS = 200
FILES = (
    ("episodes/", "Arrow groups, one record batch each"),
    ("tasks.parquet", "pass rates and what was set aside"),
    ("trajectories/", "every turn in full"),
    (SUMMARY_FILE, "these numbers"),
)


def ending(run_dir: Path) -> Ending | None:
    """How a run ended, by its summary; None where it has none."""
    try:
        return Ending(json.loads((run_dir / SUMMARY_FILE).read_text(encoding="utf-8"))["ending"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def print_summary(stats: RunStats, console: Console) -> None:
    """The closing tables, and what to do next."""
    console.print()
    if stats.tasks:
        console.print(_tasks_table(stats.tasks))
    console.print(_totals_table(stats))
    if stats.failures:
        console.print(_failures_table(stats))
    console.print(_next_steps(stats))


def reported_rate(task: TaskStats) -> tuple[PassRate, str]:
    """The pass rate to report for a task, and what it was measured on: rollouts or probes."""
    if task.rollouts:
        return pass_rate(task.passes, task.rollouts), "rollouts"
    return pass_rate(task.probe_passes, task.probes), "probes"


def _task_json(task: TaskStats) -> Json:
    rate, source = reported_rate(task)
    return {
        "task_id": task.task_id,
        "state": task.state.value,
        "reason": task.reason,
        "pass_rate": rate.rate,
        "interval_95": [rate.low, rate.high],
        "measured_on": source,
        "passes": rate.passes,
        "attempts": rate.attempts,
        "probes": task.probes,
        "probe_passes": task.probe_passes,
        "failures": task.failures,
    }


def _tasks_table(tasks: tuple[TaskStats, ...]) -> Table:
    table = Table(title="Tasks: pass rate with its 95 % interval", title_justify="left", box=SIMPLE_HEAD)
    for name in ("task", "pass rate", "interval", "measured on", "decision", "why"):
        table.add_column(name, overflow="fold")
    order = list(TaskState)
    for task in sorted(tasks, key=lambda item: (order.index(item.state), item.task_id)):
        rate, source = reported_rate(task)
        table.add_row(
            Text(task.task_id),
            "–" if rate.rate is None else f"{rate.rate:.2f}",
            f"{rate.low:.2f}–{rate.high:.2f}",
            f"{rate.attempts} {source if rate.attempts != 1 else source[:-1]}",
            _STATES[task.state],
            Text(task.reason),
        )
    return table


def _totals_table(stats: RunStats) -> Table:
    table = Table(
        title=Text(f"Run {stats.run_id}: {_ending(stats)}"),
        title_justify="left",
        show_header=False,
        box=SIMPLE_HEAD,
    )
    table.add_column("what")
    table.add_column("value", overflow="fold")
    groups = ", ".join(
        f"{stats.groups[fate]} {fate.value.replace('_', ' ')}" for fate in Fate if stats.groups.get(fate)
    )
    stops = ", ".join(f"{stop.count} {stop.stop_reason}" for stop in stats.stops)
    rewards, rate = stats.rewards, stats.episodes_per_s
    rows = {
        "tasks, policy": f"{stats.task_set}, {stats.policy}",
        "groups": f"{sum(stats.groups.values())} of {stats.groups_asked}" + (f": {groups}" if groups else ""),
        "episodes": f"{stats.episodes_ok} judged" + (f" ({stops})" if stops else ""),
        "failed": f"{stats.episodes_failed} for good, {stats.retries} tried again",
        "reward": _told(rewards),
        "episodes per second": "–" if rate is None else f"{rate:.2f}",
        "sandbox reset": _milliseconds(stats.resets_s),
        "sampled tokens": f"{stats.tokens_sampled:,}",
        "time": f"{stats.timings.wall_s:.0f} s ({stats.timings.setup_s:.0f} s to start, "
        f"{stats.timings.probing_s:.0f} s probing)",
        "peak memory": "–" if stats.peak_memory_mb is None else f"{stats.peak_memory_mb:,.0f} MiB",
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _told(rewards: Spread) -> str:
    if rewards.mean is None or rewards.std is None or rewards.low is None or rewards.high is None:
        return "none"
    if rewards.low == rewards.high:
        return f"{rewards.low:g} in all {rewards.count}" if rewards.count > 1 else f"{rewards.low:g}"
    return f"mean {rewards.mean:.3f} ± {rewards.std:.3f}, from {rewards.low:g} to {rewards.high:g}"


def _milliseconds(resets: Quantiles) -> str:
    if resets.p50 is None or resets.p95 is None:
        return "none"
    return f"p50 {resets.p50 * 1000:.1f} ms, p95 {resets.p95 * 1000:.1f} ms over {resets.count}"


def _ending(stats: RunStats) -> str:
    return stats.ending.value + (f": {one_line(stats.ending_detail)}" if stats.ending_detail else "")


def _failures_table(stats: RunStats) -> Table:
    table = Table(title="Yield lost", title_justify="left", box=SIMPLE_HEAD)
    for name in ("boundary", "cause", "episodes", "such as"):
        table.add_column(name, overflow="fold")
    for item in sorted(stats.failures, key=lambda item: -item.count):
        example = Text(one_line(item.example)[:EXAMPLE_CHARS])
        table.add_row(item.boundary.value, Text(item.cause), str(item.count), example)
    return table


def _next_steps(stats: RunStats) -> Text:
    """Where the files are, and three commands to try."""
    folder, me = shlex.quote(_short(stats.run_dir)), command()
    lines = [f"Files in {_short(stats.run_dir)}:"]
    lines += [f"  {name:<15} {about}" for name, about in FILES if (stats.run_dir / name).exists()]
    if stats.ending is not Ending.DONE:
        third = f"run --resume {folder}"
    elif stats.command == "measure":
        third = f"run scheduler.ratings={folder}"
    else:
        third = f"run --config {folder}/config.yaml"
    steps = (f"show {folder}", f"show {folder} --where passed", third)
    return Text("\n".join([*lines, "Try next:", *(f"  {me} {step}" for step in steps)]))


def command() -> str:
    """How this command is called from here, to be pasted: by its name where the shell finds it so."""
    script = Path(sys.argv[0])
    if script.name != "rollcage":
        return f"{shlex.quote(sys.executable)} -m orchestrator"
    found = shutil.which("rollcage")
    if found and Path(found).resolve() == script.resolve():
        return "rollcage"
    return shlex.quote(_short(script.absolute()))


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
