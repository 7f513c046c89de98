"""The keeper's attendants: forked ahead of need, handed to slots, taken back when too many idle.

Invariants: no more than `_MAX_IDLE` wait on slots that run nothing, the least recently used going first, so that
thousands of quiet slots cost no process of ours; a slot has one attendant at most; one that dies takes its slot's
processes with it. What quiet background processes print is read and dropped here, and their memory is looked at
in turn, so many slots a tick. Standard library only.
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
from workers.sandbox.attendant import IDLE, OVER, wait_and_attend
from workers.sandbox.memory import used_bytes
from workers.sandbox.messages import Attend, Operation, encode
from workers.task import Limits

FRESH = 3
_MAX_IDLE = 16
_SAMPLES_A_TICK = 16
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Place:
    """A slot to attend: its first process, and its limits."""

    pidfd: int
    pid: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class _Quiet:
    """A slot whose background processes are watched from here."""

    pidfd: int
    pid: int
    memory_bytes: int
    pipes: list[int]


@dataclass(slots=True)
class _Helper:
    control: socket.socket
    slot: int = 0
    pidfd: int = -1
    pid: int = 0
    memory_bytes: int = 0
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
        self._quiet: OrderedDict[int, _Quiet] = OrderedDict()

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

    def prepare(self, slot: int, place: Place) -> None:
        """Let an attendant join ahead of the first request. Raises Failure."""
        if slot not in self._by_slot:
            self._assign(slot, place)
            self._trim()

    def send(self, slot: int, place: Place, message: wire.Message) -> None:
        """Hand a request to the slot's attendant. Raises Failure."""
        helper = self._by_slot.get(slot) or self._assign(slot, place)
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
            said, fds = wire.receive_raw(helper.control, 64)
        except BlockingIOError:
            return
        except OSError:
            said, fds = b"", []
        if said.startswith(IDLE):
            helper.is_idle = int(said[1:]) == helper.sent
            self._trim()
        elif said.startswith(OVER):
            self._take_over(helper, fds, int(said[1:]))
        elif said:
            _kill_inside(helper.pidfd)
        else:
            _kill_inside(helper.pidfd)
            self._end(helper)

    def _take_over(self, helper: _Helper, pipes: list[int], handled: int) -> None:
        if handled != helper.sent:  # it has work again
            for pipe in pipes:
                os.close(pipe)
            return
        before = self._quiet.pop(helper.slot, None)
        pipes += before.pipes if before else []
        self._end(helper)
        self._quiet[helper.slot] = _Quiet(helper.pidfd, helper.pid, helper.memory_bytes, pipes)

    def tick(self) -> None:
        """Look after quiet slots: drop what they printed; of the next few, look at their memory."""
        for quiet in self._quiet.values():
            for pipe in [*quiet.pipes]:
                if _drop_chunk(pipe):
                    quiet.pipes.remove(pipe)
                    os.close(pipe)
        for _ in range(min(_SAMPLES_A_TICK, len(self._quiet))):
            slot, quiet = next(iter(self._quiet.items()))
            self._quiet.move_to_end(slot)
            if used_bytes(quiet.memory_bytes, f"/proc/{quiet.pid}/root/proc") > quiet.memory_bytes:
                _kill_inside(quiet.pidfd)

    def release(self, slot: int) -> None:
        """The slot needs none any more."""
        quiet = self._quiet.pop(slot, None)
        for pipe in quiet.pipes if quiet else ():
            os.close(pipe)
        helper = self._by_slot.get(slot)
        if helper is not None:
            self._end(helper)

    def _end(self, helper: _Helper) -> None:
        del self._by_slot[helper.slot]
        del self._by_fd[helper.control.fileno()]
        helper.control.close()

    def _assign(self, slot: int, place: Place) -> _Helper:
        if not self._fresh:
            self.refill()
        helper = self._fresh.popleft()
        try:
            wire.send(helper.control, encode(Operation.ATTEND, Attend(place.limits)), (), (place.pidfd,))
        except OSError as error:
            helper.control.close()
            raise Failure("supervisor_died", f"an attendant died while it waited: {error}") from error
        helper.slot, helper.pidfd, helper.pid = slot, place.pidfd, place.pid
        helper.memory_bytes = place.limits.memory_mb << 20
        self._by_slot[slot] = helper
        self._by_fd[helper.control.fileno()] = helper
        return helper

    def _trim(self) -> None:
        idle = [slot for slot, helper in self._by_slot.items() if helper.is_idle]
        for slot in idle[: max(0, len(idle) - _MAX_IDLE)]:
            self._end(self._by_slot[slot])


def _drop_chunk(pipe: int) -> bool:
    """Read and drop; whether nobody will write any more."""
    try:
        return not os.read(pipe, _CHUNK_BYTES)
    except BlockingIOError:
        return False
    except OSError:
        return True


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
