"""Snapshots that this keeper holds: storages of slots that came to rest, kept as they are.

Invariants: a sealed workspace is never written again; it stays while a snapshot or a slot stands on it; it is
attached in the keeper's own mounts only while a slot that stands on it is born, since each birth copies them all.
Standard library only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from workers.sandbox.slot import UPPER
from workers.sandbox.syscalls import attach_mount, clone_handle, unmount


class Sealed:
    """Sealed storages by name, attached in `folder` on demand."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._handles: dict[str, int] = {}
        self._users: Counter[str] = Counter()
        self._attached: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def add(self, name: str, handle: int) -> None:
        """Keep a storage by its mount's handle, which is ours from now on."""
        self._handles[name] = handle

    def path(self, name: str) -> str:
        """Where the workspace's upper folder lies while it is attached."""
        return f"{self._folder}/{name}/{UPPER}"

    def open(self, name: str) -> int:
        """A descriptor of the workspace's upper folder."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(UPPER, flags, dir_fd=self._handles[name])

    def hold(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._handles:
                self._users[name] += 1

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._handles:
                self._users[name] -= 1
                if self._users[name] <= 0:
                    os.close(self._handles.pop(name))
                    del self._users[name]

    def attach(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._handles:
                if self._attached[name] == 0:
                    os.mkdir(f"{self._folder}/{name}", 0o755)
                    copy = clone_handle(self._handles[name])
                    try:
                        attach_mount(copy, f"{self._folder}/{name}")
                    finally:
                        os.close(copy)
                self._attached[name] += 1

    def detach(self, names: Iterable[str]) -> None:
        for name in names:
            if self._attached[name] > 0:
                self._attached[name] -= 1
                if self._attached[name] == 0:
                    unmount(f"{self._folder}/{name}")
                    os.rmdir(f"{self._folder}/{name}")
