"""The process that holds a core's share of the sandboxes, inside namespaces of its own.

Started by an outer bubblewrap as the first process of its pid namespace, with no site-packages, no home, no
inherited descriptor but the control socket, and nothing of the host writable. Invariants: one thread, so that
forking is safe; commands and files are the attendants' business, which answer on the socket that came with the
request; when the control socket ends, the keeper exits and the kernel ends everything with it.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import socket
import sys
import time
from collections.abc import Callable

from workers.sandbox import messages, seccomp, syscalls, wire
from workers.sandbox.answers import Failure, failure, send_failure
from workers.sandbox.attendants import Attendants, Place
from workers.sandbox.fingerprint import of_folder
from workers.sandbox.frozen import Stack, send_changes, send_state
from workers.sandbox.messages import (
    Close,
    Create,
    Diff,
    Digest,
    Discard,
    Exec,
    Export,
    Freeze,
    Import,
    Operation,
    Probe,
    Read,
    Seal,
    Setup,
    Verify,
    Write,
)
from workers.sandbox.reset import DirtyReset
from workers.sandbox.slots import Slots, reap

_TICK_MS = 500


class Keeper:
    """Serves one control socket until it ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._slots: Slots | None = None
        self._attendants = Attendants(seccomp.program(), _close_all_but)

    def serve(self) -> None:
        """Until the owner is gone."""
        next_tick_s = 0.0
        while True:
            ready = self._wait()
            for fd in ready:  # before a request opens descriptors that bear the numbers of closed ones
                if fd != self._control.fileno():
                    self._attendants.advance(fd)
                    self._ready().advance(fd)
            if self._control.fileno() in ready:
                self._handle(wire.receive(self._control))
            if self._slots is not None:
                self._slots.expire()
            if time.monotonic() > next_tick_s:
                self._attendants.tick()
                next_tick_s = time.monotonic() + _TICK_MS / 1000
            reap()
            if not ready and self._slots is not None and self._attendants.wants_more:
                self._attendants.refill()

    def _wait(self) -> list[int]:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        for fd in self._slots.waits_on() if self._slots is not None else ():
            poll.register(fd, select.POLLIN)
        for fd in self._attendants.waits_on():
            poll.register(fd, select.POLLIN)
        is_needed = self._slots is not None and self._attendants.wants_more
        return [fd for fd, _ in poll.poll(0 if is_needed else _TICK_MS)]

    def _ready(self) -> Slots:
        if self._slots is None:
            raise Failure("create_failed", "the keeper was not set up")
        return self._slots

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
            for fd in message.fds[1:]:
                os.close(fd)

    def _dispatch(self, message: wire.Message, reply: socket.socket) -> None:
        operation = Operation(str(message.head["op"]))
        match operation:
            case Operation.SETUP:
                self._slots = Slots(messages.decode(Setup, message.head))
                wire.send(reply, {"ok": True})
            case Operation.IMPORT:
                self._ready().add_layer(messages.decode(Import, message.head).digest, message.blobs[0])
                wire.send(reply, {"ok": True})
            case Operation.CREATE:
                self._ready().create(messages.decode(Create, message.head), reply)
            case Operation.PROBE:
                number = messages.decode(Probe, message.head).slot
                slot = self._ready().living(number)
                wire.send(reply, {"ok": True})
                self._attendants.prepare(number, Place(slot.pidfd, slot.pid, slot.request.limits))
            case Operation.EXEC:
                self._pass_on(messages.decode(Exec, message.head).slot, message)
            case Operation.READ:
                self._pass_on(messages.decode(Read, message.head).slot, message)
            case Operation.WRITE:
                self._pass_on(messages.decode(Write, message.head).slot, message)
            case Operation.FREEZE:
                self._freeze(messages.decode(Freeze, message.head), reply)
            case Operation.DIFF:
                self._diff(messages.decode(Diff, message.head), reply)
            case Operation.SEAL:
                self._seal(messages.decode(Seal, message.head), reply)
            case Operation.EXPORT:
                self._export(messages.decode(Export, message.head), reply)
            case Operation.DIGEST:
                self._digest(messages.decode(Digest, message.head), reply)
            case Operation.VERIFY:
                self._verify(messages.decode(Verify, message.head), reply)
            case Operation.DISCARD:
                self._ready().discard(messages.decode(Discard, message.head))
                wire.send(reply, {"ok": True})
            case Operation.CLOSE:
                closed = messages.decode(Close, message.head).slot
                self._attendants.release(closed)
                self._ready().close(closed)
                wire.send(reply, {"ok": True})

    def _pass_on(self, number: int, message: wire.Message) -> None:
        slot = self._ready().living(number)
        self._attendants.send(number, Place(slot.pidfd, slot.pid, slot.request.limits), message)

    def _freeze(self, request: Freeze, reply: socket.socket) -> None:
        self._attendants.release(request.slot)
        stack = self._ready().stack_of(self._ready().freeze(request.slot))
        self._read(reply, stack, lambda: send_state(stack, request.max_bytes, reply))

    def _diff(self, request: Diff, reply: socket.socket) -> None:
        stack = self._ready().stack_of(self._ready().living(request.slot))
        self._read(reply, stack, lambda: send_changes(stack, request.max_bytes, reply))

    def _seal(self, request: Seal, reply: socket.socket) -> None:
        self._ready().living(request.slot)
        self._attendants.release(request.slot)
        self._ready().seal(request.slot, request.name)
        wire.send(reply, {"ok": True})

    def _export(self, request: Export, reply: socket.socket) -> None:
        stack = self._ready().stack(request.layers, request.above)
        self._read(reply, stack, lambda: send_state(stack, request.max_bytes, reply))

    def _digest(self, request: Digest, reply: socket.socket) -> None:
        stack = self._ready().stack((), (request.name,))
        folder = f"/proc/self/fd/{stack.uppers[0]}"
        self._read(reply, stack, lambda: wire.send(reply, {"ok": True, "digest": of_folder(folder)}))

    def _verify(self, request: Verify, reply: socket.socket) -> None:
        slot = self._ready().living(request.slot)

        def work() -> None:
            try:
                self._ready().verify(slot)
            except DirtyReset as error:
                raise Failure("dirty_reset", str(error)) from error
            wire.send(reply, {"ok": True})

        self._fork(reply, {slot.pidfd, slot.storage.handle}, work)

    def _read(self, reply: socket.socket, stack: Stack, work: Callable[[], None]) -> None:
        """Read a stack in a child; its descriptors are closed here."""
        try:
            self._fork(reply, {*stack.uppers}, work)
        finally:
            for fd in stack.uppers:
                os.close(fd)

    def _fork(self, reply: socket.socket, needed: set[int], work: Callable[[], None]) -> None:
        """Run `work` in a child, which answers. It holds nothing of other slots: it may outlive them."""
        if os.fork():
            return
        try:
            _close_all_but({reply.fileno(), *needed})
            work()
        except Failure as error:
            send_failure(reply, error)
        except OSError as error:
            send_failure(reply, failure(error))
        except BaseException as error:
            send_failure(reply, Failure("keeper_fault", f"{type(error).__name__}: {error}"))
        finally:
            os._exit(0)


def _close_all_but(kept: set[int]) -> None:
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def main() -> None:
    """The keeper's whole life. `argv[1]` is the descriptor of the control socket."""
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    control = int(sys.argv[1])
    _close_all_but({control})
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
