"""What a run remembers, and where it may lie."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.errors import StreamError
from orchestrator.groups import GroupBuffer, decide
from orchestrator.journal import Journal
from orchestrator.record import RunRecord
from orchestrator.runlock import RunLock, file_system_of, is_held, is_network, refuse_network_file_system
from orchestrator.types import Fate, Purpose
from tests.stream.making import group, lease, member
from workers.errors import Boundary, ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path, "run") as record:
        with pytest.raises(ConfigError, match="a run is going on") as told:
            RunRecord.open(tmp_path, "run")
        assert "run_dir=" in told.value.remedy
        record.finish_group(*group("g0", (1.0, 0.0)))
    RunRecord.open(tmp_path, "run").close()


def test_the_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from orchestrator.runlock import RunLock;"
        "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_held(tmp_path)
        with pytest.raises(ConfigError, match=f"process {holder.pid}"):
            RunLock(tmp_path)
        holder.kill()
    assert not is_held(tmp_path)
    RunLock(tmp_path).close()


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /home rw - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/me/local rw shared:5 - xfs /dev/sdb rw
32 22 0:42 / /mnt/two\\040words rw - fuse.sshfs host:/x rw
33 22 0:43 / /mnt/c rw - 9p drvfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind", "refused"),
    [
        ("/srv/runs", "ext4", False),
        ("/home/me/runs", "nfs4", True),
        ("/home/me/local/runs", "xfs", False),
        ("/homestead", "ext4", False),
        ("/mnt/two words/runs", "fuse.sshfs", True),
        ("/mnt/c/runs", "9p", True),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(folder: str, kind: str, refused: bool) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind
    assert is_network(kind) is refused


def test_a_local_folder_is_accepted_and_an_unknown_one_too(tmp_path: Path) -> None:
    refuse_network_file_system(tmp_path)
    assert file_system_of(tmp_path, "") == ""
    assert not is_network("")


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    RunRecord.open(tmp_path, "first").close()
    with pytest.raises(ConfigError, match="holds the run 'first', not 'second'"):
        RunRecord.open(tmp_path, "second")


def test_a_file_that_is_no_journal_is_told(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"not a database " * 100)
    with pytest.raises(StreamError, match="can't be used"):
        RunRecord.open(tmp_path, "run")


def test_a_journal_of_a_later_release_is_refused(tmp_path: Path) -> None:
    RunRecord.open(tmp_path, "run").close()
    connection = sqlite3.connect(tmp_path / "journal.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="has version 99"):
        RunRecord.open(tmp_path, "run")


def test_a_resumed_run_knows_what_it_leased_and_what_came_of_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "run")
    journal.lease([lease(sample=0), lease(sample=1), lease(sample=2)])
    journal.outcome(member(1.0, sample=0))
    journal.outcome(member(None, sample=1))
    journal.lease([lease(sample=1, attempt=1)])
    journal.outcome(member(None, sample=2))
    journal.close()
    journal = Journal(tmp_path, "run")
    (left,) = journal.unfinished()
    journal.close()
    assert (left.group_id, left.task_id, left.purpose, left.group_size) == (
        "g0",
        "task-of-g0",
        Purpose.TRAIN,
        4,
    )
    found = [(m.lease.sample_index, m.lease.attempt, m.scored and m.scored.reward) for m in left.members]
    assert found == [(0, 0, 1.0), (1, 1, None), (2, 0, None)]
    assert left.members[0].lease == lease(sample=0)
    assert left.members[1].scored is None
    failed = left.members[2].scored
    assert failed is not None
    assert failed.failure is not None
    assert failed.failure.cause == "pool_lost"


def test_what_a_resumed_run_knows_fills_the_same_groups(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path, "run") as record:
        record.journal.lease([lease(sample=sample, size=2) for sample in range(2)])
        record.journal.outcome(member(1.0, sample=0, size=2))
    with RunRecord.open(tmp_path, "run") as record:
        buffer = GroupBuffer(max_retries=1, max_open=4)
        (left,) = record.journal.unfinished()
        buffer.open(left.group_id, left.task_id, left.purpose, left.group_size)
        for found in left.members:
            buffer.expect(left.group_id, found.lease.sample_index, found.lease.attempt)
            if found.scored:
                buffer.add(found.scored)
        done = buffer.add(member(0.0, sample=1, size=2)).group
        assert done is not None
        assert record.finish_group(done, decide(done)) == 0
        assert record.journal.unfinished() == ()


def test_a_group_finished_twice_is_finished_once(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path, "run") as record:
        made = group("g0", (1.0, 0.0))
        assert [record.finish_group(*made) for _ in range(3)] == [0, 0, 0]
        assert record.journal.next_seq == 1


def test_failures_are_counted_by_cause(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path, "run") as record:
        for name, rewards in (("g0", (1.0, 0.0)), ("g1", (1.0, 1.0)), ("g2", (1.0, None, None))):
            made, decision = group(name, rewards)
            for one in made.members:
                record.journal.outcome(one)
            record.finish_group(made, decision)
        assert record.journal.failure_counts() == {(Boundary.INFRASTRUCTURE, "pool_lost"): 2}


def test_a_group_that_left_no_row_is_remembered(tmp_path: Path) -> None:
    buffer = GroupBuffer(max_retries=0, max_open=1)
    buffer.open("g0", "t", Purpose.TRAIN, 4)
    cut = buffer.cut("g0")
    with RunRecord.open(tmp_path, "run") as record:
        assert record.finish_group(cut, decide(cut, is_cancelled=True)) is None
        known = record.journal.completed("g0")
        assert known is not None
        assert (known.location, known.fate) == (None, Fate.CANCELLED)


def test_versions_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "run")
    assert journal.version is None
    for version in (3, 4, 3):
        journal.set_version(version)
    journal.close()
    journal = Journal(tmp_path, "run")
    assert journal.version == 4
    journal.close()


def test_a_run_that_goes_on_is_not_finished(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path, "run") as record:
        record.finish("done")
        assert record.journal.finished == "done"
    with RunRecord.open(tmp_path, "run") as record:
        assert record.journal.finished is None


def test_the_journal_may_be_written_from_many_threads(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path, "run") as record:

        def work(number: int) -> None:
            for index in range(10):
                record.finish_group(*group(f"g{number}-{index}", (1.0, 0.0)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert record.journal.next_seq == 40
