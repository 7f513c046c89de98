"""The command, whole: real Ray, real sandboxes, scripts as the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.rollcage import (
    alive,
    descendants,
    groups,
    kill,
    rollcage,
    rows,
    start,
    summary,
    title,
    wait_for,
)

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

SCRIPTED = ("policy=script", "rollout.group_size=1", "scheduler.filter=off", "metrics.enabled=false")


def make_task(folder: Path, name: str, check: str = "hi", threshold: str = "") -> Path:
    task = folder / name
    (task / "tests").mkdir(parents=True)
    (task / "environment" / "files").mkdir(parents=True)
    (task / "environment" / "files" / "note.txt").write_text("start\n")
    (task / "task.toml").write_text(
        f'[rollcage.verifier]\nkind = "match"\nfile = "out.txt"\ngold = "{check}"\nhow = "exact"\n{threshold}'
    )
    (task / "instruction.md").write_text(f"Write {check} to out.txt.\n")
    return task


def test_the_solutions_of_the_quickstart_set_all_score_one(tmp_path: Path) -> None:
    done = rollcage("run", "policy.script=solution", *SCRIPTED, "run_dir=run", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    found = rows(tmp_path / "run")
    assert len(found) >= 40
    assert {row["task_id"] for row in found if row["reward"] != 1.0} == set()
    assert all(row["passed"] and row["protection"] == "values" for row in found)
    assert summary(tmp_path / "run")["episodes"]["ok"] == len(found)


def test_one_script_prints_its_reward_and_writes_the_episode(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks", "hello")
    script = tmp_path / "x.sh"
    script.write_text("echo hi > out.txt\n")
    arguments = ("tasks.path=tasks", f"policy.script={script}", "rollout.groups=1", *SCRIPTED)
    done = rollcage("run", *arguments, "run_dir=run", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    (row,) = rows(tmp_path / "run")
    assert (row["reward"], row["passed"], row["stop_reason"]) == (1.0, True, "submitted")
    assert row["reset_digest"]
    assert row["state_digest"]
    shown = rollcage("show", "run", "--where", "path = 'out.txt' and kind = 'added'", cwd=tmp_path)
    assert "g000000" in shown.out
    again = rollcage("run", *arguments, "run_dir=run", cwd=tmp_path)
    assert again.code == 2
    assert "--resume" in again.err


def test_the_same_bytes_start_every_episode(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks", "hello")
    script = tmp_path / "x.sh"
    script.write_text("rm note.txt; echo $RANDOM > out.txt; touch /tmp/left\n")
    arguments = ("tasks.path=tasks", f"policy.script={script}", "policy=script", "rollout.group_size=6")
    done = rollcage("run", *arguments, "scheduler.filter=off", "run_dir=run", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    found = rows(tmp_path / "run")
    assert len(found) == 6
    assert len({row["reset_digest"] for row in found}) == 1
    assert len({row["state_digest"] for row in found}) > 1


def test_a_killed_run_leaves_nothing_running_and_resumes_with_every_group_once(tmp_path: Path) -> None:
    for number in range(12):
        make_task(tmp_path / "tasks", f"task-{number:02d}")
    script = tmp_path / "x.sh"
    script.write_text("sleep 0.7; echo hi > out.txt\n")
    arguments = ("tasks.path=tasks", f"policy.script={script}", *SCRIPTED, "rollout.concurrency=2")
    process = start("run", *arguments, "run_dir=run", cwd=tmp_path)
    wait_for(
        lambda: (tmp_path / "run" / "episodes").is_dir() and len(groups(tmp_path / "run")) >= 3, 90, "groups"
    )
    under = kill(process)
    assert under
    wait_for(lambda: not alive(under), 30, "everything under the killed driver is gone")
    before = [batch["group_id"][0].as_py() for batch in groups(tmp_path / "run")]
    assert len(before) < 12
    done = rollcage("run", "--resume", "run", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    after = [batch["group_id"][0].as_py() for batch in groups(tmp_path / "run")]
    assert after[: len(before)] == before
    assert sorted(after) == [f"g{n:06d}" for n in range(12)]
    assert {row["reward"] for row in rows(tmp_path / "run")} == {1.0}


def test_a_harbor_folder_without_our_table_runs_in_app(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "good"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text('[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 30.0\n')
    (task / "instruction.md").write_text("Write `hi` to /app/out.txt.\n")
    (task / "tests" / "test.sh").write_text(
        'if [ "$(cat /app/out.txt 2>/dev/null)" = "hi" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
    )
    for body, reward in (("echo hi > /app/out.txt", 1.0), ("true", 0.0)):
        script = tmp_path / f"{reward}.sh"
        script.write_text(body + "\n")
        run_dir = f"run-{reward}"
        arguments = ("tasks.path=tasks", f"policy.script={script}", *SCRIPTED, f"run_dir={run_dir}")
        done = rollcage("run", *arguments, cwd=tmp_path)
        assert done.code == 0, done.out + done.err
        (row,) = rows(tmp_path / run_dir)
        assert (row["reward"], row["protection"]) == (reward, "shared")


def test_a_judge_that_gives_no_verdict_is_a_failure_and_never_a_zero(tmp_path: Path) -> None:
    task = make_task(tmp_path / "tasks", "hello")
    (task / "task.toml").write_text('[rollcage.verifier]\nkind = "script"\n')
    (task / "tests" / "test.sh").write_text("exit 0\n")
    done = rollcage("run", "tasks.path=tasks", "policy.script=noop", *SCRIPTED, "run_dir=run", cwd=tmp_path)
    assert done.code == 1
    (row,) = rows(tmp_path / "run")
    assert (row["status"], row["failure_boundary"], row["reward"]) == ("failed", "verifier", None)
    assert "reward_missing" in done.out + done.err


def test_an_endpoint_that_is_down_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks", "hello")
    arguments = ("policy=openai", "policy.url=http://127.0.0.1:9/v1", "policy.attempts=2")
    done = rollcage("run", "tasks.path=tasks", *arguments, "run_dir=run", cwd=tmp_path)
    assert done.code == 1
    assert "endpoint_unreachable" in done.err + done.out
    assert "Traceback" not in done.err + done.out


def test_a_task_whose_image_nobody_can_make_is_refused_at_once(tmp_path: Path) -> None:
    task = make_task(tmp_path / "tasks", "hello")
    (task / "environment" / "Dockerfile").write_text("FROM debian\n")
    done = rollcage("run", "tasks.path=tasks", "policy.script=noop", *SCRIPTED, cwd=tmp_path, timeout_s=60)
    assert done.code == 2
    assert "hello" in done.err
    assert "image" in done.err


def test_an_interrupt_drains_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    for number in range(8):
        make_task(tmp_path / "tasks", f"task-{number}")
    script = tmp_path / "x.sh"
    script.write_text("sleep 1; echo hi > out.txt\n")
    arguments = ("tasks.path=tasks", f"policy.script={script}", *SCRIPTED, "rollout.concurrency=2")
    process = start("run", *arguments, "run_dir=run", cwd=tmp_path)
    wait_for(
        lambda: (tmp_path / "run" / "episodes").is_dir() and len(groups(tmp_path / "run")) >= 2, 90, "groups"
    )
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    before = len(groups(tmp_path / "run"))
    assert 2 <= before < 8
    done = rollcage("run", "--resume", "run", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert sorted(b["group_id"][0].as_py() for b in groups(tmp_path / "run")) == [
        f"g{n:06d}" for n in range(8)
    ]


def test_a_full_disk_ends_the_run_with_the_cause_and_loses_nothing(tmp_path: Path) -> None:
    """The run folder lies on a file system of 1.5 MB, in a mount namespace of this test's own."""
    for number in range(30):
        make_task(tmp_path / "tasks", f"task-{number:02d}")
    script = tmp_path / "x.sh"
    script.write_text("head -c 60000 /dev/urandom | base64 -w0; echo hi > out.txt\n")
    (tmp_path / "small").mkdir()
    settings = (
        f"tasks.path=tasks policy.script={script} {' '.join(SCRIPTED)} rollout.output_limit_bytes=200000"
    )
    run = f"{sys.executable} -m orchestrator run {settings} run_dir=small/run"
    if os.getuid() == 0:
        namespace = ["unshare", "--mount"]
    else:
        namespace = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
        run = f"setpriv --inh-caps=-all --ambient-caps=-all {run}"
    line = (
        f"mount -t tmpfs -o size=1500k none small && {{ {run}; code=$?; cp -a small/run kept; exit $code; }}"
    )
    done = subprocess.run(
        [*namespace, "sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "full" in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stdout + done.stderr
    before = [b["group_id"][0].as_py() for b in groups(tmp_path / "kept")]
    resumed = rollcage("run", "--resume", "kept", cwd=tmp_path)
    assert resumed.code == 0, resumed.out + resumed.err
    after = [b["group_id"][0].as_py() for b in groups(tmp_path / "kept")]
    assert after[: len(before)] == before
    assert sorted(after) == [f"g{n:06d}" for n in range(30)]


def test_actors_that_are_killed_are_made_again_and_every_group_comes_once(tmp_path: Path) -> None:
    for number in range(16):
        make_task(tmp_path / "tasks", f"task-{number:02d}")
    script = tmp_path / "x.sh"
    script.write_text("sleep 1; echo hi > out.txt\n")
    arguments = ("tasks.path=tasks", f"policy.script={script}", *SCRIPTED, "rollout.concurrency=2")
    process = start("run", *arguments, "run_dir=run", cwd=tmp_path)
    for number, actor in enumerate(("ray::PoolActor", "ray::ScorerActor", "ray::_ConductorActor"), start=1):
        wait_for(
            lambda wanted=2 * number: (  # type: ignore[misc]
                (tmp_path / "run" / "episodes").is_dir() and len(groups(tmp_path / "run")) >= wanted
            ),
            120,
            f"groups before {actor} is killed",
            process,
        )
        killed = [pid for pid in descendants(process.pid) if title(pid).startswith(actor)]
        assert len(killed) == 1
        os.kill(killed[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    assert sorted(b["group_id"][0].as_py() for b in groups(tmp_path / "run")) == [
        f"g{n:06d}" for n in range(16)
    ]
    assert {row["reward"] for row in rows(tmp_path / "run")} == {1.0}


def test_neither_a_finished_run_nor_a_task_that_changed_since_is_resumed(tmp_path: Path) -> None:
    task = make_task(tmp_path / "tasks", "hello")
    arguments = ("tasks.path=tasks", "policy.script=noop", *SCRIPTED, "run_dir=run")
    assert rollcage("run", *arguments, cwd=tmp_path).code == 0
    again = rollcage("run", "--resume", "run", cwd=tmp_path)
    assert (again.code, "finished" in again.out) == (0, True)
    (tmp_path / "run" / "summary.json").unlink()  # as of a run that was killed before its end
    (task / "instruction.md").write_text("Something else.\n")
    done = rollcage("run", "--resume", "run", cwd=tmp_path)
    assert done.code == 2
    assert "hello" in done.err
    assert "changed" in done.err
