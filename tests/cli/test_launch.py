"""What must hold before a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.compose import compose, to_yaml
from orchestrator.config import Config
from orchestrator.launch import ready, resumed
from orchestrator.overrides import parse
from orchestrator.paths import (
    config_dirs,
    run_folder,
    shipped_configs,
    shipped_task_sets,
    task_set_path,
    task_source,
)
from workers.errors import ConfigError


def made(*arguments: str) -> Config:
    return ready(compose([parse(argument) for argument in arguments], config_dirs()))


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        made(*arguments)
    assert caught.value.remedy
    return str(caught.value)


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    (tmp_path / "mine").mkdir()
    return "tasks.path=mine"


def test_a_run_gets_a_name_and_a_folder_of_its_own(tmp_path: Path, tasks: str) -> None:
    first, second = made(tasks), made(tasks)
    assert first.run_id != second.run_id
    assert Path(first.run_dir) == tmp_path / "runs" / first.run_id


def test_a_folder_that_is_given_is_the_runs_own(tmp_path: Path, tasks: str) -> None:
    assert made(tasks, "run_dir=out").run_dir == str(tmp_path / "out")


@pytest.mark.parametrize("name", ["a/b", "..", "-x", "x" * 65, "a b"])
def test_a_name_that_could_be_a_path_is_refused(tasks: str, name: str) -> None:
    assert "run_id=" in refused(tasks, f"run_id='{name}'")


def test_paths_become_absolute(tmp_path: Path, tasks: str) -> None:
    (tmp_path / "x.sh").write_text("true\n")
    config = made(tasks, "policy=script", "policy.script=x.sh")
    assert (config.tasks.path, config.policy.script) == (str(tmp_path / "mine"), str(tmp_path / "x.sh"))
    assert task_source(config.tasks) == tmp_path / "mine"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("tasks.path=nowhere", "there is no such file or folder"),
        ("policy.gguf=nowhere.gguf", "there is no such file or folder"),
        ("scheduler.ratings=nowhere", "there is no such file or folder"),
        ("policy=openai", "policy.url"),
        ("policy.url=localhost:8000", "http"),
        ("policy=script", "policy.script"),
        ("run_dir=file", "not a folder"),
    ],
)
def test_what_can_not_work_is_refused_before_anything_starts(
    tmp_path: Path, tasks: str, argument: str, said: str
) -> None:
    (tmp_path / "file").write_text("")
    assert said in refused(tasks, argument)


def test_a_servers_address_with_the_local_policy_is_refused(tasks: str) -> None:
    assert "add policy=openai" in refused(tasks, "policy.kind=local", "policy.url=http://h/v1")


def test_an_unknown_task_set_is_refused_with_those_that_are_shipped() -> None:
    assert "quickstart" in shipped_task_sets()
    assert "did you mean quickstart?" in refused("tasks.name=quikstart")


def test_every_task_set_that_a_group_file_names_is_shipped() -> None:
    for path in shipped_configs().glob("tasks/*.yaml"):
        assert task_set_path(path.stem).exists()


def test_a_resumed_run_keeps_its_name_folder_and_options(tmp_path: Path, tasks: str) -> None:
    first = made(tasks, "rollout.groups=3", "seed=4")
    folder = Path(first.run_dir)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(first))
    again = resumed(run_folder(first.run_id), [parse("rollout.groups=5")], ())
    assert (again.run_id, again.run_dir, again.seed, again.rollout.groups) == (
        first.run_id,
        str(folder),
        4,
        5,
    )
    with pytest.raises(ConfigError, match=r"rollout\.groups"):
        resumed(folder, [parse("rollout.group_size=9")], ())


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in this folder"):
        run_folder(str(tmp_path))
