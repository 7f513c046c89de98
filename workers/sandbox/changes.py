"""What a workspace's upper folder changes against the layers below it, with texts as unified diffs.

Invariants: layers are read without following links; each diff and all of them together are bounded in bytes,
lines and time, beyond which a change is listed without its text. Standard library only.
"""

from __future__ import annotations

import difflib
import io
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

from workers.archive import Entry, EntryKind
from workers.sandbox.marks import OPAQUE_XATTR
from workers.sandbox.tree import Tree, is_whiteout
from workers.sandbox.wire import Json

ADDED, CHANGED, DELETED, MODE = "added", "changed", "deleted", "mode"
_NOT_KEPT = "not kept: no regular file, folder or link"
_MAX_TEXT_BYTES = 64 * 1024
_MAX_LINES = 2_000
_MAX_ALL_TEXT_BYTES = 1 << 20
_MAX_DIFF_S = 2.0


@dataclass(frozen=True, slots=True)
class Difference:
    path: str
    kind: str
    size_bytes: int = 0
    mode: int = 0
    text: str = ""

    def to_json(self) -> list[Json]:
        return [self.path, self.kind, self.size_bytes, self.mode, self.text]


@dataclass(frozen=True, slots=True)
class Old:
    """What a layer has at a path."""

    full_path: str
    info: os.stat_result

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self.info.st_mode)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode)

    def body(self) -> bytes:
        """A regular file's bytes or a link's target; empty where it is too big for a diff to matter."""
        if stat.S_ISLNK(self.info.st_mode):
            return os.fsencode(os.readlink(self.full_path))
        if not stat.S_ISREG(self.info.st_mode):
            return b""
        with open(self.full_path, "rb") as file:
            return file.read()


def changes(tree: Tree, lowers: list[str]) -> Iterator[Difference]:
    """Every difference between the layers (the first lowest) and the layers with `tree` on top, by path."""
    view = LowerView(lowers)
    texts = _Texts()
    not_kept = {skipped.path: skipped for skipped in tree.skipped}
    found = [d for e in tree.entries if e.path not in not_kept for d in _differences(e, view, texts)]
    found += [
        Difference(path, CHANGED if view.find(path) else ADDED, 0, skipped.mode, _NOT_KEPT)
        for path, skipped in not_kept.items()
    ]
    yield from sorted(found, key=lambda d: d.path)


def _differences(entry: Entry, view: LowerView, texts: _Texts) -> Iterator[Difference]:
    old = view.find(entry.path)
    if entry.kind is EntryKind.WHITEOUT:
        if old is not None:
            yield Difference(entry.path, DELETED, 0, old.mode, texts.diff(entry.path, _text_body(old), b""))
        return
    body = os.fsencode(entry.target) if entry.kind is EntryKind.LINK else entry.data
    if old is None:
        yield Difference(entry.path, ADDED, len(body), entry.mode, texts.diff(entry.path, b"", body))
    elif _kind(old) is not entry.kind:
        yield Difference(
            entry.path, CHANGED, len(body), entry.mode, texts.diff(entry.path, _text_body(old), body)
        )
    elif entry.kind is not EntryKind.FOLDER and (old.info.st_size != len(body) or old.body() != body):
        yield Difference(entry.path, CHANGED, len(body), entry.mode, texts.diff(entry.path, old.body(), body))
    elif entry.kind is not EntryKind.LINK and old.mode != entry.mode:
        yield Difference(entry.path, MODE, len(body), entry.mode)
    if entry.is_opaque and old is not None and old.is_folder:
        for name in view.names(entry.path):
            yield from _gone(f"{entry.path}/{name}", view)


def _gone(path: str, view: LowerView) -> Iterator[Difference]:
    """A name that an opaque folder hides. One that came back is listed with its new entry as well."""
    old = view.find(path)
    if old is not None:
        yield Difference(path, DELETED, 0, old.mode)


def _kind(old: Old) -> EntryKind:
    if old.is_folder:
        return EntryKind.FOLDER
    return EntryKind.LINK if stat.S_ISLNK(old.info.st_mode) else EntryKind.FILE


def _text_body(old: Old) -> bytes:
    return b"" if old.is_folder else old.body()


class LowerView:
    """The layers as one tree, by overlay's rules: the topmost name wins, whiteouts and opaque folders hide."""

    def __init__(self, lowers: list[str]) -> None:
        self._from_top = lowers[::-1]

    def find(self, path: str) -> Old | None:
        parts = path.split("/")
        for layer in self._from_top:
            full, hides = layer, False
            for depth, part in enumerate(parts):
                full = f"{full}/{part}"
                try:
                    info = os.lstat(full)
                except FileNotFoundError:
                    break
                if is_whiteout(info):
                    return None
                if depth == len(parts) - 1:
                    return Old(full, info)
                if not stat.S_ISDIR(info.st_mode):
                    return None
                hides = hides or _is_opaque(full)
            if hides:
                return None
        return None

    def names(self, path: str) -> list[str]:
        """The names that a folder shows, in order."""
        names: dict[str, None] = {}
        for layer in self._from_top:
            try:
                names.update(dict.fromkeys(os.listdir(f"{layer}/{path}")))
            except (FileNotFoundError, NotADirectoryError):
                continue
        return [name for name in sorted(names) if self.find(f"{path}/{name}") is not None]


def _is_opaque(folder: str) -> bool:
    try:
        return os.getxattr(folder, OPAQUE_XATTR, follow_symlinks=False) == b"y"
    except OSError:
        return False


class _Texts:
    """Makes diffs until the allowance is used up."""

    def __init__(self) -> None:
        self._left_bytes = _MAX_ALL_TEXT_BYTES
        self._deadline = time.monotonic() + _MAX_DIFF_S

    def diff(self, path: str, old: bytes, new: bytes) -> str:
        """A unified diff, or nothing where either side is no text, is too big, or the allowance is used up."""
        if max(len(old), len(new)) > _MAX_TEXT_BYTES or time.monotonic() > self._deadline:
            return ""
        before, after = _lines(old), _lines(new)
        if before is None or after is None or max(len(before), len(after)) > _MAX_LINES:
            return ""
        text = "".join(_closed(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")))
        if len(text) > self._left_bytes:
            return ""
        self._left_bytes -= len(text)
        return text


def _lines(body: bytes) -> list[str] | None:
    if b"\0" in body:
        return None
    try:
        return list(io.StringIO(body.decode(), newline="\n"))
    except UnicodeDecodeError:
        return None


def _closed(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
