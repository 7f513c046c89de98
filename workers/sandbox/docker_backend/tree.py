"""Workspaces as the engine's tar streams, laid down and read back.

Invariants: nothing is ever unpacked on the host and nothing is followed: a tar is read name by name into values;
depth, count and bytes are capped while it is read; only regular files, folders and links travel, without set-id
bits. What lies in a protected mount is neither laid there nor read from there.
"""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from workers.archive import MTIME_S, Entry, EntryKind
from workers.sandbox.tree import MAX_DEPTH, MAX_ENTRIES, Skipped, TooLarge, Tree
from workers.sandbox.union import parents


def laid(entries: Iterable[Entry], uid: int, gid: int) -> bytes:
    """A tar that the engine unpacks as `entries`, owned by one user. Folders on the way are named too."""
    buffer = io.BytesIO()
    named: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for entry in entries:
            for parent in parents(entry.path):
                if parent not in named:
                    named.add(parent)
                    tar.addfile(_info(Entry(parent, EntryKind.FOLDER, 0o755), uid, gid))
            named.add(entry.path)
            body = io.BytesIO(entry.data) if entry.kind is EntryKind.FILE else None
            tar.addfile(_info(entry, uid, gid), body)
    return buffer.getvalue()


def _info(entry: Entry, uid: int, gid: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry.path)
    info.uid, info.gid, info.mode, info.mtime = uid, gid, entry.mode & 0o777, MTIME_S
    match entry.kind:
        case EntryKind.FILE:
            info.size = len(entry.data)
        case EntryKind.FOLDER:
            info.type = tarfile.DIRTYPE
        case EntryKind.LINK:
            info.type, info.linkname = tarfile.SYMTYPE, entry.target
        case EntryKind.WHITEOUT:
            raise ValueError(f"a whiteout can't be laid: {entry.path!r}")
    return info


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a folder back: what of it is known already, and what may not be read at all."""

    before: dict[str, Entry]
    max_bytes: int
    hidden: Sequence[str] = ()


def read_back(chunks: Iterator[bytes], reading: Reading) -> Tree:
    """The tree that a tar of one folder holds. Bodies that `before` has count for nothing. Raises TooLarge."""
    tree = Tree()
    known: dict[str, Entry] = {}
    with tarfile.open(fileobj=Chunks(chunks), mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
        for info in tar:
            _, _, path = info.name.rstrip("/").partition("/")  # the tar's own first name is the folder itself
            if not path or is_within(path, reading.hidden):
                continue
            if len(tree.entries) + len(tree.skipped) >= MAX_ENTRIES:
                raise TooLarge(f"more than {MAX_ENTRIES} entries")
            if path.count("/") >= MAX_DEPTH:
                raise TooLarge(f"deeper than {MAX_DEPTH} folders")
            entry = _entry(tar, info, path, known, tree, reading)
            if entry is None:
                tree.skipped.append(Skipped(path, _kind_bits(info) | info.mode))
            else:
                known[path] = entry
                tree.entries.append(entry)
    tree.entries.sort(key=lambda entry: entry.path)
    return tree


def _entry(
    tar: tarfile.TarFile, info: tarfile.TarInfo, path: str, known: dict[str, Entry], tree: Tree, reading: Reading
) -> Entry | None:  # fmt: skip
    mode = info.mode & 0o1777
    if info.isdir():
        return Entry(path, EntryKind.FOLDER, mode)
    if info.issym():
        return Entry(path, EntryKind.LINK, 0o777, target=info.linkname)
    if info.islnk():
        first = known.get(info.linkname.partition("/")[2])
        if first is None:
            raise TooLarge(f"a hard link to what does not travel: {path}")
        return _counted(Entry(path, EntryKind.FILE, mode, data=first.data), tree, reading)
    if not info.isreg():
        return None
    old = reading.before.get(path)
    if info.size > reading.max_bytes and (old is None or len(old.data) != info.size):
        raise TooLarge(f"more than {reading.max_bytes} bytes")
    source = tar.extractfile(info)
    assert source is not None
    return _counted(Entry(path, EntryKind.FILE, mode, data=source.read()), tree, reading)


def _counted(entry: Entry, tree: Tree, reading: Reading) -> Entry:
    old = reading.before.get(entry.path)
    if old is not None and old.kind is EntryKind.FILE and old.data == entry.data:
        return Entry(entry.path, entry.kind, entry.mode, old.data)  # one copy in memory
    tree.size_bytes += len(entry.data)
    if tree.size_bytes > reading.max_bytes:
        raise TooLarge(f"more than {reading.max_bytes} bytes")
    return entry


def _kind_bits(info: tarfile.TarInfo) -> int:
    if info.isfifo():
        return stat.S_IFIFO
    return stat.S_IFCHR if info.ischr() else stat.S_IFBLK


def is_within(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


class Chunks(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, missing = [], size
        while missing > 0:
            if not self._rest:
                self._rest = next(self._chunks, b"")
                if not self._rest:
                    break
            part, self._rest = self._rest[:missing], self._rest[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)
