"""The keeper's attendants: forked ahead of need, handed to slots, taken back when too many idle.

Invariants: no more than `_MAX_IDLE` wait on slots that run nothing, the least recently used going first, so that
thousands of quiet slots cost no process of ours; a slot has one attendant at most; one that dies takes its slot's
processes with it. Standard library only.
"""

from __future__ import annotations

import gc
import os
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workers.sandbox import syscalls, wire
from workers.sandbox.answers import Failure
from workers.sandbox.attendant import IDLE, wait_and_attend
from workers.sandbox.messages import Attend, Operation, encode
from workers.task import Limits

FRESH = 3
_MAX_IDLE = 16


@dataclass(slots=True)
class _Helper:
    control: socket.socket
    slot: int = 0
    pidfd: int = -1
    sent: int = 0
    is_idle: bool = True


class Attendants:
    """Those of one keeper. `close_others` closes every descriptor but the given ones in a forked child."""

    def __init__(self, filter_program: bytes, close_others: Callable[[set[int]], None]) -> None:
        self._filter = filter_program
        self._close_others = close_others
        self._fresh: deque[_Helper] = deque()
        self._by_slot: OrderedDict[int, _Helper] = OrderedDict()  # the least recently used first
        self._by_fd: dict[int, _Helper] = {}

    @property
    def wants_more(self) -> bool:
        return len(self._fresh) < FRESH

    def refill(self) -> None:
        """Fork one ahead of need."""
        ours, theirs = wire.pair()
        if os.fork() == 0:
            try:
                gc.disable()
                self._close_others({theirs.fileno()})
                wait_and_attend(theirs, self._filter)
            finally:
                os._exit(0)
        theirs.close()
        ours.setblocking(False)
        self._fresh.append(_Helper(ours))

    def waits_on(self) -> Iterator[int]:
        return iter(self._by_fd)

    def send(self, slot: int, pidfd: int, limits: Limits, message: wire.Message) -> None:
        """Hand a request to the slot's attendant. Raises Failure."""
        helper = self._by_slot.get(slot) or self._assign(slot, pidfd, limits)
        self._by_slot.move_to_end(slot)
        helper.sent += 1
        helper.is_idle = False
        try:
            wire.send(helper.control, message.head, message.blobs, message.fds)
        except BlockingIOError as error:
            raise Failure("slot_busy", f"too many requests wait for slot {slot}") from error
        except OSError as error:
            raise Failure("supervisor_died", str(error)) from error

    def advance(self, fd: int) -> None:
        """An attendant has news."""
        helper = self._by_fd.get(fd)
        if helper is None:
            return
        try:
            said = helper.control.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said.startswith(IDLE):
            helper.is_idle = int(said[1:]) == helper.sent
            self._trim()
        elif said:
            _kill_inside(helper.pidfd)
        else:
            _kill_inside(helper.pidfd)
            self.release(helper.slot)

    def release(self, slot: int) -> None:
        """The slot needs none any more."""
        helper = self._by_slot.pop(slot, None)
        if helper is not None:
            del self._by_fd[helper.control.fileno()]
            helper.control.close()

    def _assign(self, slot: int, pidfd: int, limits: Limits) -> _Helper:
        if not self._fresh:
            self.refill()
        helper = self._fresh.popleft()
        try:
            wire.send(helper.control, encode(Operation.ATTEND, Attend(limits)), (), (pidfd,))
        except OSError as error:
            helper.control.close()
            raise Failure("supervisor_died", f"an attendant died while it waited: {error}") from error
        helper.slot, helper.pidfd = slot, pidfd
        self._by_slot[slot] = helper
        self._by_fd[helper.control.fileno()] = helper
        return helper

    def _trim(self) -> None:
        idle = [slot for slot, helper in self._by_slot.items() if helper.is_idle]
        for slot in idle[: max(0, len(idle) - _MAX_IDLE)]:
            self.release(slot)


def _kill_inside(pidfd: int) -> None:
    """Kill everything in a slot but its first process, from a child that joins its pid namespace."""
    if os.fork():
        return
    try:
        syscalls.join_pid_namespace(pidfd)
        if os.fork() == 0:
            syscalls.kill_everyone(9)
    finally:
        os._exit(0)
