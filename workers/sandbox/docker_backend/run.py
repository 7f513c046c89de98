"""One command in a container, judged from outside it.

Invariants: output is read as it comes and bounded; whichever limit is passed first names the outcome, and kills
everything in the container but its first process; a kill for memory is told by the container's cgroup, never by
an exit code.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import time
from dataclasses import dataclass

from workers.errors import SandboxError
from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.engine import Engine, EngineError
from workers.sandbox.docker_backend.first import Counts, FirstProcess
from workers.sandbox.docker_backend.stream import Ending, Streams, receive, send_all
from workers.sandbox.protocol import Bound, ExecResult
from workers.sandbox.results import CPU, MEMORY, OUTPUT, TIMEOUT, exec_result

_LOOK_EVERY_S = 2.0
_LOOKS, _LOOK_PAUSE_S = 250, 0.02
_KILLED = Ending(128 + signal.SIGKILL, is_signal=True)


@dataclass(frozen=True, slots=True)
class Job:
    """What to run, in the engine's terms."""

    argv: list[str]
    env: dict[str, str]
    user: str
    stdin: bytes
    timeout_s: float
    output_limit_bytes: int
    output_kill_bytes: int


class Run:
    """One command from its start to its end."""

    def __init__(self, engine: Engine, container: str, first: FirstProcess, job: Job) -> None:
        self._engine = engine
        self._container = container
        self._first = first
        self._job = job
        self._word = secrets.token_hex(16).encode()
        self._streams = Streams(self._word, job.output_limit_bytes)
        self._limit = ""
        self._deadline = 0.0

    async def result(self, before: Counts) -> tuple[ExecResult, Counts]:
        """Run it; `before` is what the container had counted. Raises SandboxError."""
        started = time.monotonic()
        self._deadline = started + self._job.timeout_s
        ending = await self._play()
        counts = await (self._first.counts_and_disk() if ending.code else self._first.counts())
        if not self._limit and ending.code and counts.memory_kills > before.memory_kills:
            self._limit = MEMORY
        if not self._limit and ending.is_signal and ending.code == 128 + signal.SIGXCPU:
            self._limit = CPU
        out, err = self._streams.out.capture, self._streams.err.capture
        stdout, stderr = out.result(), err.result()
        result = exec_result(
            128 - ending.code if ending.is_signal else ending.code,
            self._limit,
            stdout,
            stderr,
            out.total + err.total - len(stdout) - len(stderr),
            time.monotonic() - started,
            _bounds(before, counts),
        )
        return result, counts

    async def _play(self) -> Ending:
        job = self._job
        try:
            identity, stream = await self._engine.call(
                lambda client: docker.start_exec(client, self._container, job.argv, job.user, job.env),
                lambda made: made[1].close(),
            )
        except EngineError as error:
            raise SandboxError("sandbox_died", str(error)) from error
        sending = asyncio.create_task(send_all(stream, self._word + b"\n" + job.stdin))
        try:
            return await self._watch(stream, identity)
        except asyncio.CancelledError:
            await asyncio.shield(self._first.kill_all())
            raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            stream.close()

    async def _watch(self, stream: socket.socket, identity: str) -> Ending:
        """Read until the command has told its end, its streams are over, or it was ended."""
        look_at = time.monotonic() + _LOOK_EVERY_S
        receiving: asyncio.Task[bytes] | None = None
        try:
            while self._streams.ending is None:
                receiving = receiving or asyncio.create_task(receive(stream))
                now = time.monotonic()
                await asyncio.wait((receiving,), timeout=max(0.0, min(self._deadline, look_at) - now))
                if receiving.done():
                    chunk, receiving = receiving.result(), None
                    if not chunk:
                        break
                    self._streams.feed(chunk)
                now = time.monotonic()
                if now > look_at:
                    look_at = now + _LOOK_EVERY_S
                    if await self._exit_code(identity) is not None:
                        break  # killed before it could tell, and something else holds its pipes
                if await self._is_past_a_limit(now):
                    break
        finally:
            if receiving is not None:
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
        self._streams.finish()
        if self._limit:
            return _KILLED
        return self._streams.ending or await self._untold(identity)

    async def _is_past_a_limit(self, now: float) -> bool:
        if self._streams.total_bytes > self._job.output_kill_bytes:
            self._limit = OUTPUT
        elif now > self._deadline:
            self._limit = TIMEOUT
        else:
            return False
        await self._first.kill_all()
        return True

    async def _untold(self, identity: str) -> Ending:
        """The end of a command whose own report is missing: killed with all around it, or never started."""
        for _ in range(_LOOKS):
            if (code := await self._exit_code(identity)) is not None:
                return Ending(code, is_signal=code in (128 + signal.SIGKILL, 128 + signal.SIGTERM))
            await asyncio.sleep(_LOOK_PAUSE_S)
        await self._first.kill_all()
        return _KILLED

    async def _exit_code(self, identity: str) -> int | None:
        try:
            return await self._engine.call(lambda client: docker.exec_exit_code(client, identity))
        except EngineError as error:
            raise SandboxError("sandbox_died", str(error)) from error


def _bounds(before: Counts, after: Counts) -> tuple[Bound, ...]:
    """The limits that the container stands at, or stood at while the command ran."""
    met = (
        (Bound.PIDS, after.refused_processes > before.refused_processes),
        (Bound.DISK, after.free_blocks == 0),
        (Bound.INODES, after.free_inodes == 0),
    )
    return tuple(bound for bound, is_met in met if is_met)
