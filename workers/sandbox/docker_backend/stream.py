"""One command's streams: its input goes in, its two outputs come back in the engine's frames.

Invariants: memory kept is bounded whatever is printed; the end is the end of the command's own process, which
the script around it tells on both streams behind a secret word, not the end of its pipes, which a background
process may hold for ever.
"""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass

from workers.sandbox.supervisor import Capture

_CHUNK_BYTES = 1 << 18
_HEADER_BYTES = 8
_REPORT = re.compile(rb" (\d{1,3}) ([01]) ")
STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class Ending:
    """How the command ended, by the script around it."""

    code: int
    is_signal: bool


class MarkedStream:
    """Keeps what comes before the word, and reads the report behind it."""

    def __init__(self, word: bytes, limit_bytes: int) -> None:
        self.capture = Capture(limit_bytes)
        self.ending: Ending | None = None
        self._word = word
        self._held = b""

    def add(self, chunk: bytes) -> None:
        """Take what came; after the report nothing more is kept."""
        if self.ending is not None:
            return
        held = self._held + chunk
        place = held.find(self._word)
        if place < 0:
            keep = max(0, len(held) - len(self._word) + 1)
            self.capture.add(held[:keep])
            self._held = held[keep:]
            return
        self.capture.add(held[:place])
        self._held = held[place:]
        report = _REPORT.match(self._held, len(self._word))
        if report is not None:
            self.ending = Ending(int(report[1]), report[2] == b"1")

    def finish(self) -> None:
        """The stream is over: what was held back was no report."""
        if self.ending is None and not self._held.startswith(self._word):
            self.capture.add(self._held)
        self._held = b""


class Streams:
    """Both outputs of one command."""

    def __init__(self, word: bytes, limit_bytes: int) -> None:
        self.out, self.err = MarkedStream(word, limit_bytes), MarkedStream(word, limit_bytes)
        self._pending = bytearray()

    @property
    def total_bytes(self) -> int:
        return self.out.capture.total + self.err.capture.total

    @property
    def ending(self) -> Ending | None:
        """Known once both streams have told it."""
        return self.err.ending if self.out.ending is not None else None

    def feed(self, chunk: bytes) -> None:
        """Take the engine's frames: a kind, three zeros, a big-endian size, a body."""
        self._pending += chunk
        start = 0
        while len(self._pending) - start >= _HEADER_BYTES:
            size = int.from_bytes(self._pending[start + 4 : start + _HEADER_BYTES], "big")
            if len(self._pending) - start - _HEADER_BYTES < size:
                break
            body = bytes(self._pending[start + _HEADER_BYTES : start + _HEADER_BYTES + size])
            (self.err if self._pending[start] == STDERR else self.out).add(body)
            start += _HEADER_BYTES + size
        del self._pending[:start]

    def finish(self) -> None:
        self.out.finish()
        self.err.finish()


async def send_all(stream: socket.socket, data: bytes) -> None:
    """Write everything, then end the input. A command that reads none of it is not waited for by anybody."""
    try:
        await asyncio.get_running_loop().sock_sendall(stream, data)
        stream.shutdown(socket.SHUT_WR)
    except OSError:
        return  # it ended without reading


async def receive(stream: socket.socket) -> bytes:
    """A chunk, empty at the end."""
    try:
        return await asyncio.get_running_loop().sock_recv(stream, _CHUNK_BYTES)
    except ConnectionError:
        return b""
