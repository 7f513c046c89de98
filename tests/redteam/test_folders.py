"""Every known cheat scores 0 and every honest trap 1, in real sandboxes, through the gate for task sets.

For each folder the gate also plays its gold solution (which must pass), does nothing (0), resets twice (the
same digest) and searches the agent's file system for the hidden half (not there).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.redteam.folders import FOLDERS, read_folder
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.validate import Options, Report, validate_all
from workers.verifier import registry

LEFT_OUT: Mapping[str, str] = {}
"""Folders that no kind of verifier can judge yet, each with the reason."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    scratch = tmp_path_factory.mktemp("prepared")
    return {report.task_id: report for report in asyncio.run(gate(scratch))}


async def gate(scratch: Path) -> tuple[Report, ...]:
    tasks = [read_folder(folder, scratch) for folder in FOLDERS if folder.name not in LEFT_OUT]
    backend = BubblewrapBackend()
    await backend.start()
    try:
        return await validate_all(tasks, backend, Options(gold_runs=1, concurrency=2))
    finally:
        await backend.close()


def test_every_folder_is_there_and_judged() -> None:
    names = [folder.name for folder in FOLDERS]
    assert len([folder for folder in FOLDERS if folder.parent.name == "hacks"]) == 53
    assert len([folder for folder in FOLDERS if folder.parent.name == "honest"]) == 11
    assert set(LEFT_OUT) <= set(names)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_folder_has_no_fault(folder: Path, tmp_path: Path) -> None:
    if folder.name not in LEFT_OUT:
        assert registry.faults(read_folder(folder, tmp_path)) == ()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_the_gate_finds_nothing_red(folder: Path, reports: dict[str, Report]) -> None:
    if folder.name in LEFT_OUT:
        return
    report = reports[folder.name]
    red = [check for check in report.checks if not check.is_ok]
    assert not red
    wanted = {"solution", "no-op", "reset", "protected files"}
    wanted.add(f"{'honest' if folder.parent.name == 'honest' else 'attack'} {folder.name}")
    assert {check.name for check in report.checks} == wanted
