"""What a slot's workspace changes, as an archive and as a list: from its upper folder and those it was forked from.

Standard library only; runs in forked children of the keeper.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, replace

from workers.archive import Entry, EntryKind, pack
from workers.sandbox import wire
from workers.sandbox.answers import Failure
from workers.sandbox.changes import LowerView, changes
from workers.sandbox.tree import TooLarge, Tree, walk

_LIVE_TRIES = 5
_LIVE_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers' folders, the first lowest, and the open folders of the changes above them, the oldest first."""

    lowers: list[str]
    uppers: list[int]


def send_state(stack: Stack, max_bytes: int, reply: socket.socket) -> None:
    """Answer with the state that a slot came to rest in, and what changed."""
    try:
        tree = combined(stack, max_bytes)
    except TooLarge as error:
        wire.send(reply, {"ok": True, "too_large": str(error), "changes": []})
        return
    archive = pack(tree.entries)
    wire.send(
        reply,
        {"ok": True, "too_large": "", "digest": archive.digest, "changes": _listed(tree, stack)},
        (archive.data,),
    )


def send_changes(stack: Stack, max_bytes: int, reply: socket.socket) -> None:
    """Answer with what changed in a slot that goes on: what vanishes under the walk is walked again."""
    for attempt in range(_LIVE_TRIES):
        try:
            tree = combined(stack, max_bytes)
            break
        except TooLarge as error:
            wire.send(reply, {"ok": True, "too_large": str(error), "changes": []})
            return
        except OSError as error:
            if attempt == _LIVE_TRIES - 1:
                raise Failure("diff_failed", f"the workspace changes too fast: {error}") from error
            time.sleep(_LIVE_PAUSE_S)
    wire.send(reply, {"ok": True, "too_large": "", "changes": _listed(tree, stack)})


def _listed(tree: Tree, stack: Stack) -> list[wire.Json]:
    return [change.to_json() for change in changes(tree, stack.lowers)]


def combined(stack: Stack, max_bytes: int) -> Tree:
    """The changes as one. Raises TooLarge."""
    trees = [walk(upper, max_bytes) for upper in stack.uppers]
    if len(trees) == 1:
        return trees[0]
    entries: dict[str, Entry] = {}
    for tree in trees:
        for entry in tree.entries:
            _lay(entries, entry)
    size_bytes = sum(len(entry.data) for entry in entries.values())
    if size_bytes > max_bytes:
        raise TooLarge(f"more than {max_bytes} bytes")
    view = LowerView(stack.lowers)
    kept = [_plain(entry, view) for entry in entries.values() if not _is_moot(entry, view)]
    return Tree(sorted(kept, key=lambda e: e.path), trees[-1].skipped, size_bytes)


def _lay(entries: dict[str, Entry], entry: Entry) -> None:
    """Put one more change over those so far."""
    old = entries.get(entry.path)
    if entry.kind is EntryKind.FOLDER and not entry.is_opaque:
        hides = old is not None and (old.kind is not EntryKind.FOLDER or old.is_opaque)
        entries[entry.path] = replace(entry, is_opaque=hides)
        return
    _clear(entries, entry.path)
    entries[entry.path] = entry


def _clear(entries: dict[str, Entry], path: str) -> None:
    old = entries.pop(path, None)
    if old is not None and old.kind is EntryKind.FOLDER:
        for below in [other for other in entries if other.startswith(f"{path}/")]:
            del entries[below]


def _is_moot(entry: Entry, view: LowerView) -> bool:
    """A whiteout of what the layers never had."""
    return entry.kind is EntryKind.WHITEOUT and view.find(entry.path) is None


def _plain(entry: Entry, view: LowerView) -> Entry:
    """Without the mark that hides nothing."""
    if entry.is_opaque:
        old = view.find(entry.path)
        return replace(entry, is_opaque=old is not None and old.is_folder)
    return entry


def open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
