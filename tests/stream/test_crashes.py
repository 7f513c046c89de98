"""Whatever dies, whenever: every group once, the same bytes, none lost."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import StreamError
from orchestrator.parts import frame
from orchestrator.record import RunRecord
from orchestrator.search import search
from orchestrator.store import EPISODES, read_groups
from orchestrator.stream import EpisodeStream
from tests.stream.driver import GROUPS, OPTIONS, rewards_of
from tests.stream.making import group

ROOT = Path(__file__).resolve().parent.parent.parent
STEPS = {
    "store.created": 2,
    "store.begun": 2,
    "store.written": 5,
    "store.appended": 4,
    "store.found": 1,
    "store.packed": 2,
    "store.renamed": 2,
    "store.closed": 2,
    "journal.written": 14,
    "journal.committed": 14,
}
KILLS = 40


def run_until(run_dir: Path, step: str, nth: int) -> bool:
    """Whether the run was killed at that step; else it has finished."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.stream.driver", str(run_dir), step, str(nth)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode in (0, -9), child.stderr
    return child.returncode == -9


def delivered(run_dir: Path) -> list[tuple[int, str, bytes]]:
    """What a trainer would get now from the start of the run, and in bytes."""
    if not (run_dir / "journal.sqlite").exists():
        return []
    found = []
    with EpisodeStream(run_dir, consumer="witness", timeout_s=0.001) as stream:
        try:
            for batch in stream:
                name = batch["group_id"][0].as_py()
                found.append((batch["group_seq"][0].as_py(), name, frame(batch).data))
        except StreamError as error:
            if "did not come" not in str(error):
                raise
    return found


def check_finished(run_dir: Path) -> None:
    stored = [batch["group_id"][0].as_py() for batch in read_groups(run_dir)]
    assert sorted(stored) == [f"g{index:03d}" for index in range(GROUPS)]
    got = delivered(run_dir)
    assert [seq for seq, _, _ in got] == list(range(len(got)))
    expected = [f"g{i:03d}" for i in range(GROUPS) if len(set(rewards_of(i)) - {None}) > 1]
    assert [name for _, name, _ in got] == expected
    assert search(run_dir, limit=1000).num_rows == 3 * GROUPS
    leftover = [path.name for path in run_dir.rglob("*") if path.suffix in (".open", ".tmp")]
    assert leftover == []


@pytest.mark.timeout(280)
def test_a_run_killed_at_every_step_has_every_group_once(tmp_path: Path) -> None:
    choose = random.Random(7)
    kills = dict.fromkeys(STEPS, 0)
    seen: list[tuple[int, str, bytes]] = []
    folders = (tmp_path / f"run{number}" for number in itertools.count())
    run_dir = next(folders)
    for turn in range(200):
        step = list(STEPS)[turn % len(STEPS)]
        if run_until(run_dir, step, choose.randint(1, STEPS[step])):
            kills[step] += 1
        now = delivered(run_dir)
        assert now[: len(seen)] == seen, "what was delivered comes again as it was"
        seen = now
        if sum(kills.values()) >= KILLS:
            break
        if (run_dir / "journal.sqlite").exists() and _is_finished(run_dir):
            check_finished(run_dir)
            seen, run_dir = [], next(folders)
    while run_until(run_dir, "never", 1):
        pass
    check_finished(run_dir)
    assert sum(kills.values()) >= KILLS
    assert min(kills.values()) >= 2, kills


def _is_finished(run_dir: Path) -> bool:
    with EpisodeStream(run_dir, consumer="end", timeout_s=0.001) as stream:
        try:
            for _ in stream:
                pass
        except StreamError as error:
            if "did not come" not in str(error):
                raise
            return False
    return True


def unfinished_run(run_dir: Path, groups: int) -> None:
    with RunRecord.open(run_dir, "run", OPTIONS) as record:
        for index in range(groups):
            record.finish_group(*group(f"g{index:03d}", (1.0, 0.0)))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1), tail=st.binary(max_size=64))
def test_a_torn_tail_is_cut_at_the_last_whole_group(
    tmp_path_factory: pytest.TempPathFactory, share: float, tail: bytes
) -> None:
    run_dir = tmp_path_factory.mktemp("torn") / "run"
    unfinished_run(run_dir, 1)
    (part,) = (run_dir / EPISODES).glob("*.open")
    whole = part.read_bytes()
    torn = frame(next(iter(read_groups(run_dir)))).data
    part.write_bytes(whole + torn[: int(share * (len(torn) - 1))] + (tail if share < 1 else b""))
    assert len(list(read_groups(run_dir))) == 1
    with RunRecord.open(run_dir, "run", OPTIONS) as record:
        assert part.read_bytes() == whole
        assert record.finish_group(*group("g001", (1.0, 0.0))) == 1
    assert [name for _, name, _ in delivered(run_dir)] == ["g000", "g001"]


def test_a_whole_group_that_the_journal_does_not_know_is_adopted(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert run_until(run_dir, "store.appended", 1)
    assert delivered(run_dir) == []
    with RunRecord.open(run_dir, "run", OPTIONS) as record:
        known = record.journal.completed("g000")
        assert known is not None
        assert (known.group_seq, known.reason) == (0, "")
        assert record.journal.unfinished() == ()
    assert [name for _, name, _ in delivered(run_dir)] == ["g000"]


def test_finished_members_of_an_open_group_survive_a_kill(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    # One lease of three members, then their outcomes: killed after the second.
    assert run_until(run_dir, "journal.committed", 5)
    with RunRecord.open(run_dir, "run", OPTIONS) as record:
        (open_group,) = record.journal.unfinished()
        assert (open_group.group_id, open_group.group_size) == ("g000", 3)
        assert [member.scored is not None for member in open_group.members] == [True, True, False]
        expected, _ = group("g000", rewards_of(0))
        for member, before in zip(open_group.members[:2], expected.members, strict=False):
            assert member.scored is not None
            assert member.lease == before.lease
            assert member.scored.rows.drop_columns(["logprobs"]).equals(
                before.rows.drop_columns(["logprobs"])
            )


def test_a_part_that_was_deleted_is_told_and_not_papered_over(tmp_path: Path) -> None:
    unfinished_run(tmp_path / "run", 2)
    (part,) = (tmp_path / "run" / EPISODES).glob("*.open")
    part.unlink()
    with pytest.raises(StreamError, match="lacks groups that the journal has"):
        RunRecord.open(tmp_path / "run", "run", OPTIONS)


def test_a_damaged_group_is_told_and_not_delivered(tmp_path: Path) -> None:
    unfinished_run(tmp_path / "run", 2)
    (part,) = (tmp_path / "run" / EPISODES).glob("*.open")
    data = bytearray(part.read_bytes())
    at = data.rindex(bytes([101, 0, 0, 0, 102, 0, 0, 0]))
    data[at] ^= 1
    part.write_bytes(data)
    with EpisodeStream(tmp_path / "run", "t", timeout_s=0.01) as stream:
        groups = iter(stream)
        next(groups)
        with pytest.raises(StreamError, match="wrong checksum"):
            next(groups)
