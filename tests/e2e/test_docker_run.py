"""The command with real containers: the shipped tasks, and a task that brings its own image."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.rollcage import rollcage, rows
from tests.e2e.test_run import SCRIPTED, make_task
from tests.sandbox.docker_engine import IMAGE, docker, docker_engine

__all__ = ["docker_engine"]
pytestmark = [
    pytest.mark.ray,
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("docker_engine"),
]
DOCKER = ("sandbox=docker", f"sandbox.image={IMAGE}", "sandbox.pool_size=3", "rollout.concurrency=3")


def leftovers(run: str) -> set[str]:
    return set(docker("ps", "--all", "--quiet", "--filter", f"label=rollcage.run={run}").split())


def test_solutions_of_the_quickstart_set_score_one_in_containers(tmp_path: Path) -> None:
    arguments = ("tasks.limit=4", "policy.script=solution", *SCRIPTED, *DOCKER, "run_dir=run")
    done = rollcage("run", *arguments, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    found = rows(tmp_path / "run")
    assert [row["reward"] for row in found] == [1.0] * 4
    assert "making container rollcage-" in (tmp_path / "run/logs/pool-0.log").read_text()
    assert leftovers("run") == set()


def test_a_task_with_a_dockerfile_is_built_and_played(tmp_path: Path) -> None:
    task = make_task(tmp_path / "tasks", "own-image", check="from the image")
    (task / "environment/seed.txt").write_text("from the image")
    dockerfile = task / "environment/Dockerfile"
    dockerfile.write_text(f"FROM {IMAGE}\nWORKDIR /app\nCOPY seed.txt .\n")
    (task / "task.toml").write_text(
        (task / "task.toml").read_text().replace("[rollcage.", "[rollcage]\n[rollcage.")
    )
    script = tmp_path / "x.sh"
    script.write_text("cp seed.txt out.txt\n")
    arguments = ("tasks.path=tasks", f"policy.script={script}", "rollout.groups=1", *SCRIPTED)
    done = rollcage("run", *arguments, *DOCKER, "run_dir=run", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert [row["reward"] for row in rows(tmp_path / "run")] == [1.0]

    refused = rollcage("run", *arguments, "run_dir=other", cwd=tmp_path)
    assert refused.code == 2
    assert "use sandbox=docker" in refused.err

    dockerfile.write_text(f"FROM {IMAGE}\nRUN exit 7\n")
    broken = rollcage("run", *arguments, *DOCKER, "run_dir=other", cwd=tmp_path)
    assert broken.code == 2
    assert "step 2 of 2 (RUN exit 7)" in broken.err
