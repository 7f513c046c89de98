"""How far a named consumer has come: the last `group_seq` that it acknowledged.

A cursor is a small file of its own, replaced whole and waited for on disk, so that a trainer never holds a
lock of the run's journal, however it is stopped. One process at a time may be a consumer of one name.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from orchestrator.errors import StreamError
from workers.errors import ConfigError

CONSUMERS = "consumers"
NONE_YET = -1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Cursor:
    """A consumer's place. Raises ConfigError for a name that can't be a file's or that is in use."""

    def __init__(self, run_dir: Path, consumer: str) -> None:
        if not _NAME.fullmatch(consumer) or consumer.endswith((".lock", ".tmp")):
            raise ConfigError(f"consumer {consumer!r} is no name", "use letters, digits, '.', '_' and '-'")
        folder = run_dir / CONSUMERS
        folder.mkdir(exist_ok=True)
        self._path = folder / consumer
        self._lock = _locked(folder / f"{consumer}.lock", consumer)
        try:
            self.acknowledged = _read(self._path)
        except BaseException:
            self.close()
            raise

    def acknowledge(self, group_seq: int) -> None:
        """Move on to a later group, for good; an earlier one changes nothing."""
        if self._lock is None:
            raise StreamError("this stream is closed", "open it again under the same consumer's name")
        if group_seq <= self.acknowledged:
            return
        scratch = self._path.with_name(f"{self._path.name}.tmp")
        with scratch.open("w") as sink:
            sink.write(f"{group_seq}\n")
            sink.flush()
            os.fsync(sink.fileno())
        scratch.replace(self._path)
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.acknowledged = group_seq

    def close(self) -> None:
        """Let the name go. Closing twice is safe."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def cursors(run_dir: Path) -> dict[str, int]:
    """The last acknowledged `group_seq` of every consumer there has been; `NONE_YET` before the first."""
    folder = run_dir / CONSUMERS
    names = [path.name[: -len(".lock")] for path in folder.glob("*.lock")] if folder.is_dir() else []
    return {name: _read(folder / name) for name in sorted(names)}


def _locked(path: Path, consumer: str) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"another process reads this run as consumer {consumer!r}",
            "stop it, or read under another consumer's name",
        ) from None
    return descriptor


def _read(path: Path) -> int:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return NONE_YET
    except ValueError:
        raise StreamError(
            f"{path} holds no number", "write the last acknowledged group_seq into it"
        ) from None
