"""The gate's command: table, JSON and exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.cli import main
from orchestrator.commands.validate import as_json, print_reports
from workers.validate import Check, Report

Told = pytest.CaptureFixture[str]

GOOD = Report(
    "sum-two",
    (
        Check("solution", "3 of 3 pass", "3 of 3 pass", True),
        Check("no-op", "0", "0", True),
        Check("attack hardcode", "0", "0", True),
        Check("attack sitecustomize", "0", "0", True),
        Check("reset", "the same digest twice", "abc", True),
        Check("protected files", "not readable inside", "not readable inside", True),
    ),
    0.0,
)
FLAKY = Report("[b]flaky[/b]", (Check("solution", "3 of 3 pass", "2 of 3 pass", False, "0 [late]"),), 1 / 3)
CHEATED = Report("cheated", (Check("attack hardcode", "0", "1", False, "tests passed"),), 0.0)


def shown(*reports: Report) -> str:
    out = io.StringIO()
    print_reports(reports, Console(file=out, width=160))
    return out.getvalue()


def test_a_good_task_is_one_row() -> None:
    told = shown(GOOD)
    assert "sum-two" in told
    assert "2/2" in told
    assert "1 of 1 tasks are fit to train on" in told


def test_red_is_told_with_what_was_wanted_and_what_came() -> None:
    told = shown(GOOD, FLAKY, CHEATED)
    assert "[b]flaky[/b]: solution: wanted 3 of 3 pass, got 2 of 3 pass (0 [late])" in told
    assert "quarantined: flakes 33%" in told
    assert "cheated: attack hardcode: wanted 0, got 1 (tests passed)" in told
    assert "1 of 3 tasks" in told


def test_a_report_as_json_holds_every_check() -> None:
    facts = json.loads(json.dumps(as_json(FLAKY)))
    assert (facts["is_ok"], facts["is_quarantined"]) == (False, True)
    assert facts["checks"][0]["got"] == "2 of 3 pass"


@pytest.mark.parametrize(
    "words",
    [["--gold-runs", "0"], ["tasks.path=/nowhere"], ["--json", "/nowhere/report.json"], ["tasks.pth=x"]],
)
def test_bad_usage_is_refused_before_anything_is_played(words: list[str], capsys: Told) -> None:
    assert main(["validate", *words]) == 2
    assert "remedy" in capsys.readouterr().err


def task(folder: Path, solution: str) -> None:
    """A task in which `answer.txt` must hold 42."""
    for name in ("environment/files", "tests", "solution", "attacks"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(
        '[rollcage.verifier]\nkind = "match"\nfile = "answer.txt"\ngold = "42"\n'
    )
    (folder / "instruction.md").write_text("Write the answer to answer.txt.\n")
    (folder / "environment/files/notes.txt").write_text("nothing here\n")
    (folder / "solution/solve.sh").write_text(solution)
    (folder / "attacks/empty.sh").write_text("touch answer.txt\n")


def test_a_task_set_is_checked_in_real_sandboxes(tmp_path: Path, capsys: Told) -> None:
    task(tmp_path / "mine" / "right", "echo 42 > answer.txt\n")
    report = tmp_path / "report.json"
    assert (
        main(["validate", f"tasks.path={tmp_path / 'mine'}", "--gold-runs", "2", "--json", str(report)]) == 0
    )
    (facts,) = json.loads(report.read_text())
    assert facts["is_ok"]
    assert {check["name"] for check in facts["checks"]} >= {"solution", "no-op", "attack empty", "reset"}
    assert "1/1 right ok" in capsys.readouterr().err


def test_one_red_task_is_exit_code_three(tmp_path: Path, capsys: Told) -> None:
    task(tmp_path / "mine" / "wrong", "echo 41 > answer.txt\n")
    assert main(["validate", f"tasks.path={tmp_path / 'mine'}", "--gold-runs", "1"]) == 3
    assert "wrong: solution: wanted 1 of 1 pass, got 0 of 1 pass" in capsys.readouterr().out
