"""Immutable folders unpacked from archives, one a digest, kept in the keeper's memory.

Invariants: a folder that bears a digest holds exactly the archive with that sha256, was complete before it
got its name, and never changes; one that a living slot uses is never dropped; together they stay under a
limit, the least recently used going first. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import Iterable

from workers.archive import MTIME_S, Entry, EntryKind, unpack
from workers.sandbox.fingerprint import of_folder
from workers.sandbox.marks import OPAQUE_XATTR

_ENTRY_COST_BYTES = 4096


class Layers:
    """The layers that this keeper holds in `folder`."""

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._users: Counter[str] = Counter()
        self._fingerprints: dict[str, str] = {}

    def path(self, digest: str) -> str:
        return f"{self.folder}/{digest}"

    def missing(self, digests: Iterable[str]) -> list[str]:
        return [digest for digest in dict.fromkeys(digests) if digest not in self._sizes]

    def add(self, digest: str, data: bytes) -> None:
        """Unpack an archive. Raises ValueError where it isn't what `digest` says, OSError ENOSPC when full."""
        if digest in self._sizes:
            return
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError("archive does not match its digest")
        self._make_room(len(data))
        partial = f"{self.folder}/partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            count = unpack_into(partial, unpack(data))
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        os.rename(partial, self.path(digest))
        self._sizes[digest] = len(data) + count * _ENTRY_COST_BYTES
        self._fingerprints[digest] = of_folder(self.path(digest))

    def fingerprint(self, digest: str) -> str:
        """The content that the folder had when it got its name."""
        return self._fingerprints[digest]

    def hold(self, digests: Iterable[str]) -> None:
        """A slot uses these from now on."""
        for digest in digests:
            self._users[digest] += 1
            self._sizes.move_to_end(digest)

    def release(self, digests: Iterable[str]) -> None:
        """A slot that used these is gone."""
        for digest in digests:
            self._users[digest] -= 1

    def _make_room(self, size_bytes: int) -> None:
        used = sum(self._sizes.values()) + size_bytes
        for digest in list(self._sizes):
            if used <= self._limit_bytes:
                return
            if self._users[digest] <= 0:
                used -= self._sizes.pop(digest)
                del self._users[digest]
                del self._fingerprints[digest]
                shutil.rmtree(self.path(digest), ignore_errors=True)


def unpack_into(root: str, entries: Iterable[Entry]) -> int:
    """Lay `entries` in a new folder `root`, following nothing; returns their count."""
    os.mkdir(root, 0o755)
    folders = {"": 0o755}
    count = 0
    for entry in entries:
        count += 1
        _make_parents(root, entry.path, folders)
        _lay(root, entry, folders)
    for path, mode in sorted(folders.items(), reverse=True):
        target = f"{root}/{path}"
        os.chmod(target, mode)
        os.utime(target, (MTIME_S, MTIME_S))
    return count


def _make_parents(root: str, path: str, folders: dict[str, int]) -> None:
    folder = path.rpartition("/")[0]
    if not folder or folder in folders:
        return  # those above it are there as well
    parts = folder.split("/")
    for depth in range(1, len(parts) + 1):
        parent = "/".join(parts[:depth])
        if parent not in folders:
            os.mkdir(f"{root}/{parent}", 0o755)  # refuses where a link or a file has the name
            folders[parent] = 0o755


def _lay(root: str, entry: Entry, folders: dict[str, int]) -> None:
    target = f"{root}/{entry.path}"
    mode = entry.mode & 0o777
    match entry.kind:
        case EntryKind.FOLDER:
            if entry.path not in folders:
                os.mkdir(target, 0o755)
            folders[entry.path] = mode
            if entry.is_opaque:
                os.setxattr(target, OPAQUE_XATTR, b"y")
            return
        case EntryKind.FILE:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(entry.data)
                os.fchmod(fd, mode)
        case EntryKind.LINK:
            os.symlink(entry.target, target)
        case EntryKind.WHITEOUT:
            os.mknod(target, 0o000 | 0o020000, os.makedev(0, 0))
    os.utime(target, (MTIME_S, MTIME_S), follow_symlinks=False)
