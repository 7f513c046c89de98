"""Where a process's log lines go: one file of the run folder for each long-lived process."""

from __future__ import annotations

import logging
from pathlib import Path

from workers.text import one_line


class _OneLine(logging.Formatter):
    """A message is one line without control characters: parts of it are words of agents."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))


def log_to(path: Path, level: str) -> None:
    """Send every line of at least `level` to `path`; a file that can't be made is told on stderr instead."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = logging.FileHandler(path)
    except OSError:
        handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.raiseExceptions = False  # a full disk costs log lines, never a traceback over the cause
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
