"""The trainer's end of a run: whole groups in order, from a named consumer's cursor.

Groups come by `group_seq`, without gap. What is acknowledged never comes again; what is not comes again,
with the same bytes under the same number, in the next loop over the stream or in the next process. The
stream follows a run that goes on and ends when the run has ended. Neither Ray nor the run's configuration
is needed: this is imported by trainers.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from orchestrator.cursor import NONE_YET, Cursor, cursors
from orchestrator.errors import StreamError
from orchestrator.journal import JOURNAL, LOCATION
from orchestrator.runlock import is_held
from orchestrator.schema import SCHEMA
from orchestrator.store import EPISODES, Location, PartReader
from workers.errors import ConfigError

__all__ = ["NONE_YET", "EpisodeStream", "cursors"]

_BUSY_TIMEOUT_S = 30.0
TELL_AFTER_S = 5.0

logger = logging.getLogger(__name__)


class EpisodeStream:
    """Reads the delivered groups of one run.

    `source` is a run folder; it may not exist yet. `timeout_s` bounds the wait for one group: then
    StreamError, and a further loop goes on from the cursor. One thread at a time.

        with EpisodeStream("runs/first", consumer="trainer") as stream:
            for batch in stream:
                train(batch)
                stream.ack()
    """

    def __init__(
        self, source: Path | str, consumer: str, timeout_s: float = 600.0, poll_s: float = 0.05
    ) -> None:
        if "://" in str(source):
            raise ConfigError(f"{source!r} is no run folder", "give the path of a run's folder")
        self._run_dir = Path(source)
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._deliveries = _Deliveries(self._run_dir / JOURNAL)
        self._reader = PartReader(self._run_dir / EPISODES, SCHEMA)
        self._wait(self._run_dir.is_dir, "the run's folder")
        self._cursor = Cursor(self._run_dir, consumer)
        self._given = self._last = self._cursor.acknowledged

    @property
    def cursor(self) -> int:
        """The last acknowledged `group_seq`, -1 before the first."""
        return self._cursor.acknowledged

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Begin after the cursor: groups given earlier and not acknowledged come again."""
        seq = self._cursor.acknowledged
        while location := self._wait_for(seq + 1):
            batch = self._reader.read(location)
            seq = self._last = seq + 1
            self._given = max(self._given, seq)
            yield batch

    def acknowledge(self, group_seq: int) -> None:
        """Say that every group up to this one is done with. Raises StreamError for one not given yet."""
        if group_seq > self._given:
            raise StreamError(
                f"group {group_seq} can't be acknowledged: the last one given is {self._given}",
                "acknowledge a group after the stream gave it",
            )
        self._cursor.acknowledge(group_seq)

    def ack(self) -> None:
        """Acknowledge the group given last, and all before it."""
        self.acknowledge(self._last)

    def close(self) -> None:
        """Let the consumer's name go. Closing twice is safe."""
        self._deliveries.close()
        self._reader.close()
        self._cursor.close()

    def __enter__(self) -> EpisodeStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for(self, seq: int) -> Location | None:
        """Where a group lies, as soon as it is delivered; None when the run has ended without it."""
        found: Location | None = None

        def is_there() -> bool:
            nonlocal found
            has_ended = self._deliveries.has_ended()
            found = self._deliveries.find(seq)
            return found is not None or has_ended

        self._wait(is_there, f"group {seq}")
        return found

    def _wait(self, is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        told_at = time.monotonic() + TELL_AFTER_S
        while not is_there():
            if time.monotonic() > told_at:
                logger.warning("still waiting for %s in %s", what, self._run_dir)
                told_at = time.monotonic() + 10 * TELL_AFTER_S
            left = deadline - time.monotonic()
            if left <= 0:
                is_running = is_held(self._run_dir)
                raise StreamError(
                    f"{what} did not come to {self._run_dir} within {self._timeout_s:g} s",
                    "the run goes on: wait longer with a larger timeout_s"
                    if is_running
                    else "no process is running it: start it, or resume it with `rollcage run --resume`",
                )
            time.sleep(min(self._poll_s, left))


class _Deliveries:
    """The journal as a reader sees it. Never writes, and holds no lock between two questions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def find(self, seq: int) -> Location | None:
        rows = self._ask(f"SELECT {LOCATION} FROM groups WHERE group_seq = ?", seq)
        return Location(*rows[0]) if rows else None

    def has_ended(self) -> bool:
        return bool(self._ask("SELECT 1 FROM run WHERE outcome IS NOT NULL"))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, query: str, *values: int) -> list[tuple[int, int, int, int, int]]:
        """No rows where the journal is not there yet."""
        try:
            if self._connection is None:
                if not self._path.exists():
                    return []
                self._connection = _opened(self._path)
            return self._connection.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            if "no such table" in str(error):
                return []
            raise StreamError(
                f"the journal {self._path} can't be read: {error}",
                "make sure that it is the journal of a run, and that this user may read it",
            ) from error


def _opened(path: Path) -> sqlite3.Connection:
    # Readers of a WAL take part in its shared memory, so a plain read-only mode would fail beside no writer.
    # A finished run on a read-only disk has no WAL and can't change: there it needs none.
    is_frozen = not os.access(path, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro&immutable=1" if is_frozen else "mode=rw"
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
    )
    connection.execute("PRAGMA query_only = ON")
    return connection
