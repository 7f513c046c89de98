"""One command in a slot, judged from outside it.

Invariants: the judge stays outside the slot's pid namespace, so nothing inside can signal or trace it; the end
is the end of the command's own process (by pidfd), not of its pipes; a limit ends everything in the slot but
its first process; memory kept is bounded whatever is printed. Standard library only.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.sandbox import syscalls, wire
from workers.sandbox.inside import Program, spawn
from workers.sandbox.messages import Exec
from workers.task import Limits

CHUNK_BYTES = 1 << 16
_DRAIN_S = 0.2
_CPU_SHARE = 0.5  # the limit counts ticks, the record counts time run: on a busy virtual machine they differ
_KILL_AGAIN_S = 1.0


@dataclass(slots=True)
class Capture:
    """The first half and the last half of a stream."""

    limit_bytes: int
    total: int = 0
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = (self.limit_bytes + 1) // 2 - len(self.head)
        if room > 0:
            self.head += chunk[:room]
            chunk = chunk[room:]
        self.tail += chunk
        half = self.limit_bytes // 2
        if len(self.tail) > 2 * half + CHUNK_BYTES:
            del self.tail[: len(self.tail) - half]

    def result(self) -> bytes:
        half = self.limit_bytes // 2
        return bytes(self.head) + bytes(
            self.tail[len(self.tail) - half :] if len(self.tail) > half else self.tail
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """Who waits for a command: the socket to answer on, and a file of theirs for what is too long for it."""

    reply: socket.socket
    spill: int

    def close(self) -> None:
        self.reply.close()
        os.close(self.spill)


class Running:
    """A command from its start to its answer. `kill_all` ends everything in the slot, some time soon."""

    def __init__(self, request: Exec, caller: Caller, kill_all: Callable[[], None]) -> None:
        self._request = request
        self._caller = caller
        self._kill_all = kill_all
        self._limit = ""
        self._killed_at_s = 0.0
        self._started_s = time.monotonic()
        self._pid = 0
        self._pidfd = -1
        self._captures: dict[int, Capture] = {}
        self.bounds_met: set[str] = set()

    def start(self, program: Program, limits: Limits, stdin: int) -> int:
        """Start it; returns its pid. Raises NotStarted."""
        pipes = [os.pipe() for _ in range(2)]
        try:
            self._pid = spawn(program, limits, (stdin, pipes[0][1], pipes[1][1]))
            self._pidfd = os.pidfd_open(self._pid)
        except BaseException:
            for read, _ in pipes:
                os.close(read)
            raise
        finally:
            for _, write in pipes:
                os.close(write)
        for read, _ in pipes:
            os.set_blocking(read, False)
            self._captures[read] = Capture(self._request.output_limit_bytes)
        return self._pid

    def refuse(self, code: int, why: str) -> None:
        """Answer for what could not be started."""
        self._answer(code, 0.0, b"", f"{why}\n".encode("utf-8", "surrogateescape"))

    @property
    def pipes(self) -> tuple[int, ...]:
        return tuple(self._captures)

    @property
    def pidfd(self) -> int:
        return self._pidfd

    @property
    def owner(self) -> int:
        return self._caller.reply.fileno()

    def collect(self, pipe: int) -> bool:
        """Take what is there; says whether the pipe goes on."""
        chunk = read_chunk(pipe)
        if chunk:
            self._captures[pipe].add(chunk)
            if sum(c.total for c in self._captures.values()) > self._request.output_kill_bytes:
                self.end("output")
        return chunk != b""

    def check_time(self, now_s: float) -> None:
        if now_s > self._started_s + self._request.timeout_s:
            self.end("timeout")

    def end(self, limit: str) -> None:
        """End it for a limit; the first one counts. What outlives one killing is killed again."""
        self._limit = self._limit or limit
        now_s = time.monotonic()
        if now_s > self._killed_at_s + _KILL_AGAIN_S:
            self._killed_at_s = now_s
            self._kill_all()

    def finish(self) -> None:
        """It has ended: empty its pipes, as far as a background process lets them be emptied, and answer."""
        _, status, used = os.wait4(self._pid, 0)
        duration_s = time.monotonic() - self._started_s
        os.close(self._pidfd)
        deadline_s = time.monotonic() + _DRAIN_S
        for pipe in self._captures:
            while time.monotonic() < deadline_s and syscalls.is_readable(pipe) and self.collect(pipe):
                pass
        if not self._limit and self._is_out_of_cpu(status, used.ru_utime + used.ru_stime):
            self._limit = "cpu"
        stdout, stderr = (capture.result() for capture in self._captures.values())
        self._answer(os.waitstatus_to_exitcode(status), duration_s, stdout, stderr)

    def abandon(self) -> None:
        """It ended with its slot: the owner learns that by the silence."""
        os.wait4(self._pid, 0)
        os.close(self._pidfd)
        self._caller.close()

    def _answer(self, code: int, duration_s: float, stdout: bytes, stderr: bytes) -> None:
        total = sum(capture.total for capture in self._captures.values())
        head: dict[str, wire.Json] = {
            "ok": True,
            "code": code,
            "limit": self._limit,
            "dropped": max(0, total - len(stdout) - len(stderr)),
            "duration_s": duration_s,
            "bounds": [*sorted(self.bounds_met)],
        }
        try:
            wire.send(self._caller.reply, head, (stdout, stderr), spill=self._caller.spill)
        except OSError:
            pass  # nobody waits for it any more
        self._caller.close()

    def _is_out_of_cpu(self, status: int, used_s: float) -> bool:
        """Killed by the signal of that limit, with the time really used: anyone can send the signal."""
        limit_s = self._request.cpu_s
        by_signal = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return limit_s is not None and by_signal and used_s > limit_s * _CPU_SHARE


def read_chunk(fd: int) -> bytes | None:
    """A chunk, empty at the end, None where nothing is there yet."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
