"""An event loop in a thread of its own, for synchronous faces over asynchronous cores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")


class BackgroundLoop:
    """Runs coroutines for callers who have no loop; what is bound to a loop lives in this one's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="environment-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, Result]) -> Result:
        """Wait for a coroutine. An interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread. Safe twice."""
        if self._loop.is_closed():
            return
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
