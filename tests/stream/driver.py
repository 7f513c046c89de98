"""A run that records groups until it is done or is killed at a step: `driver.py DIR STEP NTH`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from orchestrator.record import RunRecord
from orchestrator.store import StoreOptions
from tests.stream.making import group

GROUPS = 24
# About three groups a part, so that parts are closed often.
OPTIONS = StoreOptions(part_bytes=60_000)


def rewards_of(index: int) -> tuple[float | None, ...]:
    """Every fourth group has no variance, every fifth a failed member."""
    if index % 4 == 3:
        return (1.0, 1.0, 1.0)
    return (1.0, None, 0.0) if index % 5 == 4 else (1.0, 0.0, 0.5)


class Killer:
    """Kills this process, as `kill -9` does, when a step is reached for the nth time."""

    def __init__(self, step: str, nth: int) -> None:
        self._step = step
        self._left = nth

    def __call__(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def drive(run_dir: Path, step: str, nth: int) -> None:
    with RunRecord.open(run_dir, "run", OPTIONS, Killer(step, nth)) as record:
        for index in range(GROUPS):
            name = f"g{index:03d}"
            if record.journal.completed(name):
                continue
            made, decision = group(name, rewards_of(index))
            record.journal.lease([member.lease for member in made.members])
            for member in made.members:
                record.journal.outcome(member)
                record.add_turns(member)
            record.finish_group(made, decision)
        record.finish("done")


if __name__ == "__main__":
    drive(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
