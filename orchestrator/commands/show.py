"""`rollcage show`: the episodes of a run as a list, or one of them turn by turn.

What an agent wrote is printed as text, never as markup or terminal control: it can't draw on the terminal.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestrator.config_files import read_root
from orchestrator.console import output
from orchestrator.exits import ExitCode
from orchestrator.paths import run_folder
from orchestrator.search import episode, search
from orchestrator.trajectories import EpisodeRecord
from workers import text as text_of
from workers.errors import ConfigError
from workers.trajectory import Change, RewardPart, ToolCall

COLUMNS = ("episode", "task_id", "purpose", "attempt", "num_turns", "ending", "reward", "passed")
MAX_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class Query:
    """What to show. An empty `episode_id` lists; GROUP/INDEX is enough, since the run is known."""

    run: str
    where: str = ""
    limit: int = 20
    episode_id: str = ""
    attempt: int | None = None
    is_json: bool = False


def run(query: Query) -> ExitCode:
    if not 1 <= query.limit <= MAX_LIMIT:
        raise ConfigError(f"--limit {query.limit}", f"give a number from 1 to {MAX_LIMIT}")
    return _one(query) if query.episode_id else _list(query)


def _list(query: Query) -> ExitCode:
    folder = run_folder(query.run)
    rows = search(folder, query.where or "true", query.limit).to_pylist()
    if query.is_json:
        for row in rows:
            print(json.dumps(row, default=str))
        return ExitCode.DONE
    console = output()
    if not rows:
        console.print("no episode" + (f" where {query.where}" if query.where else ""), markup=False)
        return ExitCode.DONE
    more = f", of more: --limit shows them (now {query.limit})" if len(rows) == query.limit else ""
    title = Text(f"{len(rows)} episodes of {folder.name}{more}")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in COLUMNS:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        ending = row["stop_reason"] or f"failed: {row['failure_boundary']}/{row['failure_cause']}"
        reward = "–" if row["reward"] is None else f"{row['reward']:.3g}"
        cells = {**row, "episode": _short(row["episode_id"]), "ending": ending, "reward": reward}
        table.add_row(*(plain("–" if cells[name] is None else str(cells[name])) for name in COLUMNS))
    console.print(table)
    console.print(f"one of them turn by turn: rollcage show {query.run} --episode EPISODE", markup=False)
    return ExitCode.DONE


def _one(query: Query) -> ExitCode:
    folder = run_folder(query.run)
    wanted = query.episode_id if query.episode_id.count("/") > 1 else f"{_run_id(folder)}/{query.episode_id}"
    found = episode(folder, wanted, query.attempt)
    if query.is_json:
        print(json.dumps(dataclasses.asdict(found), default=str))
    else:
        print_episode(found, output())
    return ExitCode.DONE


def _short(episode_id: str) -> str:
    """Without the run's name in front."""
    return episode_id.partition("/")[2]


def _run_id(folder: Path) -> str:
    names = {setting.key: setting.value for setting in read_root(folder / "config.yaml").settings}
    return str(names.get("run_id") or folder.name)


def print_episode(found: EpisodeRecord, console: Console) -> None:
    """Header, then each message and the calls it led to, then the verdict's parts and the state's changes."""
    console.print(_header(found))
    seen = "\n".join(message.content for message in found.messages if message.role != "assistant")
    turn = 0
    for message in found.messages:
        console.print(
            Panel(plain(message.content.rstrip("\n")), title=message.role, title_align="left", expand=False)
        )
        if message.role == "assistant":
            _print_calls(found.tool_calls, range(turn, turn + 1), seen, console)
            turn += 1
    _print_calls(found.tool_calls, range(turn, found.num_turns + 1), seen, console)
    if found.reward_parts:
        console.print(_parts(found.reward_parts))
    for change in found.changes:
        console.print(_change(change))


def _print_calls(calls: tuple[ToolCall, ...], turns: range, seen: str, console: Console) -> None:
    """The calls of these turns; their output only where the agent's observations do not show it anyway."""
    for call in calls:
        if call.turn in turns:
            output = call.output or call.error or ""
            console.print(_call(call, "" if output.strip() in seen else output))


def plain(text: str) -> Text:
    """Text that shows its control characters instead of obeying them."""
    return Text(text_of.plain(text))


def _header(found: EpisodeRecord) -> Table:
    table = Table(show_header=False, title=plain(found.episode_id), title_justify="left", box=SIMPLE_HEAD)
    failure = found.failure
    rows = {
        "task": found.task_id,
        "purpose": found.purpose,
        "attempt, seed": f"{found.attempt}, {found.seed}",
        "ending": found.stop_reason or "failed",
        "reward": "none" if found.reward is None else f"{found.reward:g}",
        "passed": "no verdict" if found.passed is None else str(found.passed).lower(),
    }
    if failure:
        rows["failure"] = f"{failure.boundary.value}/{failure.cause}: {failure.detail}"
    for name, value in rows.items():
        table.add_row(name, plain(value))
    return table


def _call(call: ToolCall, output: str) -> Panel:
    code = "" if call.exit_code is None else f", exit code {call.exit_code}"
    title = plain(f"{call.name} ({call.latency_s * 1000:.0f} ms{code}){'' if call.ok else ' failed'}")
    body = plain(f"{call.arguments}\n{output}".rstrip())
    return Panel(
        body, title=title, title_align="left", border_style="green" if call.ok else "red", expand=False
    )


def _parts(parts: tuple[RewardPart, ...]) -> Table:
    table = Table(title="Reward parts", title_justify="left", box=SIMPLE_HEAD)
    for name in ("name", "value", "weight", "detail"):
        table.add_column(name, overflow="fold")
    for part in parts:
        table.add_row(plain(part.name), f"{part.value:g}", f"{part.weight:g}", plain(part.detail))
    return table


def _change(change: Change) -> Panel:
    title = plain(f"{change.kind.value} {change.path} ({change.size_bytes} bytes)")
    return Panel(
        plain(change.text.rstrip("\n") or "no text to show"), title=title, title_align="left", expand=False
    )
