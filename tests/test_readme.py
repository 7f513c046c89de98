"""The README says what is true: its examples are those that tests run, its options and commands are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.config import options
from orchestrator.paths import shipped_configs

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
KEYS = {option.key for option in options()}
OF_A_TASK = ("tests/test.sh", "tests/calls.json")
GROUPS = {key.split(".")[0] for key in KEYS}


@pytest.mark.parametrize("name", ["example.py", "example_steps.py"])
def test_the_examples_are_the_tested_ones(name: str) -> None:
    assert (ROOT / "tests" / "agent" / name).read_text().strip() in README


def test_every_option_it_names_is_one() -> None:
    named = set(re.findall(r"\b([a-z]+\.[a-z_]+)=", README)) | set(re.findall(r"`([a-z]+\.[a-z_]+)`", README))
    assert {key for key in named if key.split(".")[0] in GROUPS} <= KEYS


def test_every_group_file_it_names_is_shipped() -> None:
    for group, name in re.findall(r"\b(tasks|policy|cluster|sandbox|scheduler|trainer)=([a-z_]+)", README):
        assert (shipped_configs() / group / f"{name}.yaml").is_file(), f"{group}={name}"


def test_every_file_it_names_is_there() -> None:
    for path in re.findall(r"`((?:orchestrator|deploy|dashboards|scripts|tests|workers)/[\w./-]+)`", README):
        if path not in OF_A_TASK:
            assert (ROOT / path).exists(), path
