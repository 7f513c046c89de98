"""One command in a slot, judged from outside it.

Invariants: the judge stays outside the slot's pid namespace, so nothing inside can signal or trace it; the end
is the end of the command's own process (by pidfd), not of its pipes; a limit kills everything in the slot but
its first process; memory kept is bounded whatever is printed. Standard library only; runs in a forked child
of the keeper and ends by `os._exit`.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass, field

from workers.sandbox.inside import Entry, Program, enter
from workers.sandbox.memory import processes, used_bytes
from workers.sandbox.messages import Exec
from workers.sandbox.syscalls import kill_everyone
from workers.sandbox.wire import memory_file

_POLL_MS = 50
_CHUNK_BYTES = 1 << 16
_DRAIN_S = 0.2
_QUIET_S = 0.02  # holds a flood that nobody reads to a trickle
_GUARD_MS = 200
_CPU_SLACK_S = 0.1


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
        if len(self.tail) > 2 * half + _CHUNK_BYTES:
            del self.tail[: len(self.tail) - half]

    def result(self) -> bytes:
        half = self.limit_bytes // 2
        return bytes(self.head) + bytes(
            self.tail[len(self.tail) - half :] if len(self.tail) > half else self.tail
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended. `limit` is `timeout`, `memory`, `output`, `cpu`, `cancelled` or empty."""

    wait_status: int
    limit: str
    stdout: bytes
    stderr: bytes
    dropped_bytes: int
    duration_s: float


class Supervisor:
    """Watches one command until it ends or passes a limit."""

    def __init__(self, request: Exec, memory_bytes: int, owner: int) -> None:
        self._request = request
        self._memory_bytes = memory_bytes
        self._owner = owner
        self._limit = ""
        self._poll = select.poll()
        self._captures: dict[int, Capture] = {}

    def run(self, entry: Entry, program: Program, stdin: bytes) -> Outcome:
        """Enter the slot, run the command, wait for its end. Raises OSError where the slot can't be entered."""
        started = time.monotonic()
        pipes = [os.pipe() for _ in range(2)]
        stdin_fd = _stdin(stdin)
        child = enter(entry, (stdin_fd, pipes[0][1], pipes[1][1]), program)
        for _, write in pipes:
            os.close(write)
        for read, _ in pipes:
            os.set_blocking(read, False)
            self._captures[read] = Capture(self._request.output_limit_bytes)
            self._poll.register(read, select.POLLIN)
        self._watch(child, started)
        _, status, used = os.wait4(child, 0)
        if not self._limit and self._is_out_of_cpu(status, used.ru_utime + used.ru_stime):
            self._limit = "cpu"
        out, err = (self._captures[read] for read, _ in pipes)
        stdout, stderr = out.result(), err.result()
        dropped = out.total + err.total - len(stdout) - len(stderr)
        return Outcome(status, self._limit, stdout, stderr, dropped, time.monotonic() - started)

    def guard(self) -> None:
        """Go on reading, and watching memory, until no background process is left; nothing of it is kept."""
        poll = select.poll()
        for fd in self._captures:
            poll.register(fd, select.POLLIN)
        while processes():
            for fd, _ in poll.poll(_GUARD_MS):
                if _read(fd) == b"":
                    poll.unregister(fd)
            if used_bytes(self._memory_bytes) > self._memory_bytes:
                kill_all_inside()
            time.sleep(_QUIET_S)

    def _watch(self, child: int, started: float) -> None:
        pidfd = os.pidfd_open(child)
        self._poll.register(pidfd, select.POLLIN)
        self._poll.register(self._owner, select.POLLRDHUP)
        deadline = started + self._request.timeout_s
        next_sample = started + _POLL_MS / 1000
        while True:
            ready = {fd for fd, _ in self._poll.poll(_POLL_MS)}
            if self._owner in ready:
                self._end("cancelled")
                self._poll.unregister(self._owner)
            self._collect(ready)
            if pidfd in ready:
                break
            now = time.monotonic()
            if now > deadline:
                self._end("timeout")
            elif now > next_sample:
                next_sample = now + _POLL_MS / 1000
                if used_bytes(self._memory_bytes) > self._memory_bytes:
                    self._end("memory")
        self._poll.unregister(pidfd)
        os.close(pidfd)
        self._finish()

    def _is_out_of_cpu(self, status: int, used_s: float) -> bool:
        """Killed by the signal of that limit, with the time really used: anyone can send the signal."""
        limit_s = self._request.cpu_s
        return limit_s is not None and os.WIFSIGNALED(status) and used_s > limit_s - _CPU_SLACK_S

    def _collect(self, ready: set[int]) -> bool:
        """Take what is there; says whether there was any."""
        found = False
        for fd, capture in self._captures.items():
            if fd not in ready:
                continue
            chunk = _read(fd)
            if chunk:
                found = True
                capture.add(chunk)
            elif chunk is not None:
                self._poll.unregister(fd)
        if sum(c.total for c in self._captures.values()) > self._request.output_kill_bytes:
            self._end("output")
        return found

    def _finish(self) -> None:
        """Empty the pipes once the command is over; a background process may hold and fill them for ever."""
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline:
            ready = {fd for fd, _ in self._poll.poll(0)} & set(self._captures)
            if not ready or not self._collect(ready):
                return

    def _end(self, limit: str) -> None:
        if not self._limit:
            self._limit = limit
            kill_all_inside()


def kill_all_inside() -> None:
    """Kill everything in the joined pid namespace but its first process. Children are born inside it."""
    killer = os.fork()
    if killer == 0:
        kill_everyone(signal.SIGKILL)
        os._exit(0)
    os.waitpid(killer, 0)


def _stdin(data: bytes) -> int:
    return memory_file(data) if data else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def _read(fd: int) -> bytes | None:
    """A chunk, empty at the end, None where nothing is there yet."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
