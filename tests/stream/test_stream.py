"""The trainer's end: in order, from a named cursor, again until acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from orchestrator.errors import StreamError
from orchestrator.parts import frame
from orchestrator.record import RunRecord
from orchestrator.store import StoreOptions
from orchestrator.stream import EpisodeStream, cursors
from tests.stream.making import group
from workers.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent
OPTIONS = StoreOptions(part_bytes=60_000)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[RunRecord]:
    with RunRecord.open(tmp_path / "run", "run", OPTIONS) as opened:
        yield opened


def deliver(record: RunRecord, count: int, start: int = 0) -> None:
    for index in range(start, start + count):
        record.finish_group(*group(f"g{index}", (1.0, 0.0)))


def seq_of(batch: pa.RecordBatch) -> int:
    return int(batch["group_seq"][0].as_py())


def stream(record: RunRecord, consumer: str = "trainer", timeout_s: float = 5.0) -> EpisodeStream:
    return EpisodeStream(record.run_dir, consumer, timeout_s=timeout_s, poll_s=0.01)


def test_groups_come_in_order_and_the_stream_ends_with_the_run(record: RunRecord) -> None:
    deliver(record, 9)
    record.finish_group(*group("equal", (1.0, 1.0)))
    record.finish("done")
    with stream(record) as groups:
        assert [seq_of(batch) for batch in groups] == list(range(9))


def test_what_is_not_acknowledged_comes_again_with_the_same_bytes(record: RunRecord) -> None:
    deliver(record, 6)
    with stream(record) as groups:
        first = [frame(batch).data for batch, _ in zip(groups, range(5), strict=False)]
        groups.acknowledge(1)
    # Meanwhile the parts are closed: the same groups now come from another file.
    record.finish("done")
    with stream(record) as groups:
        assert groups.cursor == 1
        again = list(groups)
    assert [seq_of(batch) for batch in again] == [2, 3, 4, 5]
    assert [frame(batch).data for batch in again[:3]] == first[2:]


def test_a_second_loop_begins_after_the_cursor(record: RunRecord) -> None:
    deliver(record, 3)
    record.finish("done")
    with stream(record) as groups:
        assert [seq_of(batch) for batch in groups] == [0, 1, 2]
        assert [seq_of(batch) for batch in groups] == [0, 1, 2]
        for batch in groups:
            if seq_of(batch) == 1:
                groups.ack()
                break
        assert [seq_of(batch) for batch in groups] == [2]
        groups.ack()
        assert list(groups) == []


def test_two_consumers_have_cursors_of_their_own(record: RunRecord) -> None:
    deliver(record, 3)
    record.finish("done")
    with stream(record, "trainer") as trainer, stream(record, "critic") as critic:
        for _ in trainer:
            trainer.ack()
        assert [seq_of(batch) for batch in critic] == [0, 1, 2]
        critic.acknowledge(0)
    assert cursors(record.run_dir) == {"critic": 0, "trainer": 2}


def test_only_what_was_given_can_be_acknowledged(record: RunRecord) -> None:
    deliver(record, 2)
    with stream(record) as groups:
        with pytest.raises(StreamError, match="can't be acknowledged"):
            groups.acknowledge(0)
        next(iter(groups))
        groups.acknowledge(0)
        groups.acknowledge(-1)
        assert groups.cursor == 0


def test_a_live_run_is_followed_to_its_end(record: RunRecord) -> None:
    def run() -> None:
        for index in range(12):
            time.sleep(0.02)
            deliver(record, 1, start=index)
        record.finish("done")

    with stream(record, timeout_s=30) as groups:
        runner = threading.Thread(target=run)
        runner.start()
        try:
            got = []
            for batch in groups:
                got.append(seq_of(batch))
                groups.ack()
        finally:
            runner.join(timeout=30)
    assert got == list(range(12))


def test_a_group_that_does_not_come_in_time_is_an_error_that_can_be_survived(record: RunRecord) -> None:
    deliver(record, 1)
    with stream(record, timeout_s=0.1) as groups:
        for _ in range(2):
            with pytest.raises(StreamError, match=r"group 1 did not come .* within 0.1 s") as told:
                list(groups)
            assert "the run goes on" in told.value.remedy
        deliver(record, 1, start=1)
        record.finish("done")
        assert [seq_of(batch) for batch in groups] == [0, 1]


def test_a_dead_run_is_told_apart_from_a_slow_one(tmp_path: Path) -> None:
    with RunRecord.open(tmp_path / "run", "run") as record:
        deliver(record, 1)
    with EpisodeStream(tmp_path / "run", "t", timeout_s=0.05) as groups, pytest.raises(StreamError) as told:
        list(groups)
    assert "--resume" in told.value.remedy


def test_a_trainer_may_start_before_the_run(tmp_path: Path) -> None:
    def run() -> None:
        time.sleep(0.1)
        with RunRecord.open(tmp_path / "run", "run") as record:
            deliver(record, 2)
            record.finish("done")

    runner = threading.Thread(target=run)
    runner.start()
    try:
        with EpisodeStream(tmp_path / "run", "t", timeout_s=30, poll_s=0.01) as groups:
            assert [seq_of(batch) for batch in groups] == [0, 1]
    finally:
        runner.join(timeout=30)
    with pytest.raises(StreamError, match="the run's folder did not come"):
        EpisodeStream(tmp_path / "other", "t", timeout_s=0.05)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x.lock", "a" * 200])
def test_a_name_that_can_be_no_file_is_refused(record: RunRecord, name: str) -> None:
    with pytest.raises(ConfigError, match="is no name"):
        stream(record, name)


def test_one_name_is_one_process(record: RunRecord) -> None:
    with stream(record), pytest.raises(ConfigError, match="another process reads this run as consumer"):
        stream(record)
    stream(record).close()


def test_a_url_is_refused_with_what_to_give_instead() -> None:
    with pytest.raises(ConfigError, match="is no run folder"):
        EpisodeStream("grpc://localhost:1", "t")


def test_a_closed_stream_acknowledges_nothing(record: RunRecord) -> None:
    deliver(record, 1)
    groups = stream(record)
    next(iter(groups))
    groups.close()
    groups.close()
    with pytest.raises(StreamError, match="closed"):
        groups.acknowledge(0)


TRAINER = """
import sys
from orchestrator.stream import EpisodeStream
with EpisodeStream(sys.argv[1], "trainer", timeout_s=30) as stream:
    for batch in stream:
        print(batch["group_seq"][0].as_py(), flush=True)
        if batch["group_seq"][0].as_py() < int(sys.argv[2]):
            stream.ack()
