"""The run's journal: what was leased, what came of it, which groups are complete and where they lie.

A group's commit waits for the disk (`synchronous` FULL: about 4 ms), because a trainer may be told of it and
must never be told otherwise. A lease's or an outcome's does not (NORMAL: 0.02 ms): a kill loses none of them,
and what a power cut loses is played again. A group is complete once; its rows are then in the store, and the
copies of its members' rows, kept so that a crash does not play them again, go.
One writer, of any thread; readers never hold it up (WAL).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from orchestrator.errors import StreamError
from orchestrator.faultpoint import FaultPoint, no_fault
from orchestrator.schema import EPISODE_SCHEMA
from orchestrator.store import Location
from orchestrator.types import Fate, Lease, Purpose, Scored
from workers.errors import Boundary, ConfigError
from workers.trajectory import Failure

JOURNAL = "journal.sqlite"
# The columns of a Location, in its order.
LOCATION = "part, place, start, size_bytes, checksum"
_COMPLETED = f"group_id, task_id, fate, reason, group_seq, valid_count, {LOCATION}"
_VERSION = 1
_BUSY_TIMEOUT_S = 30.0

_TABLES = """
CREATE TABLE run (run_id TEXT NOT NULL, started_s REAL NOT NULL, outcome TEXT);
CREATE TABLE leases (
    group_id TEXT NOT NULL, sample_index INTEGER NOT NULL, attempt INTEGER NOT NULL, task_id TEXT NOT NULL,
    purpose TEXT NOT NULL, group_size INTEGER NOT NULL, dispatch_version INTEGER NOT NULL,
    seed INTEGER NOT NULL, deadline_s REAL NOT NULL, nonce TEXT NOT NULL,
    PRIMARY KEY (group_id, sample_index, attempt)
) WITHOUT ROWID;
CREATE TABLE outcomes (
    group_id TEXT NOT NULL, sample_index INTEGER NOT NULL, attempt INTEGER NOT NULL, reward REAL,
    passed INTEGER, boundary TEXT, cause TEXT, detail TEXT, at_s REAL NOT NULL, rows BLOB,
    PRIMARY KEY (group_id, sample_index, attempt)
);
CREATE TABLE groups (
    ordinal INTEGER PRIMARY KEY, group_id TEXT NOT NULL UNIQUE, task_id TEXT NOT NULL, fate TEXT NOT NULL,
    reason TEXT NOT NULL, group_seq INTEGER UNIQUE, valid_count INTEGER NOT NULL, at_s REAL NOT NULL,
    part INTEGER, place INTEGER, start INTEGER, size_bytes INTEGER, checksum INTEGER
);
CREATE TABLE versions (version INTEGER PRIMARY KEY, at_s REAL NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Completed:
    """A group as the journal holds it. `location` is None where no member left a row."""

    group_id: str
    task_id: str
    fate: Fate
    reason: str
    group_seq: int | None
    valid_count: int
    location: Location | None


@dataclass(frozen=True, slots=True)
class OpenMember:
    """A leased member of a group that is not complete: its last lease, and its outcome if it has one."""

    lease: Lease
    scored: Scored | None


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that was begun and is not complete; members never leased are not among `members`."""

    group_id: str
    task_id: str
    purpose: Purpose
    group_size: int
    members: tuple[OpenMember, ...]


class Journal:
    """The writing end. Open it only under the run's lock."""

    def __init__(self, run_dir: Path, run_id: str, fault: FaultPoint = no_fault) -> None:
        self._path = run_dir / JOURNAL
        self._fault = fault
        self._lock = threading.RLock()
        self.run_id = run_id
        self._connection = sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(run_id)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Closing twice is safe, and waits for what another thread has begun."""
        with self._lock:
            self._connection.close()

    def lease(self, leases: Sequence[Lease]) -> None:
        """Journal leases before they are handed out, all or none. A repeated attempt replaces its lease."""
        rows = [
            (
                lease.group_id,
                lease.sample_index,
                lease.attempt,
                lease.task_id,
                lease.purpose.value,
                lease.group_size,
                lease.dispatch_version,
                lease.seed,
                lease.deadline_s,
                lease.nonce,
            )
            for lease in leases
        ]
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO leases VALUES (?,?,?,?,?,?,?,?,?,?)", rows)

    def outcome(self, scored: Scored, keep_rows: bool = True) -> None:
        """Journal what came of an attempt. With `keep_rows` a resumed run need not play it again."""
        lease, failure = scored.lease, scored.failure
        blob = _packed(scored.rows) if keep_rows else None
        row = (
            lease.group_id,
            lease.sample_index,
            lease.attempt,
            scored.reward,
            scored.passed,
            failure.boundary.value if failure else None,
            failure.cause if failure else None,
            failure.detail.encode(errors="backslashreplace").decode() if failure else None,
            time.time(),
            blob,
        )
        with self._transaction():
            self._connection.execute("INSERT OR IGNORE INTO outcomes VALUES (?,?,?,?,?,?,?,?,?,?)", row)

    def complete(self, group: Completed) -> None:
        """Journal a complete group, for good: this is the moment of its delivery."""
        at = group.location
        place = (at.part, at.index, at.offset, at.size_bytes, at.checksum) if at else (None,) * 5
        facts = (group.group_id, group.task_id, group.fate.value, group.reason, group.group_seq)
        with self._transaction(is_durable=True):
            self._connection.execute(
                "INSERT INTO groups VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?,?)",
                (*facts, group.valid_count, time.time(), *place),
            )
            self._connection.execute("UPDATE outcomes SET rows = NULL WHERE group_id = ?", (group.group_id,))

    def completed(self, group_id: str) -> Completed | None:
        """The group of this name, if it is complete."""
        rows = self._query(f"SELECT {_COMPLETED} FROM groups WHERE group_id = ?", group_id)
        return _completed_of(rows[0]) if rows else None

    @property
    def next_seq(self) -> int:
        """The number that the next delivered group gets."""
        return int(self._query("SELECT coalesce(max(group_seq) + 1, 0) FROM groups")[0][0])

    def part_ends(self) -> dict[int, int]:
        """Each part that holds complete groups, and the offset up to which it must."""
        query = "SELECT part, max(start + size_bytes) FROM groups WHERE part IS NOT NULL GROUP BY part"
        return {int(part): int(end) for part, end in self._query(query)}

    def part_counts(self) -> dict[int, int]:
        """How many complete groups each part holds."""
        query = "SELECT part, count(*) FROM groups WHERE part IS NOT NULL GROUP BY part"
        return {int(part): int(count) for part, count in self._query(query)}

    def unfinished(self) -> tuple[OpenGroup, ...]:
        """The groups to go on with after a crash, in the order of their names."""
        query = """
            SELECT l.*, o.reward, o.passed, o.boundary, o.cause, o.detail, o.rows, o.at_s FROM leases AS l
            LEFT JOIN outcomes AS o USING (group_id, sample_index, attempt)
            WHERE l.group_id NOT IN (SELECT group_id FROM groups)
            AND l.attempt = (SELECT max(attempt) FROM leases AS m
                             WHERE m.group_id = l.group_id AND m.sample_index = l.sample_index)
            ORDER BY l.group_id, l.sample_index"""
        groups: dict[str, list[OpenMember]] = {}
        for row in self._query(query):
            groups.setdefault(row["group_id"], []).append(self._member(row))
        return tuple(_open_group(members) for members in groups.values())

    def set_version(self, version: int) -> None:
        """Journal that the policy has this version now."""
        with self._transaction():
            self._connection.execute("INSERT OR IGNORE INTO versions VALUES (?,?)", (version, time.time()))

    @property
    def version(self) -> int | None:
        """The newest policy version seen, None before the first."""
        found = self._query("SELECT max(version) FROM versions")[0][0]
        return None if found is None else int(found)

    def finish(self, outcome: str | None) -> None:
        """Say that the run has ended and how; None says that it goes on. A stream's end waits for this."""
        with self._transaction(is_durable=True):
            self._connection.execute("UPDATE run SET outcome = ?", (outcome,))

    @property
    def finished(self) -> str | None:
        """How the run has ended, None while it goes on."""
        found = self._query("SELECT outcome FROM run")[0][0]
        return None if found is None else str(found)

    def failure_counts(self) -> dict[tuple[Boundary, str], int]:
        """Failed attempts by boundary and cause."""
        rows = self._query(
            "SELECT boundary, cause, count(*) FROM outcomes WHERE boundary NOTNULL GROUP BY boundary, cause"
        )
        return {(Boundary(boundary), cause): count for boundary, cause, count in rows}

    def _prepare(self, run_id: str) -> None:
        with self._told():
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.row_factory = sqlite3.Row
        if version == 0:
            with self._transaction(is_durable=True):
                for statement in filter(str.strip, _TABLES.split(";")):
                    self._connection.execute(statement)
                self._connection.execute("INSERT INTO run VALUES (?,?,NULL)", (run_id, time.time()))
                self._connection.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise ConfigError(
                f"{self._path} has version {version}, this release reads {_VERSION}",
                "resume the run with the release that began it",
            )
        found = self._query("SELECT run_id FROM run")[0][0]
        if found != run_id:
            raise ConfigError(
                f"{self._path.parent} holds the run {found!r}, not {run_id!r}",
                f"resume it with --resume {found}, or choose another folder with run_dir=…",
            )

    def _member(self, row: sqlite3.Row) -> OpenMember:
        lease = Lease(
            run_id=self.run_id,
            purpose=Purpose(row["purpose"]),
            **{name: row[name] for name in _LEASE_FIELDS},
        )
        if row["at_s"] is None or row["rows"] is None:
            return OpenMember(lease, None)
        failure = Failure(Boundary(row["boundary"]), row["cause"], row["detail"]) if row["boundary"] else None
        passed = None if row["passed"] is None else bool(row["passed"])
        return OpenMember(lease, Scored(lease, row["reward"], passed, failure, _unpacked(row["rows"])))

    def _query(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._lock, self._told():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self, is_durable: bool = False) -> Iterator[None]:
        with self._lock, self._told():
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._fault("journal.written")
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._fault("journal.committed")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            name = getattr(error, "sqlite_errorname", "")
            is_full = name.startswith(("SQLITE_FULL", "SQLITE_IOERR"))
            raise StreamError(
                f"the journal {self._path} can't be {'written' if is_full else 'used'}: {error} ({name})",
                "free space, then `rollcage run --resume` goes on; what was journalled is kept"
                if is_full
                else "make sure that it is the journal of a run and that the file is whole",
            ) from error


_LEASE_FIELDS = (
    "group_id",
    "task_id",
    "sample_index",
    "group_size",
    "attempt",
    "dispatch_version",
    "seed",
    "deadline_s",
    "nonce",
)


def _completed_of(row: Sequence[object]) -> Completed:
    """The group that a row of the columns `_COMPLETED` holds."""
    group_id, task_id, fate, reason, group_seq, valid_count, *place = row
    numbers = [value for value in place if isinstance(value, int)]
    return Completed(
        group_id=str(group_id),
        task_id=str(task_id),
        fate=Fate(str(fate)),
        reason=str(reason),
        group_seq=group_seq if isinstance(group_seq, int) else None,
        valid_count=int(str(valid_count)),
        location=Location(*numbers) if numbers else None,
    )


def _open_group(members: Sequence[OpenMember]) -> OpenGroup:
    lease = members[0].lease
    return OpenGroup(lease.group_id, lease.task_id, lease.purpose, lease.group_size, tuple(members))


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def _unpacked(blob: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.BufferReader(blob)) as reader:
        return reader.read_next_batch().cast(EPISODE_SCHEMA)
