"""Listing the episodes of a run, and reading one turn by turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.store import PartWriter
from orchestrator.trajectories import TRAJECTORIES, TRAJECTORY_SCHEMA, turns
from orchestrator.types import Lease, Purpose
from workers.errors import Boundary
from workers.trajectory import (
    Change,
    ChangeKind,
    Failure,
    Message,
    Protection,
    RewardPart,
    StopReason,
    ToolCall,
    Trajectory,
    Verdict,
)

Told = pytest.CaptureFixture[str]


def lease(sample_index: int, attempt: int = 0) -> Lease:
    return Lease("r1", "g1", "sum-two", Purpose.TRAIN, sample_index, 2, attempt, 0, 11, 0.0, "nonce")


PLAYED = Trajectory(
    messages=(
        Message("system", "You are in a shell."),
        Message("user", "Add two numbers."),
        Message("assistant", "ls \x1b[31m[bold]x[/bold]"),
        Message("tool", "a.txt\n"),
        Message("assistant", "submit"),
    ),
    tool_calls=(
        ToolCall(0, "run", '{"command": "ls"}', True, exit_code=0, latency_s=0.02, output="a.txt\n"),
        ToolCall(1, "run", '{"command": "rm a"}', False, error="no such file", exit_code=1),
    ),
    changes=(Change("sum.py", ChangeKind.CHANGED, 12, 0o644, "-return 0\n+return a + b\n"),),
    stop_reason=StopReason.SUBMITTED,
    num_turns=2,
)
VERDICT = Verdict(0.5, 0.5, False, Protection.VALUES, (RewardPart("calls", 0.5, 1.0, "2 of 4 calls right"),))
LOST = Trajectory(failure=Failure(Boundary.SANDBOX, "pool_lost", "node gone"))


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run folder with a failed first attempt, its second, and another episode."""
    (tmp_path / "config.yaml").write_text("run_id: r1\n")
    writer = PartWriter(tmp_path / TRAJECTORIES, TRAJECTORY_SCHEMA)
    writer.append(turns(lease(0), LOST, None, 1.0))
    writer.append(turns(lease(0, attempt=1), PLAYED, VERDICT, 2.0))
    writer.append(turns(lease(1), PLAYED, VERDICT, 3.0))
    writer.close()
    return str(tmp_path)


def test_episodes_are_listed_with_how_they_ended(run: str, capsys: Told) -> None:
    assert main(["show", run, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(row["episode_id"], row["attempt"], row["status"]) for row in rows} == {
        ("r1/g1/0", 0, "failed"),
        ("r1/g1/0", 1, "ok"),
        ("r1/g1/1", 0, "ok"),
    }
    assert main(["show", run]) == 0
    assert "sum-two" in capsys.readouterr().out


def test_a_condition_and_a_limit_choose(run: str, capsys: Told) -> None:
    assert main(["show", run, "--where", "failure_cause = 'pool_lost'", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["show", run, "--limit", "2", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["show", run, "--where", "reward > 1"]) == 0
    assert "no episode where reward > 1" in capsys.readouterr().out


def test_an_episode_is_printed_turn_by_turn(run: str, capsys: Told) -> None:
    assert main(["show", run, "--episode", "g1/0"]) == 0
    told = capsys.readouterr().out
    order = [
        "sum-two",
        "Add two numbers.",
        '{"command": "ls"}',
        "a.txt",
        "rm a",
        "2 of 4 calls right",
        "+return a + b",
    ]
    places = [told.index(piece) for piece in order]
    assert places == sorted(places)
    assert "submitted" in told


def test_what_an_agent_wrote_can_not_draw_on_the_terminal(run: str, capsys: Told) -> None:
    assert main(["show", run, "--episode", "r1/g1/1"]) == 0
    told = capsys.readouterr().out
    assert "\x1b[31m" not in told
    assert "\\x1b[31m[bold]x[/bold]" in told


def test_an_earlier_attempt_can_be_asked_for(run: str, capsys: Told) -> None:
    assert main(["show", run, "--episode", "r1/g1/0", "--attempt", "0"]) == 0
    assert "sandbox/pool_lost: node gone" in capsys.readouterr().out


def test_an_episode_as_json_holds_everything(run: str, capsys: Told) -> None:
    assert main(["show", run, "--episode", "r1/g1/0", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["reward"] == 0.5
    assert facts["tool_calls"][0]["output"] == "a.txt\n"
    assert facts["changes"][0]["path"] == "sum.py"


@pytest.mark.parametrize(
    "words",
    [
        ["--episode", "r1/g9/0"],
        ["--where", "no_such_column = 1"],
        ["--where", "1); DROP TABLE x; --"],
        ["--limit", "0"],
    ],
)
def test_a_question_that_has_no_answer_is_refused(run: str, capsys: Told, words: list[str]) -> None:
    assert main(["show", run, *words]) == 2
    assert "remedy" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: Told) -> None:
    assert main(["show", str(tmp_path / "nowhere")]) == 2
    assert "there is no run" in capsys.readouterr().err


def test_calls_of_turns_without_a_message_are_printed_too(tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "config.yaml").write_text("run_id: r1\n")
    played = Trajectory(
        tool_calls=(ToolCall(0, "run", "true", True, exit_code=0), ToolCall(1, "submit", "", True)),
        stop_reason=StopReason.SUBMITTED,
        num_turns=1,
    )
    writer = PartWriter(tmp_path / TRAJECTORIES, TRAJECTORY_SCHEMA)
    writer.append(turns(lease(0), played, VERDICT, 1.0))
    writer.close()
    assert main(["show", str(tmp_path), "--episode", "r1/g1/0"]) == 0
    told = capsys.readouterr().out
    assert told.index("run (") < told.index("submit (")
