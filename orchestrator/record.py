"""The run folder's writing end: lock, journal, episodes and trajectories, kept in step.

A group is complete in two steps: its rows are on disk in the store, then the journal says so, and only then
does a stream show it. A crash between the two leaves a whole batch that the journal does not know: the next
opening adopts it. So every group is in the store and in the stream once, and none is lost. When the journal
fails after the store was written, this object takes no more groups: the next opening puts it right.
Methods wait for the disk and may be called from any thread, one at a time.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from orchestrator.errors import StreamError
from orchestrator.faultpoint import FaultPoint, no_fault
from orchestrator.groups import Decision, Group
from orchestrator.journal import Completed, Journal
from orchestrator.rows import finish_group
from orchestrator.rules import faults, validate
from orchestrator.runlock import RunLock
from orchestrator.schema import SCHEMA
from orchestrator.store import DEFAULTS, EPISODES, Location, PartWriter, StoreOptions
from orchestrator.trajectories import TRAJECTORIES, TRAJECTORY_SCHEMA
from orchestrator.types import Fate, Purpose, Scored

_TURNS = StoreOptions(compression="zstd", keeps_batches=False, is_synced=False)


class RunRecord:
    """Opens a run's folder, new or left by a crash.

    Raises ConfigError when another process holds it, it lies on a network file system or holds another run;
    StreamError when it is damaged or the disk is full.
    """

    def __init__(
        self,
        run_dir: Path,
        run_id: str,
        options: StoreOptions,
        fault: FaultPoint,
    ) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        self._fault = fault
        self._mutex = threading.Lock()
        self._broken = False
        self._run_lock = RunLock(run_dir)
        try:
            self.journal = Journal(run_dir, run_id, fault)
            self._store = PartWriter(run_dir / EPISODES, SCHEMA, options, fault)
            self._turns = PartWriter(run_dir / TRAJECTORIES, TRAJECTORY_SCHEMA, _TURNS)
            self._recover()
            self.journal.finish(None)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls, run_dir: Path, run_id: str, options: StoreOptions = DEFAULTS, fault: FaultPoint = no_fault
    ) -> RunRecord:
        """Open the folder, and put right what a crash left in it."""
        return cls(run_dir, run_id, options, fault)

    def finish_group(self, group: Group, decision: Decision) -> int | None:
        """Store a complete group and journal it; the `group_seq` of a delivered one. Twice is as once.

        Raises SchemaError when its rows break the schema's rules; StreamError when the disk is full, and the
        folder is then as before.
        """
        with self._mutex:
            if known := self.journal.completed(group.group_id):
                return known.group_seq
            if self._broken:
                raise StreamError("the journal failed before", "resume the run with `rollcage run --resume`")
            seq = self.journal.next_seq if decision.fate is Fate.DELIVERED else None
            batch = _batch(group, decision, seq)
            location = self._store.append(batch) if batch else None
            self._complete(_completed(group, decision, seq, location))
            return seq

    def add_turns(self, scored: Scored) -> None:
        """Keep what an attempt said and did, for people and for search."""
        if scored.turns is not None:
            with self._mutex:
                self._turns.append(scored.turns)

    def finish(self, outcome: str) -> None:
        """End the run: close its parts, let its streams end."""
        with self._mutex:
            self._store.close_part()
            self._turns.close_part()
            self.journal.finish(outcome)

    def close(self) -> None:
        """Let the folder go; an unfinished run can be opened again. Closing twice is safe."""
        with self._mutex:  # what another thread has begun to write is written first
            for name in ("_turns", "_store", "journal", "_run_lock"):
                if hasattr(self, name):
                    getattr(self, name).close()

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _complete(self, group: Completed) -> None:
        try:
            self.journal.complete(group)
        except BaseException:
            self._broken = True
            raise

    def _recover(self) -> None:
        for location, batch in self._store.open_batches():
            if self.journal.completed(batch["group_id"][0].as_py()):
                continue
            if not self._adopted(location, batch):
                self._store.cut(location)
                break
        for part, end in self.journal.part_ends().items():
            if not self._store.holds(part, end):
                raise StreamError(
                    f"part {part} of {self.run_dir / EPISODES} lacks groups that the journal has",
                    "restore the folder from a copy; the other parts can still be read",
                )

        known = self.journal.part_counts()
        for part, count in self._store.closed_counts().items():
            if count > known.get(part, 0):
                raise StreamError(
                    f"part {part} of {self.run_dir / EPISODES} holds groups that the journal does not know:"
                    " the journal, or its -wal file, was lost or cut",
                    "restore the folder from a copy; the parts can still be read",
                )

    def _adopted(self, location: Location, batch: pa.RecordBatch) -> bool:
        seq = batch["group_seq"][0].as_py()
        if faults(batch, full=True) or seq not in (None, self.journal.next_seq):
            return False
        fate, valid = Fate(batch["fate"][0].as_py()), batch["valid_count"][0].as_py()
        names = (batch["group_id"][0].as_py(), batch["task_id"][0].as_py())
        self.journal.complete(Completed(*names, fate, _reason(batch, fate, valid), seq, valid, location))
        return True


def _batch(group: Group, decision: Decision, seq: int | None) -> pa.RecordBatch | None:
    rows = [member.rows for member in group.members]
    if not rows:
        return None
    batch = finish_group(rows, decision.advantages, decision.fate, seq, group.valid_count)
    validate(batch, full=True)
    return batch


def _completed(group: Group, decision: Decision, seq: int | None, location: Location | None) -> Completed:
    facts = (group.group_id, group.task_id, decision.fate, decision.reason, seq, group.valid_count)
    return Completed(*facts, location)


def _reason(batch: pa.RecordBatch, fate: Fate, valid_count: int) -> str:
    """What `decide` said: the rows hold all that it went by."""
    if fate is not Fate.CANCELLED:
        return "" if fate is Fate.DELIVERED else fate.value
    if json.loads(batch["extras"][0].as_py())["purpose"] == Purpose.PROBE:
        return "probe"
    return "too_few_valid" if valid_count < min(2, batch["group_size"][0].as_py()) else "cancelled"
