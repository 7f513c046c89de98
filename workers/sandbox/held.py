"""Snapshots as their owner knows them: which keeper has one, and what it is made of."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from workers.archive import EMPTY, Archive
from workers.errors import SandboxError
from workers.sandbox.client import KeeperClient
from workers.sandbox.messages import SEALED, Digest, Discard, Operation
from workers.sandbox.protocol import SandboxSpec, Snapshot

MAX_CHAIN = 80
"""So many sealed workspaces can lie over each other: their names must fit in one page of mount options."""
_MAX_HELD = 1024
_DIGEST_TIMEOUT_S = 120.0
_DISCARD_TIMEOUT_S = 15.0


@dataclass(eq=False, slots=True)
class Held:
    """A snapshot. `above` lies over its spec's layers, the first lowest: an archive, then sealed workspaces.

    `keeper` is the one that has the sealed ones, None where there is none of those."""

    snapshot: Snapshot
    keeper: KeeperClient | None
    above: tuple[str, ...]
    archive: Archive
    contents: list[str] = field(default_factory=list)

    async def fold(self, reset_digest: str) -> str:
        """The reset digest of what starts from here: the spec's, and the content of all that lies above."""
        if not self.contents:
            contents = [await self._content(name) for name in self.above]
            self.contents = contents or ["nothing"]
        return hashlib.sha256("\n".join([reset_digest, *self.contents]).encode()).hexdigest()

    async def _content(self, name: str) -> str:
        if not name.startswith(SEALED):
            return name
        assert self.keeper is not None
        answer = await self.keeper.call(Operation.DIGEST, Digest(name), _DIGEST_TIMEOUT_S)
        return str(answer.head["digest"])


class Shelf:
    """Every snapshot of one backend."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._numbers = itertools.count(1)

    def new_name(self) -> str:
        return f"{SEALED}{next(self._numbers)}"

    def check_room(self, chain: int) -> None:
        """Raise SandboxError where no more can be kept."""
        if len(self._held) >= _MAX_HELD:
            raise SandboxError("snapshots_full", f"{_MAX_HELD} snapshots are kept; discard some")
        if chain > MAX_CHAIN:
            raise SandboxError(
                "snapshots_full", f"{MAX_CHAIN} snapshots lie over each other; export and import the last"
            )

    def add(self, name: str, spec: SandboxSpec, keeper: KeeperClient | None, above: tuple[str, ...],
            archive: Archive) -> Held:  # fmt: skip
        held = Held(Snapshot(f"{id(self):x}-{name}", spec), keeper, above, archive)
        self._held[held.snapshot.name] = held
        return held

    def add_archive(self, archive: Archive, spec: SandboxSpec) -> Held:
        self.check_room(1)
        above = () if archive == EMPTY else (archive.digest,)
        return self.add(f"archive-{next(self._numbers)}", spec, None, above, archive)

    def find(self, snapshot: Snapshot) -> Held:
        """Raises SandboxError `bad_snapshot`."""
        held = self._held.get(snapshot.name)
        if held is None:
            raise SandboxError("bad_snapshot", f"{snapshot.name} is not kept here")
        if held.keeper is not None and not held.keeper.is_alive:
            raise SandboxError("bad_snapshot", f"the keeper of {snapshot.name} died")
        return held

    async def discard(self, snapshot: Snapshot) -> None:
        """Safe twice."""
        held = self._held.pop(snapshot.name, None)
        if held is not None and held.keeper is not None and held.keeper.is_alive:
            request = Discard(topmost(layer.digest for layer in snapshot.spec.layers), held.above)
            await held.keeper.call(Operation.DISCARD, request, _DISCARD_TIMEOUT_S)

    def clear(self) -> None:
        self._held.clear()


def topmost(digests: Iterable[str]) -> tuple[str, ...]:
    """Each layer once, where it lies highest: an overlay refuses a second, and below the first it shows nothing."""
    return tuple(dict.fromkeys(reversed(list(digests))))[::-1]