"""


def test_a_trainer_that_is_killed_goes_on_after_what_it_acknowledged(record: RunRecord) -> None:
    deliver(record, 5)
    command = [sys.executable, "-c", TRAINER, str(record.run_dir), "3"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        got = [int(trainer.stdout.readline()) for _ in range(5)]
        trainer.kill()
    record.finish("done")
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert got == [0, 1, 2, 3, 4]
    assert again.stdout.split() == ["3", "4"]


def test_a_trainer_that_is_stopped_does_not_hold_up_the_run(record: RunRecord) -> None:
    deliver(record, 2)
    command = [sys.executable, "-c", TRAINER, str(record.run_dir), "99"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        trainer.stdout.readline()
        os.kill(trainer.pid, signal.SIGSTOP)
        begun = time.monotonic()
        deliver(record, 10, start=2)
        assert time.monotonic() - begun < 10
        trainer.kill()


def test_a_finished_run_can_be_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with RunRecord.open(run_dir, "run") as record:
        deliver(record, 2)
        record.finish("done")
    (run_dir / "journal.sqlite").chmod(0o400)
    with EpisodeStream(run_dir, "t", timeout_s=5) as groups:
        assert [seq_of(batch) for batch in groups] == [0, 1]


def test_a_trainer_needs_neither_ray_nor_the_configuration() -> None:
    code = (
        "import sys; from orchestrator.stream import EpisodeStream;"
        "print(sorted({'ray', 'omegaconf', 'duckdb', 'httpx', 'gymnasium'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.strip() == "[]"
