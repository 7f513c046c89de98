"""Canonical archives of file trees: how a workspace and a final state travel between processes.

Invariants: the same tree always gives the same bytes; only regular files, folders, links, and (in a diff)
whiteouts and opaque folders exist; nothing is followed; every size is capped. The bytes are a POSIX pax tar
with sorted names, owner 0:0, mtime `MTIME_S`; a whiteout is a character device 0:0 and an opaque folder
carries the pax header `ROLLCAGE.opaque=1`, neither of which an agent-made file can imitate.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

MTIME_S = 946684800
OPAQUE_HEADER = "ROLLCAGE.opaque"


class EntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    WHITEOUT = "whiteout"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree. `path` is relative, without `.` or `..`; names keep their bytes by surrogateescape."""

    path: str
    kind: EntryKind
    mode: int = 0o644
    data: bytes = b""
    target: str = ""
    is_opaque: bool = False


@dataclass(frozen=True, slots=True)
class Archive:
    """The bytes of a canonical archive and their sha256."""

    data: bytes
    digest: str

    @property
    def size_bytes(self) -> int:
        return len(self.data)


def pack(entries: Sequence[Entry]) -> Archive:
    """Make the canonical archive of `entries`; their order does not matter, a path may come once.

    Raises ValueError on an absolute path, a `..` or a path given twice.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        previous = None
        for entry in sorted(entries, key=lambda e: e.path):
            _check_path(entry.path)
            if entry.path == previous:
                raise ValueError(f"path given twice: {entry.path!r}")
            previous = entry.path
            info = tarfile.TarInfo(entry.path)
            info.mode, info.mtime = entry.mode & 0o7777, MTIME_S
            match entry.kind:
                case EntryKind.FILE:
                    info.size = len(entry.data)
                case EntryKind.FOLDER:
                    info.type = tarfile.DIRTYPE
                    if entry.is_opaque:
                        info.pax_headers = {OPAQUE_HEADER: "1"}
                case EntryKind.LINK:
                    info.type, info.linkname = tarfile.SYMTYPE, entry.target
                case EntryKind.WHITEOUT:
                    info.type = tarfile.CHRTYPE
            tar.addfile(info, io.BytesIO(entry.data) if entry.kind is EntryKind.FILE else None)
    data = buffer.getvalue()
    return Archive(data=data, digest=hashlib.sha256(data).hexdigest())


def unpack(archive: Archive | bytes) -> Iterator[Entry]:
    """Yield the entries of a canonical archive. Raises ValueError on anything that `pack` can't have made."""
    data = archive.data if isinstance(archive, Archive) else archive
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8") as tar:
            for info in tar:
                _check_path(info.name)
                if info.isreg():
                    source = tar.extractfile(info)
                    assert source is not None
                    yield Entry(info.name, EntryKind.FILE, info.mode, data=source.read())
                elif info.isdir():
                    opaque = info.pax_headers.get(OPAQUE_HEADER) == "1"
                    yield Entry(info.name, EntryKind.FOLDER, info.mode, is_opaque=opaque)
                elif info.issym():
                    yield Entry(info.name, EntryKind.LINK, info.mode, target=info.linkname)
                elif info.type == tarfile.CHRTYPE and (info.devmajor, info.devminor) == (0, 0):
                    yield Entry(info.name, EntryKind.WHITEOUT, info.mode)
                else:
                    raise ValueError(f"archive entry of a kind that is not allowed: {info.name!r}")
    except tarfile.TarError as error:
        raise ValueError(f"not an archive: {error}") from error


def _check_path(path: str) -> None:
    if not path or path.startswith("/") or "\0" in path or any(p in ("", ".", "..") for p in path.split("/")):
        raise ValueError(f"path not allowed in an archive: {path!r}")


EMPTY = pack(())
