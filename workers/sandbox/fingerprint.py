"""The digest of a tree's content: paths, types, modes, owners, link targets, bytes and attributes.

Invariants: the same for a folder and for the layers that an overlay shows as that folder; times, inode numbers
and overlay's own marks are no content; nothing is followed; files are read in pieces. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator

from workers.sandbox.changes import LowerView

_CHUNK_BYTES = 1 << 20
_OVERLAY_MARKS = ("user.overlay.", "trusted.overlay.")


def of_folder(folder: str, hidden: frozenset[str] = frozenset()) -> str:
    """The digest of what lies below `folder`, without the relative paths in `hidden` and below them."""

    def find(path: str) -> str | None:
        return f"{folder}/{path}"

    return _digest(find, lambda path: sorted(os.listdir(f"{folder}/{path}" if path else folder)), hidden)


def of_layers(lowers: list[str], hidden: frozenset[str] = frozenset()) -> str:
    """The digest of what an overlay of `lowers`, the first lowest, shows."""
    view = LowerView(lowers)

    def find(path: str) -> str | None:
        old = view.find(path)
        return old.full_path if old else None

    return _digest(find, view.names, hidden)


def _digest(
    find: Callable[[str], str | None], names: Callable[[str], list[str]], hidden: frozenset[str]
) -> str:
    total = hashlib.sha256()
    stack = [iter(sorted(names("")))]
    prefixes = [""]
    while stack:
        name = next(stack[-1], None)
        if name is None:
            stack.pop()
            prefixes.pop()
            continue
        path = prefixes[-1] + name
        real = find(path)
        if real is None or path in hidden:
            continue
        info = os.lstat(real)
        total.update(_line(path, real, info))
        if stat.S_ISDIR(info.st_mode):
            stack.append(iter(sorted(names(path))))
            prefixes.append(f"{path}/")
    return total.hexdigest()


def _line(path: str, real: str, info: os.stat_result) -> bytes:
    content = ""
    if stat.S_ISLNK(info.st_mode):
        content = os.readlink(real)
    elif stat.S_ISREG(info.st_mode):
        content = _file(real)
    elif not stat.S_ISDIR(info.st_mode):
        content = str(info.st_rdev)
    marks = "".join(f"{name}={value!r} " for name, value in _attributes(real))
    line = f"{path}\0{info.st_mode:o} {info.st_uid} {info.st_gid}\0{content}\0{marks}\n"
    return line.encode("utf-8", "surrogateescape")


def _file(path: str) -> str:
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _attributes(path: str) -> Iterator[tuple[str, bytes]]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return
    for name in sorted(names):
        if not name.startswith(_OVERLAY_MARKS):
            yield name, os.getxattr(path, name, follow_symlinks=False)
