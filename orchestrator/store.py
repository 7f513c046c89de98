"""Parts of a run folder: appended batch by batch, readable at once, closed by size or age.

A batch is in the store when `append` returns: then the disk has it. A part grows as `part-N.arrow.open` and
is packed into `part-N.arrow` under a temporary name, then renamed; a batch keeps its place (part, index)
for good. What a crash can leave (a temporary file, a part both open and closed, a torn last batch) is put
right by the next writer. A full disk raises StreamError and takes back what was written in part. One writer;
any number of readers, in any process.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from orchestrator import parts
from orchestrator.errors import StreamError
from orchestrator.faultpoint import FaultPoint, no_fault
from orchestrator.schema import SCHEMA, canonical

EPISODES = "episodes"

_NAME = re.compile(r"part-(\d{5,})\.arrow(\.open)?")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """When a part is closed, and how.

    `compression` is of a closed part: None can be mapped and read without a copy, else lz4 or zstd.
    `keeps_batches` says whether a closed part holds the batches as they were appended.
    """

    part_bytes: int = 64 * 2**20
    part_age_s: float = 600.0
    compression: str | None = None
    keeps_batches: bool = True
    is_synced: bool = True


DEFAULTS = StoreOptions()


@dataclass(frozen=True, slots=True)
class Location:
    """Where a batch lies. `offset` and `size_bytes` are of the open part, `index` counts its batches."""

    part: int
    index: int
    offset: int
    size_bytes: int
    checksum: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


class PartWriter:
    """Appends batches of one schema to the parts of one folder. Recovers the folder when it is made."""

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        options: StoreOptions = DEFAULTS,
        fault: FaultPoint = no_fault,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._options = options
        self._fault = fault
        self._clock = clock
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = None
        self._count = self._end = 0
        self._opened_at = clock()
        self._number = self._recover()

    def open_batches(self) -> Iterator[tuple[Location, pa.RecordBatch]]:
        """The batches of the part that is open, in order."""
        if self._open_path.exists():
            for index, found in enumerate(parts.scan(self._open_path, self._schema)):
                size = found.end - found.start
                yield Location(self._number, index, found.start, size, found.checksum), found.batch

    def append(self, batch: pa.RecordBatch) -> Location:
        """Store a batch. Raises StreamError when the disk is full; the store is then as before."""
        if self._is_due():
            self.close_part()
        frame = parts.frame(batch)
        with _full_disk_told(self._folder):
            start = self._end
            if self._descriptor is None:
                start = self._begin()
            self._write(frame.data, start)
        location = Location(self._number, self._count, start, len(frame.data), frame.checksum)
        self._end, self._count = location.end, location.index + 1
        self._fault("store.appended")
        return location

    def cut(self, first: Location) -> None:
        """Drop this batch of the open part and all after it."""
        self._cut(first.offset, first.index)

    def holds(self, part: int, end: int) -> bool:
        """Whether everything up to offset `end` of a part is there."""
        closed, _ = _listed(self._folder)
        return part in closed or (part == self._number and end <= self._end)

    def closed_counts(self) -> dict[int, int]:
        """How many batches each closed part holds."""
        closed, _ = _listed(self._folder)
        return {number: parts.count(path) for number, path in closed.items()}

    def close_part(self) -> None:
        """Pack the open part into a closed one, if it holds anything."""
        if self._descriptor is None:
            return
        closed, packed = self._path(".arrow"), self._path(".arrow.tmp")
        if self._count:
            batches = [batch for _, batch in self.open_batches()]
            if len(batches) != self._count:
                raise StreamError(f"{self._open_path} holds fewer batches than were stored", parts.DAMAGED)
            with _full_disk_told(self._folder, packed):
                parts.pack(self._table(batches), packed, self._options.compression)
            self._fault("store.packed")
            packed.rename(closed)
            self._sync_folder()
            self._fault("store.renamed")
        self._open_path.unlink()
        os.close(self._descriptor)
        self._descriptor, self._count, self._end = None, 0, 0
        self._number += 1 if closed.exists() else 0
        self._fault("store.closed")

    def close(self) -> None:
        """Let go of the open part; the next writer goes on with it. Closing twice is safe."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _table(self, batches: list[pa.RecordBatch]) -> pa.Table:
        table = pa.Table.from_batches(batches, schema=self._schema)
        return table if self._options.keeps_batches else table.combine_chunks()

    @property
    def _open_path(self) -> Path:
        return self._path(".arrow.open")

    def _path(self, suffix: str) -> Path:
        return self._folder / f"part-{self._number:05d}{suffix}"

    def _is_due(self) -> bool:
        is_old = self._clock() - self._opened_at >= self._options.part_age_s
        return self._count > 0 and (self._end >= self._options.part_bytes or is_old)

    def _begin(self) -> int:
        self._descriptor = os.open(self._open_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._fault("store.created")
        self._opened_at = self._clock()
        header = parts.head(self._schema)
        self._write(header, 0)
        self._sync_folder()
        self._fault("store.begun")
        return len(header)

    def _write(self, data: bytes, start: int) -> None:
        assert self._descriptor is not None
        try:
            rest, offset = memoryview(data), start
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written
            self._fault("store.written")
            if self._options.is_synced:
                os.fsync(self._descriptor)
        except OSError:
            self._cut(start, self._count)
            raise

    def _cut(self, end: int, count: int) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, end)
        os.fsync(self._descriptor)
        self._end, self._count = end, count
        if end < len(parts.head(self._schema)):
            os.close(self._descriptor)
            self._descriptor = None

    def _recover(self) -> int:
        for leftover in self._folder.glob("part-*.tmp"):
            leftover.unlink()
        closed, still_open = _listed(self._folder)
        for number in [number for number in still_open if number in closed]:
            still_open.pop(number).unlink()
        if not still_open:
            return max(closed, default=-1) + 1
        self._number = max(still_open)
        self._adopt()
        return self._number

    def _adopt(self) -> None:
        """Go on with the open part after its last whole batch."""
        batches = list(self.open_batches())
        end = batches[-1][0].end if batches else 0
        self._descriptor = os.open(self._open_path, os.O_RDWR | os.O_CLOEXEC)
        self._fault("store.found")
        self._cut(end, len(batches))

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class PartReader:
    """Reads what a `PartWriter` of the same folder has stored, while it writes or long after."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._mapped: tuple[int, pa.ipc.RecordBatchFileReader] | None = None

    def read(self, location: Location) -> pa.RecordBatch:
        """The batch at a place, canonical. Raises StreamError where it is damaged or gone."""
        batch = self._read_closed(location) or self._read_open(location) or self._read_closed(location)
        if batch is None:
            raise StreamError(f"part {location.part} is gone from {self._folder}", parts.DAMAGED)
        return batch

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every whole batch there is now, in the order in which they were stored."""
        closed, still_open = _listed(self._folder)
        for number in sorted(closed | still_open):
            if number not in closed:
                try:
                    yield from (found.batch for found in parts.scan(still_open[number], self._schema))
                    continue
                except FileNotFoundError:
                    pass
            if reader := self._map(number):
                yield from (canonical(reader.get_batch(i)) for i in range(reader.num_record_batches))

    def table(self) -> pa.Table:
        """All batches as one table."""
        return pa.Table.from_batches(self.batches(), schema=self._schema).unify_dictionaries()

    def close(self) -> None:
        """Let go of the mapped part. Closing twice is safe."""
        self._mapped = None

    def _read_closed(self, location: Location) -> pa.RecordBatch | None:
        reader = self._map(location.part)
        if reader is None:
            return None
        try:
            batch = canonical(reader.get_batch(location.index))
        except (pa.ArrowException, OSError, IndexError, ValueError) as error:
            raise StreamError(f"part {location.part} can't be read: {error}", parts.DAMAGED) from error
        if parts.checksum_of(batch) != location.checksum:
            raise StreamError(f"group {location.index} of part {location.part} has changed", parts.DAMAGED)
        return batch

    def _read_open(self, location: Location) -> pa.RecordBatch | None:
        try:
            with (self._folder / f"part-{location.part:05d}.arrow.open").open("rb") as source:
                data = os.pread(source.fileno(), location.size_bytes, location.offset)
        except FileNotFoundError:
            return None
        batch, checksum = parts.unframe(data, self._schema)
        if checksum != location.checksum:
            raise StreamError(f"group {location.index} of part {location.part} has changed", parts.DAMAGED)
        return batch

    def _map(self, number: int) -> pa.ipc.RecordBatchFileReader | None:
        if self._mapped is None or self._mapped[0] != number:
            path = self._folder / f"part-{number:05d}.arrow"
            if not path.exists():
                return None
            try:
                reader = pa.ipc.open_file(pa.memory_map(str(path)))
            except (pa.ArrowException, OSError) as error:
                raise StreamError(f"{path} can't be read: {error}", parts.DAMAGED) from error
            self._mapped = (number, reader)
        return self._mapped[1]


def read_groups(run_dir: Path) -> Iterator[pa.RecordBatch]:
    """Every stored group of a run, whatever its fate, in the order in which they were completed."""
    return PartReader(run_dir / EPISODES, SCHEMA).batches()


def _listed(folder: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    closed: dict[int, Path] = {}
    still_open: dict[int, Path] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if found := _NAME.fullmatch(path.name):
            (still_open if found[2] else closed)[int(found[1])] = path
    return closed, still_open


@contextmanager
def _full_disk_told(folder: Path, leftover: Path | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if leftover is not None:
            leftover.unlink(missing_ok=True)
        if error.errno not in _FULL:
            raise
        raise StreamError(
            f"the disk is full: {folder} can't take another group ({os.strerror(error.errno)})",
            "free space, then `rollcage run --resume` goes on; every group that was completed is kept",
        ) from error
