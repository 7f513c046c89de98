"""The line to a container's first process: what keeps the container alive, ends its processes, counts its limits.

Invariants: while this is open the container lives, and when it closes, however its owner ended, the container
ends; one question is asked at a time, and each has a deadline.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from workers.errors import SandboxError
from workers.sandbox.docker_backend.stream import Streams, receive

_ANSWER_BYTES = 4096
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What the container's cgroup has counted so far; what is left of its disk, where that was asked for."""

    memory_kills: int = 0
    refused_processes: int = 0
    free_blocks: int | None = None
    free_inodes: int | None = None


class FirstProcess:
    """Speaks with one container's first process."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._turn = asyncio.Lock()
        self._number = 0

    async def counts(self) -> Counts:
        """Raises SandboxError `sandbox_died` where there is no answer."""
        return await self._ask("count")

    async def counts_and_disk(self) -> Counts:
        """The same with what is left of the workspace's disk."""
        return await self._ask("disk")

    async def kill_all(self) -> Counts:
        """End every process but the first; returns when it is done."""
        return await self._ask("kill")

    def close(self) -> None:
        self._stream.close()

    async def _ask(self, word: str) -> Counts:
        async with self._turn:
            self._number += 1
            question = f"{word} {self._number}"
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await asyncio.get_running_loop().sock_sendall(self._stream, f"{question}\n".encode())
                    return await self._answer(question)
            except (OSError, TimeoutError) as error:
                raise SandboxError("sandbox_died", f"its first process does not answer: {error}") from error

    async def _answer(self, question: str) -> Counts:
        streams = Streams(b"\0", _ANSWER_BYTES)  # no word: what it says is kept as it is
        while True:
            chunk = await receive(self._stream)
            if not chunk:
                raise ConnectionError("it has ended")
            streams.feed(chunk)
            streams.finish()
            for line in streams.out.capture.result().decode("utf-8", "replace").splitlines():
                if line.startswith(f"{question} "):
                    kills, refused, *free = line.removeprefix(f"{question} ").split(" ")
                    blocks, inodes = (int(word) if word.isdigit() else None for word in free)
                    return Counts(int(kills), int(refused), blocks, inodes)
