"""Reading and writing one file inside a slot, with the agent's rights. Standard library only.

Both run in a forked child that has become the agent: links resolve inside the slot, rights are the agent's,
and only a regular file is read or written.
"""

from __future__ import annotations

import errno
import os
import stat

_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20


def read(path: str, max_bytes: int) -> bytes:
    """The body of a regular file. Raises OSError; EFBIG past `max_bytes`, EINVAL where it is no regular file."""
    fd = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        _need_regular(fd, path)
        parts, room = [], max_bytes + 1
        while room > 0 and (part := os.read(fd, min(room, _CHUNK_BYTES))):
            parts.append(part)
            room -= len(part)
        if room == 0:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
        return b"".join(parts)
    finally:
        os.close(fd)


def write(path: str, data: bytes) -> None:
    """Replace the body of a file, making folders on the way. Raises OSError."""
    parent = os.path.dirname(path)
    if parent:
        os.makedirs(parent, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o644)
    try:
        _need_regular(fd, path)
        os.ftruncate(fd, 0)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


def _need_regular(fd: int, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
