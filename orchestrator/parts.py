"""The bytes of a part: how batches are framed in an open part and packed into a closed one.

An open part is an Arrow IPC stream without its end: any Arrow reader may read it while it grows. Each frame
(one batch with its dictionaries) depends on no other, so a part goes on after a crash; its checksum tells a
whole frame from one that the disk holds in part. A closed part is an Arrow IPC file of the same batches in
the same order.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from orchestrator.errors import StreamError
from orchestrator.schema import canonical

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_CHECKSUM = b"crc32"

DAMAGED = "restore the file from a copy; every group outside it can still be read"


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch as bytes, and the checksum of what it says."""

    data: bytes
    checksum: int


@dataclass(frozen=True, slots=True)
class Framed:
    """A whole batch found in an open part at [start, end)."""

    batch: pa.RecordBatch
    start: int
    end: int
    checksum: int


def head(schema: pa.Schema) -> bytes:
    """What an open part begins with."""
    return bytes(schema.serialize())


def frame(batch: pa.RecordBatch) -> Frame:
    """The frame of a batch; equal rows in equal order have an equal checksum."""
    checksum = checksum_of(batch)
    return Frame(_serialised(batch, {_CHECKSUM: str(checksum).encode()}), checksum)


def checksum_of(batch: pa.RecordBatch) -> int:
    """The CRC-32 of the batch's canonical bytes."""
    return zlib.crc32(_serialised(canonical(batch), None))


def unframe(data: bytes, schema: pa.Schema) -> tuple[pa.RecordBatch, int]:
    """The batch of one frame and its checksum. Raises StreamError where its bytes are damaged."""
    try:
        with pa.ipc.open_stream(pa.BufferReader(head(schema) + data + _END)) as reader:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            checksum = checksum_of(batch)
            if metadata is None or int(metadata[_CHECKSUM]) != checksum:
                raise StreamError("a batch in an open part has a wrong checksum", DAMAGED)
            return canonical(batch), checksum
    except (pa.ArrowException, OSError, StopIteration, KeyError, ValueError) as error:
        raise StreamError(f"a batch in an open part can't be read: {error}", DAMAGED) from error


def scan(path: Path, schema: pa.Schema) -> Iterator[Framed]:
    """The whole batches of an open part; ends silently at the first that is not whole."""
    start = len(head(schema))
    with path.open("rb") as source:
        if source.read(start) != head(schema):
            return
        for end in _frame_ends(path, start):
            try:
                batch, checksum = unframe(source.read(end - start), schema)
            except StreamError:
                return
            yield Framed(batch, start, end, checksum)
            start = end


def pack(table: pa.Table, target: Path, compression: str | None) -> None:
    """Write a closed part, a batch for each of the table's chunks, and wait until the disk has it."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with target.open("wb") as sink:
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table.unify_dictionaries())
        sink.flush()
        os.fsync(sink.fileno())


def _serialised(batch: pa.RecordBatch, metadata: dict[bytes, bytes] | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata=metadata)
    data: bytes = sink.getvalue().to_pybytes()
    return data[len(head(batch.schema)) : -len(_END)]


def _frame_ends(path: Path, start: int) -> Iterator[int]:
    with pa.OSFile(str(path)) as source:
        source.seek(start)
        while True:
            try:
                message = pa.ipc.read_message(source)
            except (pa.ArrowException, EOFError, OSError):
                return
            if message.type == "record batch":
                yield source.tell()


def count(path: Path) -> int:
    """How many batches a closed part holds. Raises StreamError when it is damaged."""
    try:
        with pa.ipc.open_file(path) as reader:
            return int(reader.num_record_batches)
    except (OSError, pa.ArrowException) as error:
        raise StreamError(f"{path} can't be read: {error}", DAMAGED) from error
