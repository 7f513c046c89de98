"""A wheel works outside the checkout: its configs, its task sets and its sandboxes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.rollcage import rollcage, rows

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


def test_a_wheel_runs_a_shipped_task_set_from_anywhere(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = (tmp_path / "dist").glob("rollcage-*.whl")
    site = tmp_path / "site"
    install = [
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run([sys.executable, *install], check=True, capture_output=True, timeout=120)
    assert (site / "orchestrator" / "configs" / "config.yaml").is_file()
    env = {"PYTHONPATH": str(site)}
    where = "import orchestrator, workers; print(orchestrator.__file__, workers.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.count(str(site)) == 2
    arguments = ("tasks=quickstart", "tasks.limit=3", "policy.script=solution", "rollout.group_size=1")
    done = rollcage("run", *arguments, "scheduler.filter=off", "run_dir=run", cwd=tmp_path, env=env)
    assert done.code == 0, done.out + done.err
    assert [row["reward"] for row in rows(tmp_path / "run")] == [1.0] * 3
