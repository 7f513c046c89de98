"""Reads files that a stranger made, without being led anywhere else.

Nothing is followed: a file must be a regular file, and a link in a tree must stay in that tree. Every size is
capped. Bytes are kept as they are (CRLF too); of a mode only "may be executed" is kept, because that is all
that git keeps, and Python's caches are passed over, which installing a wheel leaves beside each source: so the
same task has the same digest on every machine.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.archive import EMPTY, Archive, Entry, EntryKind, pack
from workers.table import Findings, is_encodable

MAX_FILE_BYTES = 64 << 20
MAX_TREE_BYTES = 256 << 20
MAX_TREE_ENTRIES = 50_000
MAX_DEPTH = 64
MAX_TEXT_BYTES = 1 << 20
CACHE_FOLDER = "__pycache__"

_SPLIT_REMEDY = "keep large data out of the task, in an image"


@dataclass(frozen=True, slots=True)
class Place:
    """A task folder, and where its faults go."""

    folder: Path
    findings: Findings

    def fault(self, name: str, problem: str, remedy: str) -> None:
        printable = name if is_encodable(name) else ascii(name)
        self.findings.add(printable, "", "", problem, remedy)

    def is_there(self, name: str) -> bool:
        return os.path.lexists(self.folder / name)

    def read_bytes(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes | None:
        """The bytes of a regular file; None, with a fault left behind, where that can't be."""
        data = self.read_start(name, max_bytes)
        if data is not None and len(data) > max_bytes:
            self.fault(name, f"larger than {max_bytes} bytes", _SPLIT_REMEDY)
            return None
        return data

    def read_start(self, name: str, max_bytes: int) -> bytes | None:
        """Like `read_bytes`, but a longer file is cut after `max_bytes` + 1 bytes instead."""
        try:
            # O_NONBLOCK: opening a FIFO must not wait for its writer.
            descriptor = os.open(
                self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError as error:
            self.fault(name, *_reason(error))
            return None
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.fault(name, "not a regular file", "put a regular file here")
                return None
            return file.read(max_bytes + 1)

    def read_text(self, name: str, max_bytes: int = MAX_TEXT_BYTES) -> str | None:
        """The text of a UTF-8 file, its line ends as they are."""
        data = self.read_bytes(name, max_bytes)
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.fault(name, f"not UTF-8 at byte {error.start}", "save it as UTF-8")
            return None

    def read_tree(self, name: str) -> Archive:
        """The archive of a folder, paths relative to it; empty where it is absent or faulty."""
        if not self.is_folder(name):
            return EMPTY
        entries = tuple(_walk(self, name))
        size_bytes = sum(len(entry.data) for entry in entries)
        if size_bytes > MAX_TREE_BYTES or len(entries) > MAX_TREE_ENTRIES:
            self.fault(name, f"more than {MAX_TREE_BYTES} bytes or {MAX_TREE_ENTRIES} entries", _SPLIT_REMEDY)
            return EMPTY
        return pack(entries)

    def is_folder(self, name: str) -> bool:
        """Whether a folder is there. Anything else under that name is a fault."""
        try:
            mode = os.lstat(self.folder / name).st_mode
        except OSError:
            return False
        if stat.S_ISDIR(mode):
            return True
        self.fault(name, "not a folder", "put a folder here, not a file or a link")
        return False

    def names_in(self, name: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(self.folder / name)))
        except OSError as error:
            self.fault(name, *_reason(error))
            return ()


def _walk(place: Place, root: str) -> Iterator[Entry]:
    """Every entry under `root`, until a cap is passed by one (the caller says so)."""
    waiting, count, size_bytes = [""], 0, 0
    while waiting:
        folder = waiting.pop()
        for name in place.names_in(f"{root}/{folder}" if folder else root):
            if name == CACHE_FOLDER:
                continue
            path = f"{folder}/{name}" if folder else name
            entry = _entry(place, root, path)
            if entry is None:
                continue
            yield entry
            if entry.kind is EntryKind.FOLDER:
                waiting.append(path)
            count, size_bytes = count + 1, size_bytes + len(entry.data)
            if count > MAX_TREE_ENTRIES or size_bytes > MAX_TREE_BYTES:
                return


def _entry(place: Place, root: str, path: str) -> Entry | None:
    full = f"{root}/{path}"
    if not is_encodable(path):
        place.fault(full, "a name that is not UTF-8", "rename it")
        return None
    if path.count("/") >= MAX_DEPTH:
        place.fault(full, f"deeper than {MAX_DEPTH} folders", "flatten the tree")
        return None
    mode = os.lstat(place.folder / full).st_mode
    if stat.S_ISDIR(mode):
        return Entry(path, EntryKind.FOLDER, 0o755)
    if stat.S_ISLNK(mode):
        target = os.readlink(place.folder / full)
        if not is_encodable(target) or _leaves(path, target):
            place.fault(full, f"a link out of {root}: {target!a}", "copy the file that it points to")
            return None
        return Entry(path, EntryKind.LINK, 0o777, target=target)
    data = place.read_bytes(full)
    return None if data is None else Entry(path, EntryKind.FILE, 0o755 if mode & 0o111 else 0o644, data)


def _leaves(path: str, target: str) -> bool:
    """Whether a link at `path` points outside its tree, judged by the text of its target alone."""
    if target.startswith("/"):
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return False


def _reason(error: OSError) -> tuple[str, str]:
    match error.errno:
        case errno.ENOENT:
            return "missing", "add the file"
        case errno.ELOOP:
            return "a link", "put a copy of the file here: links are not followed"
        case errno.EACCES | errno.EPERM:
            return "can't be read", "give read permission to the user that runs Rollcage"
        case _:
            return f"can't be read: {error.strerror}", "put a regular file here"


def pack_texts(files: Mapping[str, str]) -> Archive:
    """The archive of files given as texts. Raises ValueError on a path that is no path or is a folder too."""
    folders = {parent for path in files for parent in _parents(path)}
    clash = folders & set(files)
    if clash:
        raise ValueError(f"{sorted(clash)[0]!r} is a file and a folder")
    entries = [Entry(path, EntryKind.FOLDER, 0o755) for path in folders]
    for path, text in files.items():
        mode = 0o755 if text.startswith("#!") else 0o644
        entries.append(Entry(path, EntryKind.FILE, mode, text.encode()))
    return pack(entries)


def _parents(path: str) -> Iterator[str]:
    parent = posixpath.dirname(path)
    while parent and parent != "/":
        yield parent
        parent = posixpath.dirname(parent)
