"""Files and overrides, made into one checked configuration."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from orchestrator.compose import OPTIONS, compose, option_value, to_yaml
from orchestrator.config import GROUPS, Config, options
from orchestrator.overrides import parse
from orchestrator.paths import config_dirs, shipped_configs
from workers.errors import ConfigError


def composed(*arguments: str, dirs: tuple[Path, ...] = (), file: Path | None = None) -> Config:
    return compose([parse(argument) for argument in arguments], config_dirs(dirs), file)


def refused(*arguments: str, dirs: tuple[Path, ...] = (), file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        composed(*arguments, dirs=dirs, file=file)
    assert caught.value.remedy
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy").mkdir()
    return tmp_path


def test_every_option_has_a_default_of_its_own_type_and_range_and_a_description() -> None:
    for option in options():
        assert option.doc
        assert option.key == "labels" or option.admits(option.default), option.key
        if isinstance(option.default, int | float) and not isinstance(option.default, bool):
            assert option.low is not None, f"{option.key} has no range"


def test_every_shipped_group_file_composes() -> None:
    for path in shipped_configs().glob("*/*.yaml"):
        group, name = path.parent.name, path.stem
        assert group in GROUPS
        composed(f"{group}={name}")


def test_an_override_sets_an_option() -> None:
    config = composed("rollout.groups=3", "scheduler.filter=off", "policy.model=007", "rollout.temperature=1")
    assert (config.rollout.groups, config.scheduler.filter) == (3, False)
    assert (config.policy.model, config.rollout.temperature) == ("007", 1.0)


def test_the_resolved_configuration_reads_back_to_an_equal_one(tmp_path: Path) -> None:
    config = composed(
        "policy=openai", "policy.url=http://h/v1", "+labels.a='x: y'", "rollout.groups=5", "seed=3"
    )
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert composed(file=file) == config


def test_a_repeated_run_is_a_new_run(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(dataclasses.replace(composed(), run_id="first", run_dir="/runs/first")))
    assert (composed(file=file).run_id, composed(file=file).run_dir) == ("", "")


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rollout:\n  groups: 5\n  group_size: 6\n")
    config = composed("rollout.groups=7", file=file)
    assert (config.rollout.groups, config.rollout.group_size) == (7, 6)


def test_a_file_may_choose_groups(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults:\n  - policy: openai\n  - trainer: rloo\npolicy:\n  url: http://h/v1\n")
    config = composed(file=file)
    assert (config.policy.kind, config.policy.url, config.trainer.advantage) == (
        "openai",
        "http://h/v1",
        "leave_one_out",
    )


def test_a_group_chosen_on_the_command_line_replaces_the_files_section(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(composed("policy=openai", "policy.url=http://h/v1")))
    config = composed("policy=local", file=file)
    assert (config.policy.kind, config.policy.url) == ("local", "")


def test_a_users_group_file_is_found_and_may_build_on_a_shipped_one(folder: Path) -> None:
    (folder / "policy" / "mine.yaml").write_text("defaults: [openai]\nurl: http://mine/v1\n")
    config = composed("policy=mine", dirs=(folder,))
    assert (config.policy.kind, config.policy.url) == ("openai", "http://mine/v1")


def test_a_users_group_file_may_set_other_sections_when_it_says_so(folder: Path) -> None:
    (folder / "policy" / "mine.yaml").write_text(
        "# @package _global_\npolicy: {kind: script}\nrollout:\n  max_steps: 2\n"
    )
    config = composed("policy=mine", dirs=(folder,))
    assert (config.policy.kind, config.rollout.max_steps) == ("script", 2)


def test_a_servers_address_or_a_script_says_which_policy_is_meant() -> None:
    assert composed("policy.url=http://h/v1").policy.kind == "openai"
    assert composed("policy.script=x.sh").policy.kind == "script"
    assert composed("policy.gguf=x.gguf").policy.kind == "local"
    assert composed("policy.url=http://h/v1", "policy.kind=local").policy.kind == "local"


def test_the_small_models_limits_do_not_hold_for_a_server() -> None:
    assert composed().rollout.max_steps == 1
    assert composed("policy=openai").rollout.max_steps == Config().rollout.max_steps


def test_a_table_sets_its_leaves() -> None:
    config = composed("policy={kind: openai, url: 'http://h/v1'}")
    assert (config.policy.kind, config.policy.url) == ("openai", "http://h/v1")


def test_labels_are_added_set_and_taken_away() -> None:
    assert composed("+labels.a=1", "labels.a=2", "++labels.b=3").labels == {"a": "2", "b": "3"}
    assert composed("+labels.a=1", "~labels.a").labels == {}
    assert "+labels.a=1" in refused("labels.a=1")
    assert "no such label" in refused("~labels.a")


def test_a_tilde_takes_an_option_back_to_its_default() -> None:
    assert composed("~rollout.max_steps").rollout.max_steps == Config().rollout.max_steps
    assert composed("~policy").policy == Config().policy
    assert "rollout.max_steps is 1" in refused("~rollout.max_steps=7")


def test_an_option_may_refer_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_MODEL", "big")
    assert composed("policy.model=${oc.env:MY_MODEL}").policy.model == "big"
    assert "policy.model" in refused("policy.model=${oc.env:NO_SUCH_VARIABLE}")


@pytest.mark.parametrize(
    ("argument", "suggestion"),
    [
        ("rollout.groupsize=4", "rollout.group_size"),
        ("group_size=4", "rollout.group_size"),
        ("rolout.temprature=1", "rollout.temperature"),
        ("polcy=openai", "policy"),
        ("policy=opena", "openai"),
        ("+sed=1", "seed"),
        ("~rollout.group", "rollout.groups"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(argument: str, suggestion: str) -> None:
    message = refused(argument)
    assert f"did you mean {suggestion}?" in message
    assert "command line" in message


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [
        ("rollout.groups=four", "an integer or null"),
        ("rollout.groups=1.5", "an integer"),
        ("rollout.groups=-1", "at least 0"),
        ("rollout.group_size=null", "an integer"),
        ("rollout.temperature=nan", "at least 0"),
        ("rollout.temperature=inf", "at most 10"),
        ("rollout.top_p=0", "above 0"),
        ("policy.kind=vllm", "one of local, openai, script"),
        ("policy.url=[a]", "a text"),
        ("scheduler.filter=maybe", "a boolean"),
        ("metrics.port=65536", "at most 65535"),
    ],
)
def test_a_wrong_value_is_refused_with_key_value_place_and_what_would_be_right(
    argument: str, wanted: str
) -> None:
    message = refused(argument)
    assert argument.partition("=")[0] in message
    assert wanted in message
    assert "command line" in message


def test_a_fault_in_a_file_names_the_file_and_the_line(folder: Path) -> None:
    path = folder / "policy" / "mine.yaml"
    path.write_text("kind: openai\n\nurll: x\n")
    assert f"{path}, line 3" in refused("policy=mine", dirs=(folder,))
    path.write_text("kind: openai\nkind: local\n")
    assert "line 2: policy.kind stands here twice" in refused("policy=mine", dirs=(folder,))
    path.write_text("parallel: many\n")
    assert "policy.parallel=many" in refused("policy=mine", dirs=(folder,))
    path.write_text("parallel: 0\n")
    assert f"{path}, line 1" in refused("policy=mine", dirs=(folder,))


@pytest.mark.parametrize(
    "text", ["kind: [", "- a\n", "\x00", "kind: !!python/object:os.system x\n", "a: &a [*a]\n"]
)
def test_a_broken_file_is_refused(folder: Path, text: str) -> None:
    (folder / "policy" / "mine.yaml").write_text(text)
    assert "mine.yaml" in refused("policy=mine", dirs=(folder,))


def test_files_that_build_on_each_other_are_refused(folder: Path) -> None:
    (folder / "policy" / "a.yaml").write_text("defaults: [b]\n")
    (folder / "policy" / "b.yaml").write_text("defaults: [a]\n")
    assert "builds on itself" in refused("policy=a", dirs=(folder,))


def test_a_missing_file_or_folder_is_refused(tmp_path: Path) -> None:
    assert "nowhere.yaml" in refused(file=tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="no such folder"):
        config_dirs((tmp_path / "nowhere",))


def test_every_option_can_be_read_by_its_key() -> None:
    config = composed()
    assert {key: option_value(config, key) for key in OPTIONS}["seed"] == 0


def test_every_option_is_read_somewhere() -> None:
    package = Path(__file__).resolve().parents[2] / "orchestrator"
    code = "\n".join(path.read_text() for path in package.rglob("*.py") if path.name != "config.py")
    names = {option.key: option.key.rpartition(".")[2] for option in options() if option.key != "labels"}
    assert [key for key, name in names.items() if not re.search(rf"\.{name}\b", code)] == []
