"""The owner's end of one keeper: requests and answers on an event loop, without threads.

Invariants: each request carries a socket of its own for the answer, so that commands neither wait for each
other nor get each other's answers; every wait has a deadline; closing that socket cancels a command.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections.abc import Sequence

from workers.errors import SandboxError
from workers.sandbox import wire
from workers.sandbox.image import HostImage
from workers.sandbox.launch import KeeperProcess
from workers.sandbox.messages import Close, Import, Operation, Request, Setup, encode

logger = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 20.0
_RETRY_S = 0.005
_SETTLE_S = 0.1
_BY_ATTENDANTS = (Operation.EXEC, Operation.READ, Operation.WRITE)


class KeeperClient:
    """A keeper and the number of slots that it has been asked to hold."""

    def __init__(self, image: HostImage, uid: int) -> None:
        self._process = KeeperProcess(image, uid)
        self._process.control.setblocking(False)
        self._is_closed = False
        self.slot_count = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether its end of the control socket is still open."""
        if self._is_closed:
            return False
        poll = select.poll()
        poll.register(self._process.control, select.POLLRDHUP)
        return not poll.poll(0)

    async def call(
        self,
        operation: Operation,
        request: Request,
        timeout_s: float,
        blobs: Sequence[bytes] = (),
        stdin: bytes = b"",
    ) -> wire.Message:
        """Ask and wait for the answer. Raises SandboxError; an answer that reports an OSError raises that."""
        ours, theirs = wire.pair()
        ours.setblocking(False)
        given = [theirs.fileno()]  # closed with `theirs` once they are sent
        spill = -1
        if operation in _BY_ATTENDANTS:
            spill = os.memfd_create("answer", os.MFD_CLOEXEC)
            given += [spill, *([wire.memory_file(stdin)] if stdin else [])]
        try:
            async with asyncio.timeout(timeout_s):
                with theirs:
                    await self._send(encode(operation, request), blobs, given)
                message = await _answer(ours, spill)
        except TimeoutError as error:
            raise SandboxError("keeper_stalled", f"no answer to {operation} within {timeout_s} s") from error
        except ValueError as error:
            raise SandboxError("bad_answer", f"{operation}: {error}") from error
        except (wire.Closed, OSError) as error:
            await asyncio.sleep(_SETTLE_S)  # of a dying keeper, the attendants may go first
            cause = "supervisor_died" if self.is_alive else "keeper_died"
            raise SandboxError(cause, self._process.complaints() or f"{operation}: {error}") from error
        finally:
            ours.close()
            theirs.close()
            for fd in given[1:]:
                os.close(fd)
        return _checked(message)

    def post_close(self, slot: int) -> None:
        """Ask to close a slot without waiting: for the paths on which waiting is not allowed."""
        if not self.is_alive:
            return  # the kernel has closed it
        ours, theirs = wire.pair()
        with ours, theirs:
            try:
                wire.send(self._process.control, encode(Operation.CLOSE, Close(slot)), (), (theirs.fileno(),))
            except BlockingIOError:
                asyncio.get_running_loop().call_later(_RETRY_S, self.post_close, slot)
            except OSError as error:
                logger.warning("slot %d: close not sent: %s", slot, error)

    async def give(self, digest: str, data: bytes, timeout_s: float) -> None:
        """Hand an archive over, to be unpacked as a layer."""
        await self.call(Operation.IMPORT, Import(digest), timeout_s, (data,))

    async def set_up(self, setup: Setup, timeout_s: float) -> None:
        await self.call(Operation.SETUP, setup, timeout_s)

    async def close(self) -> None:
        """End the keeper and with it everything that it holds. Safe twice."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._process.close, _CLOSE_TIMEOUT_S)

    async def _send(self, head: dict[str, wire.Json], blobs: Sequence[bytes], fds: Sequence[int]) -> None:
        if self._is_closed:
            raise wire.Closed
        while True:
            try:
                wire.send(self._process.control, head, blobs, fds)
                return
            except BlockingIOError:
                await asyncio.sleep(_RETRY_S)


async def _answer(sock: socket.socket, spill: int) -> wire.Message:
    """Wait until there is an answer, and take it."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(sock)
    return wire.receive(sock, spill)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _checked(message: wire.Message) -> wire.Message:
    for fd in message.fds:
        os.close(fd)
    head = message.head
    if not head.get("ok"):
        raise SandboxError(str(head.get("cause", "keeper_fault")), str(head.get("detail", "")))
    if "errno" in head:
        raise OSError(int(str(head["errno"])), str(head.get("text", "")))
    return message
