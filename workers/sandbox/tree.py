"""Walking an overlay's upper folder: what the agent left becomes archive entries and a list of changes.

Invariants: nothing is followed (each name is opened relative to its folder's descriptor, O_NOFOLLOW); depth,
count and bytes are capped before anything is read; only regular files, folders and links travel; set-id bits
don't. A whiteout is a character device 0:0, an opaque folder an extended attribute: both only mean that in an
upper folder. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from workers.archive import Entry, EntryKind
from workers.sandbox.marks import OPAQUE_XATTR

MAX_DEPTH = 200
MAX_ENTRIES = 100_000
MAX_PATH_BYTES = 2048
_HEADER_BYTES = 1024
_LONG_NAME_BYTES = 100
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TooLarge(Exception):
    """The tree passes a cap; the message says which."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """What can't travel: a FIFO, a socket or a device."""

    path: str
    mode: int


@dataclass(slots=True)
class Tree:
    """What was found, in the order of the walk."""

    entries: list[Entry] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    size_bytes: int = 0


def walk(folder: int, max_bytes: int) -> Tree:
    """Everything below the folder behind a descriptor. Raises TooLarge."""
    tree = Tree()
    stack = [_level("", _open_folder(".", folder))]
    try:
        while stack:
            level = stack[-1]
            name = next(level.names, None)
            if name is None:
                os.close(stack.pop().fd)
                continue
            path = level.prefix + name
            child = _take(tree, level.fd, name, path, max_bytes)
            if child is not None:
                stack.append(_level(f"{path}/", child))
    finally:
        for level in stack:
            os.close(level.fd)
    return tree


@dataclass(frozen=True, slots=True)
class _Level:
    prefix: str
    fd: int
    names: Iterator[str]


def _level(prefix: str, fd: int) -> _Level:
    return _Level(prefix, fd, iter(sorted(os.listdir(fd))))


def _take(tree: Tree, folder: int, name: str, path: str, max_bytes: int) -> int | None:
    """Note one name; the descriptor of a folder that is still to be walked."""
    if len(tree.entries) >= MAX_ENTRIES:
        raise TooLarge(f"more than {MAX_ENTRIES} entries")
    if path.count("/") >= MAX_DEPTH:
        raise TooLarge(f"deeper than {MAX_DEPTH} folders")
    path_bytes = len(os.fsencode(path))
    if path_bytes > MAX_PATH_BYTES:
        raise TooLarge(f"a path of more than {MAX_PATH_BYTES} bytes")
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    _count(tree, path_bytes, info.st_size if stat.S_ISREG(info.st_mode) else 0, max_bytes)
    mode = stat.S_IMODE(info.st_mode) & 0o1777
    if stat.S_ISDIR(info.st_mode):
        fd = _open_folder(name, folder)
        tree.entries.append(Entry(path, EntryKind.FOLDER, mode, is_opaque=is_opaque(fd)))
        return fd
    if stat.S_ISLNK(info.st_mode):
        tree.entries.append(Entry(path, EntryKind.LINK, 0o777, target=os.readlink(name, dir_fd=folder)))
    elif stat.S_ISREG(info.st_mode):
        tree.entries.append(Entry(path, EntryKind.FILE, mode, data=read_regular(name, folder, info.st_size)))
    elif is_whiteout(info):
        tree.entries.append(Entry(path, EntryKind.WHITEOUT, 0))
    else:
        # It is not there for whoever reads the state, and neither is what a lower layer has at its place.
        tree.entries.append(Entry(path, EntryKind.WHITEOUT, 0))
        tree.skipped.append(Skipped(path, info.st_mode))
    return None


def _count(tree: Tree, path_bytes: int, size_bytes: int, max_bytes: int) -> None:
    """Add what an entry takes in the archive: header, long name, content. Raises TooLarge."""
    name_bytes = _HEADER_BYTES + 2 * path_bytes if path_bytes > _LONG_NAME_BYTES else 0
    tree.size_bytes += _HEADER_BYTES + name_bytes + size_bytes
    if tree.size_bytes > max_bytes:
        raise TooLarge(f"more than {max_bytes} bytes")


def is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, OPAQUE_XATTR) == b"y"
    except OSError:
        return False


def read_regular(name: str, folder: int, size: int) -> bytes:
    """At most `size` bytes of a regular file that is not a link."""
    fd = os.open(name, _FILE_FLAGS, dir_fd=folder)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise TooLarge(f"{name} changed while it was read")
        return file.read(size)


def _open_folder(name: str, parent: int) -> int:
    return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
