"""The examples that the documentation shows, run as a user would: in a folder of theirs, with real sandboxes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.errors import ConfigError
from workers.policy.config import LocalPolicyConfig
from workers.policy.local import find_model

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task = tmp_path / "tasks" / "answer"
    (task / "tests").mkdir(parents=True)
    (task / "instruction.md").write_text("Write 42 into answer.txt.\n")
    (task / "task.toml").write_text(
        '[rollcage]\nanswer_file = "answer.txt"\n'
        '[rollcage.verifier]\nkind = "match"\nfile = "answer.txt"\ngold = "42"\n'
    )
    return tmp_path


def run(name: str, folder: Path) -> str:
    lines = [line for line in (HERE / name).read_text().splitlines() if line.strip()]
    assert len(lines) < 15
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(HERE / name)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_environment_is_stepped_and_scored_in_under_15_lines(folder: Path) -> None:
    assert run("example_steps.py", folder) == "1.0 True\n"


@pytest.mark.model
def test_an_episode_is_played_by_the_local_model_in_under_15_lines(folder: Path) -> None:
    try:
        find_model(LocalPolicyConfig())
    except ConfigError as error:
        pytest.skip(str(error))
    assert run("example.py", folder).startswith("Verdict(reward=")
