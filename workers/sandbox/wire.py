"""How the owner and a keeper talk: one datagram a message on a SOCK_SEQPACKET pair.

A message is a JSON head, byte blobs and descriptors. A short one travels in the datagram; a long one in a
sealed memory file whose descriptor comes first, or in a file that the receiver gave for it. The owner trusts
nothing in a reply beyond this framing.
Standard library only: both ends use it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

INLINE_BYTES = 32 * 1024
MESSAGE_LIMIT_BYTES = 1 << 30
_INLINE, _IN_FILE, _SPILLED = b"i", b"f", b"s"
_LENGTH, _FD = struct.Struct("<I"), struct.Struct("i")
_MAX_FDS = 16
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class Message:
    """`fds` belong to the receiver, which closes them."""

    head: Mapping[str, Json]
    blobs: tuple[bytes, ...] = ()
    fds: tuple[int, ...] = ()


class Closed(Exception):
    """The other end is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(
    sock: socket.socket,
    head: Mapping[str, Json],
    blobs: Sequence[bytes] = (),
    fds: Sequence[int] = (),
    spill: int = -1,
) -> None:
    """Send one message. Raises BlockingIOError where a non-blocking socket is full.

    `spill` is a file of the receiver's for a long one: who runs under the agent's filter can make none."""
    body = _encode(head, blobs)
    if len(body) <= INLINE_BYTES:
        socket.send_fds(sock, [_INLINE + body], list(fds))
        return
    if spill >= 0:
        _write_all(spill, body)
        socket.send_fds(sock, [_SPILLED], list(fds))
        return
    fd = memory_file(body)
    try:
        socket.send_fds(sock, [_IN_FILE], [fd, *fds])
    finally:
        os.close(fd)


def receive(sock: socket.socket, spill: int = -1) -> Message:
    """Take one message. Raises Closed at the end, ValueError on anything malformed."""
    try:
        data, fds = receive_raw(sock, INLINE_BYTES + 1)
    except ConnectionError:
        raise Closed from None
    if not data:
        raise Closed
    try:
        body = memoryview(data)[1:]
        if data[:1] == _IN_FILE:
            fd = fds.pop(0)
            try:
                body = memoryview(read_all(fd))
            finally:
                os.close(fd)
        elif data[:1] == _SPILLED:
            body = memoryview(read_all(spill))
        head, blobs = _decode(body)
    except (ValueError, IndexError, struct.error, OSError) as error:
        for fd in fds:
            os.close(fd)
        raise ValueError(f"malformed message: {error}") from error
    return Message(head, blobs, tuple(fds))


def receive_raw(sock: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """One datagram and its descriptors, closed on exec: `socket.recv_fds` drops the flag that says so."""
    room = socket.CMSG_SPACE(_MAX_FDS * _FD.size)
    data, parts, _, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    fds = []
    for level, kind, body in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += [fd for (fd,) in _FD.iter_unpack(body[: len(body) - len(body) % _FD.size])]
    return data, fds


def memory_file(data: bytes) -> int:
    """A sealed memory file that holds `data`."""
    fd = os.memfd_create("rollcage", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _write_all(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_all(fd: int) -> bytes:
    """The whole of a memory file. Raises ValueError past the limit."""
    size = os.fstat(fd).st_size
    if size > MESSAGE_LIMIT_BYTES:
        raise ValueError(f"message of {size} bytes")
    parts, offset = [], 0
    while offset < size:
        part = os.pread(fd, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _encode(head: Mapping[str, Json], blobs: Sequence[bytes]) -> bytes:
    text = json.dumps({"head": head, "blobs": [len(b) for b in blobs]}).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def _decode(body: memoryview) -> tuple[Mapping[str, Json], tuple[bytes, ...]]:
    (length,) = _LENGTH.unpack_from(body)
    outer = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
    blobs, offset = [], _LENGTH.size + length
    for size in outer["blobs"]:
        blob = bytes(body[offset : offset + size])
        if len(blob) != size:
            raise ValueError("short blob")
        blobs.append(blob)
        offset += size
    return outer["head"], tuple(blobs)
