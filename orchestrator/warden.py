"""Outlives a driver that was killed, and clears away what it left: Ray's processes and their folder.

Run as a program of its own (standard library only): `warden.py FOLDER`, with a pipe as standard input whose
other end the driver holds. When the pipe closes, for whatever reason, every Ray process that has a file of the
folder open is killed and the folder removed. Ray's own agents would otherwise stay for more than a minute after
their raylet. (They overwrite their environment with their title, so a mark in it would not be found.)
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

GIVE_UP_S = 30.0
PAUSE_S = 0.1


def main(folder: str) -> None:
    driver = os.getppid()
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + GIVE_UP_S
    while (left := _using(folder) - {driver}) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)


def _using(folder: str) -> set[int]:
    """Live Ray processes that have a file under the folder open."""
    return {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_rays(entry) and _holds(entry, folder)
    }


def _is_rays(process: Path) -> bool:
    try:
        command = (process / "cmdline").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::") or b"/ray/" in command


def _holds(process: Path, folder: str) -> bool:
    try:
        return any(os.readlink(link).startswith(folder + "/") for link in (process / "fd").iterdir())
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1])
