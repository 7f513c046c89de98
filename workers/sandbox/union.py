"""Layers as one tree and back: what an overlay would show, and what its upper folder would hold.

Invariants: both follow overlay's rules (a whiteout hides what lies below, an opaque folder hides what was in it,
a name of another kind replaces); laying `difference(now, before)` over `before` gives `now`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from workers.archive import Archive, Entry, EntryKind, unpack


def merge(layers: Iterable[Archive]) -> list[Entry]:
    """The layers as one tree, the first lowest, sorted by path."""
    merged: dict[str, Entry] = {}
    folders: set[str] = set()  # those on the way to something, whether or not they have an entry of their own
    for layer in layers:
        for entry in unpack(layer):
            below = merged.get(entry.path)
            stays = entry.kind is EntryKind.FOLDER and not entry.is_opaque
            if (below or entry.path in folders) and not (
                stays and (not below or below.kind is EntryKind.FOLDER)
            ):
                for path in [p for p in merged if p == entry.path or p.startswith(f"{entry.path}/")]:
                    del merged[path]
            if entry.kind is not EntryKind.WHITEOUT:
                mode = 0o777 if entry.kind is EntryKind.LINK else entry.mode & 0o777
                merged[entry.path] = Entry(entry.path, entry.kind, mode, entry.data, entry.target)
                folders.update(parents(entry.path))
    return sorted(merged.values(), key=lambda entry: entry.path)


def parents(path: str) -> Iterator[str]:
    """Every folder on the way to `path`, the outermost first."""
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def difference(now: Sequence[Entry], before: Sequence[Entry]) -> list[Entry]:
    """What is new or different, and whiteouts for what is gone."""
    old = {entry.path: entry for entry in before}
    here = {entry.path: entry.kind for entry in now}
    gone = {path for path in old if path not in here}
    upper = [entry for entry in now if entry != old.get(entry.path)]
    upper += [
        Entry(path, EntryKind.WHITEOUT, 0)
        for path in gone
        if (parent := path.rpartition("/")[0]) not in gone
        and here.get(parent, EntryKind.FOLDER) is EntryKind.FOLDER
    ]
    return upper
