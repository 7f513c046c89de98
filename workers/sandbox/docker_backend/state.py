"""What a container's workspace has become against what it began as."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence

from workers.archive import Entry, EntryKind, pack
from workers.errors import SandboxError
from workers.sandbox.changes import changes
from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.engine import Engine, EngineError
from workers.sandbox.docker_backend.tree import Reading, is_within, read_back
from workers.sandbox.layers import unpack_into
from workers.sandbox.protocol import FinalState, SandboxSpec
from workers.sandbox.results import change_of
from workers.sandbox.tree import TooLarge, Tree
from workers.sandbox.union import difference, parents


def mounted_within(spec: SandboxSpec) -> tuple[str, ...]:
    """The protected mounts that lie in the workspace, relative to it."""
    prefix = f"{spec.workspace_path}/"
    return tuple(item.path.removeprefix(prefix) for item in spec.read_only if item.path.startswith(prefix))


def visible(entries: Sequence[Entry], spec: SandboxSpec) -> tuple[Entry, ...]:
    """What of a workspace is not hidden by a protected mount, with the folders that lead to one."""
    hidden = mounted_within(spec)
    kept = {entry.path: entry for entry in entries if not is_within(entry.path, hidden)}
    for path in hidden:
        for parent in parents(path):
            if (old := kept.get(parent)) is None or old.kind is not EntryKind.FOLDER:
                kept[parent] = Entry(parent, EntryKind.FOLDER, 0o755)
    return tuple(kept[path] for path in sorted(kept))


async def final_state(
    engine: Engine, container: str, spec: SandboxSpec, before: tuple[Entry, ...], max_bytes: int
) -> FinalState:
    """The difference between a workspace now and `before`. Raises SandboxError where it can't be read."""
    reading = Reading({entry.path: entry for entry in before}, max_bytes, mounted_within(spec))

    def take(chunks: Iterator[bytes]) -> Tree:
        return read_back(chunks, reading)

    try:
        now = await engine.call(
            lambda client: docker.read_archive(client, container, spec.workspace_path, take)
        )
        return await engine.work(lambda: _compare(now, before))
    except TooLarge as error:
        return FinalState(None, str(error), ())
    except EngineError as error:
        raise SandboxError("sandbox_died", str(error)) from error


def _compare(now: Tree, before: tuple[Entry, ...]) -> FinalState:
    tree = Tree(difference(now.entries, before), now.skipped, now.size_bytes)
    with tempfile.TemporaryDirectory(prefix=f"rollcage-{os.getuid()}-state-") as folder:
        unpack_into(f"{folder}/before", _only(tree, before))
        listed = tuple(change_of(change.to_json()) for change in changes(tree, [f"{folder}/before"]))
    return FinalState(pack(tree.entries), "", listed)


def _only(tree: Tree, before: tuple[Entry, ...]) -> list[Entry]:
    """What of `before` the changes are compared with."""
    named = {entry.path for entry in tree.entries} | {skipped.path for skipped in tree.skipped}
    return [
        Entry(e.path, e.kind, e.mode | 0o700 if e.kind is EntryKind.FOLDER else e.mode, e.data, e.target)
        for e in before
        if e.path in named or e.kind is EntryKind.FOLDER
    ]
