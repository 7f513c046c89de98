"""The benchmark runs, whatever the numbers are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.timeout(300)
def test_the_sandbox_benchmark_prints_its_tables() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.sandboxes", "--quick", "--backends", "bubblewrap"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [
        line.split(" | ")[0].removeprefix("| ") for line in done.stdout.splitlines() if line.startswith("| ")
    ]
    for row in (
        "full reset, empty workspace",
        "prewarmed take",
        "one supervised command",
        "10",
    ):
        assert row in rows


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_it_measures_docker_as_well(docker_engine: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.sandboxes", "--quick", "--backends", "docker"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "docker-py alone" in done.stdout
    assert "| 4 | docker |" in done.stdout
