"""Finding episodes by a condition, and one of them turn by turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.record import RunRecord
from orchestrator.search import columns, episode, search
from tests.stream.making import group, member
from workers.errors import ConfigError


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched") / "run"
    with RunRecord.open(folder, "run") as record:
        for name, rewards in (("g0", (1.0, 0.0, None)), ("g1", (1.0, 1.0))):
            made, decision = group(name, rewards)
            for one in made.members:
                record.add_turns(one)
            record.finish_group(made, decision)
        record.finish("done")
        record.add_turns(member(1.0, "g2", 0, 2))
    return folder


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("true", 6),
        ("reward = 1 and path like '%conftest%'", 4),
        ("reward = 0 and path like '%conftest%'", 1),
        ("kind = 'deleted'", 0),
        ("diff like '%import os%' and kind = 'added'", 5),
        ("tool = 'run' and output = 'a\n'", 5),
        ("tool = 'run' and path = 'tests/conftest.py' and role = 'user'", 5),
        ("fate = 'zero_variance'", 2),
        ("fate is null", 1),
        ("failure_cause = 'pool_lost'", 1),
        ("advantage > 0 -- the best", 1),
        ("task_id = 'task-of-g0' or task_id = 'task-of-g2'", 4),
    ],
)
def test_a_condition_finds_each_attempt_once(run_dir: Path, where: str, found: int) -> None:
    assert search(run_dir, where, limit=100).num_rows == found


def test_the_newest_come_first_and_not_more_than_asked_for(run_dir: Path) -> None:
    assert search(run_dir, "true", limit=2).num_rows == 2


@pytest.mark.parametrize(
    "where",
    [
        "reward =",
        "no_such_column = 1",
        "true; DROP TABLE trajectories",
        "exists (select 1 from read_csv('/etc/passwd'))",
        "exists (select 1 from '/etc/passwd')",
        "exists (select 1 from run_dir)",
        "true) or (select count(*) from glob('/*')) > 0 or (false",
    ],
)
def test_a_condition_that_reaches_out_or_makes_no_sense_is_refused(run_dir: Path, where: str) -> None:
    with pytest.raises(ConfigError, match="can't be used") as told:
        search(run_dir, where)
    assert "reward = 1 and path like" in told.value.remedy


def test_a_condition_that_takes_too_long_is_stopped(run_dir: Path) -> None:
    slow = "(select sum(hash(a.i + b.i)) from range(1000000) a(i), range(1000000) b(i)) > reward"
    with pytest.raises(ConfigError, match="can't be used"):
        search(run_dir, slow, timeout_s=0.3)


def test_every_column_can_be_asked_for(run_dir: Path) -> None:
    for column in columns():
        search(run_dir, f"{column} is not null")


def test_an_episode_is_shown_turn_by_turn(run_dir: Path) -> None:
    shown = episode(run_dir, "run/g0/0")
    assert (shown.reward, shown.passed, shown.stop_reason) == (1.0, True, "submitted")
    assert [call.output for call in shown.tool_calls] == ["a\n"]
    assert [change.path for change in shown.changes] == ["tests/conftest.py"]
    assert [message.role for message in shown.messages] == ["user", "assistant"]
    assert episode(run_dir, "run/g0/2").failure is not None


def test_the_last_attempt_is_shown_unless_told(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path, "run") as record:
        for attempt, reward in ((1, 1.0), (0, None)):
            record.add_turns(member(reward, "g0", 0, 2, attempt))
        assert episode(tmp_path, "run/g0/0").attempt == 1
        assert episode(tmp_path, "run/g0/0", attempt=0).failure is not None
        with pytest.raises(ConfigError, match="holds no episode 'run/g0/0', attempt 2"):
            episode(tmp_path, "run/g0/0", attempt=2)


def test_an_attempt_written_twice_by_a_resumed_run_is_found_once(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path, "run") as record:
        for _ in range(2):
            record.add_turns(member(1.0))
        assert search(tmp_path).num_rows == 1


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        search(tmp_path)
    with pytest.raises(ConfigError, match="holds no episode"):
        episode(tmp_path, "run/g0/0")
