"""Reads one file out of a stack of archives as an overlay would show it, following nothing."""

from __future__ import annotations

from collections.abc import Sequence

from workers.archive import Archive, Entry, EntryKind, unpack


def read_state_file(layers: Sequence[Archive], path: str) -> bytes | None:
    """The bytes of the regular file at `path`, the last layer on top; None where there is none."""
    above = [path[:at] for at, char in enumerate(path) if char == "/"]
    for layer in reversed(layers):
        entries = {entry.path: entry for entry in unpack(layer) if entry.path == path or entry.path in above}
        if path in entries:
            entry = entries[path]
            return entry.data if entry.kind is EntryKind.FILE else None
        if any(_hides_what_is_below(entries[folder]) for folder in above if folder in entries):
            return None
    return None


def _hides_what_is_below(entry: Entry) -> bool:
    return entry.kind is not EntryKind.FOLDER or entry.is_opaque
