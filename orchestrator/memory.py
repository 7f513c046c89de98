"""The most memory that this process and everything under it used at once."""

from __future__ import annotations

import threading
from typing import Self

import psutil

SAMPLE_S = 2.0


class PeakMemory:
    """Samples from `with` to its end. Counts shared pages once (PSS), so that the sum is what the host gave."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(timeout=5 * SAMPLE_S)

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            self.peak_mb = max(self.peak_mb, _tree_bytes() / 2**20)


def _tree_bytes() -> int:
    total = 0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total
