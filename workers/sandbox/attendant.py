"""The process that runs a slot's commands and files: forked ahead of need, joined to one slot for life.

Invariants: one thread and one poll for all of the slot's commands, so that they run side by side; whoever closes
the reply socket of a command ends it; background processes are watched, and what they print is read and dropped,
until none is left or the keeper takes that over; it ends when the keeper closes its control socket. It holds
nothing of other slots.
Standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable

from workers.sandbox import files, syscalls, wire
from workers.sandbox.answers import Failure, send_failure, send_os_error
from workers.sandbox.inside import NotStarted, Program, become_agent, join
from workers.sandbox.memory import processes, used_bytes
from workers.sandbox.messages import Attend, Exec, Operation, Read, Write, decode
from workers.sandbox.supervisor import Caller, Running, read_chunk
from workers.task import Limits

IDLE, KILL, OVER = b"I", b"K", b"O"
HAND_OVER_FDS = 16
_TICK_MS = 50
_GUARD_MS = 200
_CLOSING_S = 5.0
_HAND_OVER_S = 2.0


class Attendant:
    """Serves one slot."""

    def __init__(self, control: socket.socket, limits: Limits, proc: int) -> None:
        self._control = control
        self._limits = limits
        self._proc = proc  # the keeper's /proc, where the pids are those that we know
        self._memory_bytes = limits.memory_mb << 20
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._running: list[Running] = []
        self._leftovers: list[int] = []
        self._is_guarding = False
        self._handled = 0
        self._last_used_s = time.monotonic()
        self._next_sample_s = 0.0
        self._closing_s = 0.0

    def serve(self) -> None:
        """Until the keeper lets go."""
        self._watch(self._control.fileno(), select.POLLIN, self._take_request)
        while not self._closing_s or (self._running and time.monotonic() < self._closing_s):
            for fd, _ in self._poll.poll(self._wait_ms()):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
            self._tick()

    def _wait_ms(self) -> int | None:
        if self._running:
            return _TICK_MS
        return _GUARD_MS if self._is_guarding or self._closing_s else None

    def _watch(self, fd: int, events: int, handler: Callable[[], None]) -> None:
        self._poll.register(fd, events)
        self._handlers[fd] = handler

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _take_request(self) -> None:
        try:
            message = wire.receive(self._control)
        except wire.Closed:
            self._unwatch(self._control.fileno())
            self._closing_s = time.monotonic() + _CLOSING_S
            return
        self._handled += 1
        self._last_used_s = time.monotonic()
        caller = Caller(socket.socket(fileno=message.fds[0]), message.fds[1])
        try:
            match Operation(str(message.head["op"])):
                case Operation.EXEC:
                    self._start(decode(Exec, message.head), message, caller)
                    return
                case Operation.READ:
                    reading = decode(Read, message.head)
                    body = files.read(reading.path, reading.max_bytes)
                    wire.send(caller.reply, {"ok": True}, (body,), spill=caller.spill)
                case Operation.WRITE:
                    files.write(decode(Write, message.head).path, message.blobs[0])
                    wire.send(caller.reply, {"ok": True})
        except OSError as error:
            send_os_error(caller.reply, error)
        except Exception as error:
            send_failure(caller.reply, Failure("keeper_fault", f"{type(error).__name__}: {error}"))
        caller.close()
        self._report_idle()

    def _start(self, request: Exec, message: wire.Message, caller: Caller) -> None:
        parts = message.blobs[0].split(b"\0")
        argv, pairs = parts[: request.argument_count], parts[request.argument_count :]
        env = {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}
        program = Program(argv, env, request.cwd, request.open_files, request.cpu_s)
        stdin = message.fds[2] if len(message.fds) > 2 else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        running = Running(request, caller, self._kill_all)
        try:
            pid = running.start(program, self._limits, stdin)
        except NotStarted as error:
            running.refuse(error.code, error.why)
            self._report_idle()
            return
        finally:
            os.close(stdin)
        self._make_first_to_die(pid)
        self._running.append(running)
        for pipe in running.pipes:
            self._watch(pipe, select.POLLIN, lambda pipe=pipe: self._collect(running, pipe))  # type: ignore[misc]
        self._watch(running.pidfd, select.POLLIN, lambda: self._finish(running))
        self._watch(running.owner, select.POLLRDHUP, lambda: self._cancel(running))

    def _make_first_to_die(self, pid: int) -> None:
        """The kernel's last resort takes the agent's processes before ours."""
        try:
            fd = os.open(f"{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._proc)
            with open(fd, "wb") as file:
                file.write(b"1000")
        except OSError:
            pass  # it has ended already

    def _collect(self, running: Running, pipe: int) -> None:
        if not running.collect(pipe):
            self._unwatch(pipe)

    def _cancel(self, running: Running) -> None:
        self._unwatch(running.owner)
        running.end("cancelled")

    def _finish(self, running: Running) -> None:
        for fd in (running.pidfd, running.owner, *running.pipes):
            self._unwatch(fd)
        self._running.remove(running)
        self._last_used_s = time.monotonic()
        running.bounds_met |= self._bounds()
        if self._is_slot_ending():
            running.abandon()
        else:
            running.finish()
        self._leftovers += running.pipes
        self._guard()

    def _is_slot_ending(self) -> bool:
        """Whether the end of a command may be the slot's own: then it says nothing of the command.

        A first process that is ending has no memory left, long before it counts as dead."""
        if syscalls.is_readable(self._control.fileno()) and not self._control.recv(1, socket.MSG_PEEK):
            return True
        try:
            with open("/proc/1/statm", "rb") as file:
                return file.read().startswith(b"0 ")
        except OSError:
            return True

    def _guard(self) -> None:
        """Go on watching while a background process is left; nothing that it prints is kept."""
        self._is_guarding = bool(processes())
        if not self._is_guarding:
            while self._leftovers and not self._running:
                os.close(self._leftovers.pop())
            self._report_idle()

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_sample_s or not (self._running or self._is_guarding):
            return
        self._next_sample_s = now_s + _TICK_MS / 1000
        for pipe in [*self._leftovers]:
            if read_chunk(pipe) == b"":
                self._leftovers.remove(pipe)
                os.close(pipe)
        bounds, is_over = self._bounds(), used_bytes(self._memory_bytes) > self._memory_bytes
        for running in self._running:
            running.bounds_met |= bounds
            running.check_time(now_s)
            if is_over:
                running.end("memory")
        if self._is_guarding and not self._running:
            if is_over:
                self._kill_all()
            self._guard()
            if self._is_guarding and now_s > self._last_used_s + _HAND_OVER_S:
                self._hand_over()

    def _hand_over(self) -> None:
        """Offer the keeper what is left to watch, so that a quiet slot costs no process of ours."""
        self._last_used_s = time.monotonic()  # the next offer, if this one crosses a request
        fds, rest = self._leftovers[:HAND_OVER_FDS], self._leftovers[HAND_OVER_FDS:]
        if rest:
            return  # a slot with so many pipes keeps its attendant
        try:
            socket.send_fds(self._control, [OVER + str(self._handled).encode()], fds)
        except OSError:
            pass

    def _bounds(self) -> set[str]:
        """The limits that the slot stands at now. The root and the workspace lie on the same storage."""
        found = set()
        storage = os.statvfs("/")
        if storage.f_bfree == 0:
            found.add("disk")
        if storage.f_ffree == 0:
            found.add("inodes")
        if len(processes()) >= self._limits.pids - 2:  # ourselves and the first process count too
            found.add("pids")
        return found

    def _kill_all(self) -> None:
        """The keeper kills everything inside but the first process: a fork of ours might find no room."""
        try:
            self._control.send(KILL)
        except OSError:
            pass  # the keeper is gone, and so is the slot in a moment

    def _report_idle(self) -> None:
        if not self._running and not self._is_guarding:
            try:
                self._control.send(IDLE + str(self._handled).encode())
            except OSError:
                pass


def wait_and_attend(control: socket.socket, filter_program: bytes) -> None:
    """A forked helper's life: wait to be told which slot, then serve it."""
    message = wire.receive(control)
    (pidfd,) = message.fds
    limits = decode(Attend, message.head).limits
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    join(pidfd)
    os.close(pidfd)
    become_agent(limits, filter_program)
    Attendant(control, limits, proc).serve()
