"""Shows a run while it goes on: a live panel on a terminal, a plain line now and then elsewhere.

It only reads snapshots; it may be called as often as one likes, and draws at its own pace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.progress import Phase, Progress

LINE_EVERY_S = 10.0
DRAWS_PER_S = 4.0
MAX_SHOWN = 3


class View(Protocol):
    """Takes snapshots."""

    def __call__(self, progress: Progress) -> None: ...


@contextmanager
def showing(console: Console) -> Iterator[View]:
    """A view for this console; the terminal is left as it was."""
    if not console.is_terminal:
        yield PlainView(console)
        return
    with Live(console=console, refresh_per_second=DRAWS_PER_S, transient=True) as live:
        yield lambda progress: live.update(_panel(progress))


class PlainView:
    """One line when the phase or the detail changes, and every `LINE_EVERY_S` otherwise."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: tuple[Phase, str] | None = None
        self._at_s = 0.0

    def __call__(self, progress: Progress) -> None:
        now, saying = time.monotonic(), (progress.phase, progress.detail)
        if saying == self._said and now - self._at_s < LINE_EVERY_S:
            return
        self._said, self._at_s = saying, now
        self._console.print(Text(line(progress)), soft_wrap=True)


def line(progress: Progress) -> str:
    """A snapshot in one line."""
    parts = [f"[{_clock(progress.elapsed_s)}] {progress.phase.value}"]
    if progress.detail:
        parts.append(progress.detail)
    if progress.tasks_total:
        parts.append(
            f"{progress.tasks_decided}/{progress.tasks_total} tasks decided by {progress.probes_done} probes"
        )
    if progress.groups_asked or progress.groups_done:
        parts.append(_groups(progress))
    if progress.episodes_ok or progress.episodes_failed:
        parts.append(_episodes(progress))
    if progress.tokens_per_s is not None:
        parts.append(f"{progress.tokens_per_s:.0f} tokens/s")
    if progress.eta_s is not None:
        parts.append(f"about {_clock(progress.eta_s)} left")
    return " | ".join(parts)


def _panel(progress: Progress) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    grid.add_row(progress.phase.value, Text(progress.detail or _clock(progress.elapsed_s)))
    if progress.tasks_total:
        grid.add_row("tasks", _bar(progress.tasks_decided, progress.tasks_total))
        grid.add_row(
            "", f"{progress.tasks_decided} of {progress.tasks_total} decided by {progress.probes_done} probes"
        )
    if progress.groups_asked:
        grid.add_row("groups", _bar(progress.groups_done, progress.groups_asked))
        grid.add_row("", _groups(progress))
    grid.add_row("episodes", f"{_episodes(progress)}, {progress.in_flight} in flight")
    for cause, count in sorted(progress.failures.items(), key=lambda item: -item[1])[:MAX_SHOWN]:
        grid.add_row("", Text(f"{count} failed: {cause}", "red"))
    speed = "–" if progress.tokens_per_s is None else f"{progress.tokens_per_s:.0f} tokens/s"
    left = "–" if progress.eta_s is None else _clock(progress.eta_s)
    grid.add_row("pace", f"{speed}, {_clock(progress.elapsed_s)} gone, about {left} left")
    for straggler in progress.stragglers[:MAX_SHOWN]:
        grid.add_row("slow", Text(f"{straggler.task_id} for {straggler.age_s:.0f} s", "yellow"))
    return grid


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=total, completed=min(done, total), width=40)


def _groups(progress: Progress) -> str:
    fates = ", ".join(
        f"{count} {fate.value.replace('_', ' ')}" for fate, count in progress.groups.items() if count
    )
    return f"{progress.groups_done}/{progress.groups_asked} groups" + (f" ({fates})" if fates else "")


def _episodes(progress: Progress) -> str:
    failed = f", {progress.episodes_failed} failed" if progress.episodes_failed else ""
    return f"{progress.episodes_ok} judged, {progress.episodes_passed} passed{failed}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
