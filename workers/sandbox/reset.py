"""The proof of a reset: what the kernel says a slot has mounted, against what was asked for.

Invariants: nothing here is taken from the request but the expectation; the digest is made of what was read
back. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from workers.sandbox.messages import Create, Setup
from workers.sandbox.slot import POINTS, UPPER, Storage, lower_folders


class DirtyReset(Exception):
    """The slot is not what was asked for."""


@dataclass(frozen=True, slots=True)
class MountLine:
    """The part of a line of /proc/PID/mountinfo that the proof needs."""

    root: str
    path: str
    is_read_only: bool
    kind: str
    options: dict[str, str]


def prove(setup: Setup, path: Callable[[str], str], storage: Storage, request: Create, pid: int) -> str:
    """A fresh slot's reset digest; of what lies above the spec's layers, only the place counts. Raises DirtyReset."""
    with os.scandir(f"{storage.folder}/{UPPER}") as upper:
        if any(True for _ in upper):
            raise DirtyReset("the workspace's upper folder is not empty")
    return prove_mounts(setup, path, storage, request, pid)


def prove_mounts(
    setup: Setup, path: Callable[[str], str], storage: Storage, request: Create, pid: int
) -> str:
    """The same, whatever was written since. Raises DirtyReset."""
    mounted = read_mounts(pid)
    facts = [f"image {setup.image_digest}", f"workspace {request.workspace_path}"]
    facts += [f"layer {name}" for name in _layers_mounted(path, storage, request, mounted)]
    etc = _read_only_layer(mounted, "/etc")
    if etc != setup.etc:
        raise DirtyReset(f"/etc is {etc}")
    for item in sorted(request.mounts, key=lambda m: m.path):
        found = _read_only_layer(mounted, item.path)
        if found != item.layer:
            raise DirtyReset(f"{item.path} is {found}")
        facts.append(f"mount {item.path} {found}")
    for place in setup.binds:
        if place not in mounted or not mounted[place].is_read_only:
            raise DirtyReset(f"{place} is not mounted read-only")
    return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


def read_mounts(pid: int) -> dict[str, MountLine]:
    """What a process sees mounted, by path; of mounts on one path the topmost."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        lines = file.read().decode("utf-8", "surrogateescape").splitlines()
    return {line.path: line for line in map(_parse, lines)}


def _parse(text: str) -> MountLine:
    left, _, right = text.partition(" - ")
    fields, tail = left.split(" "), right.split(" ")
    options = dict(_pair(item) for item in tail[2].split(","))
    return MountLine(
        _unescape(fields[3]), _unescape(fields[4]), "ro" in fields[5].split(","), tail[0], options
    )


def _pair(item: str) -> tuple[str, str]:
    key, _, value = item.partition("=")
    return key, _unescape(value)


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _layers_mounted(
    path: Callable[[str], str], storage: Storage, request: Create, mounted: dict[str, MountLine]
) -> list[str]:
    """The workspace's layers, the first lowest, by the names that the kernel gives for its lower folders."""
    found = mounted.get(request.workspace_path)
    if found is None or found.kind != "overlay":
        raise DirtyReset(f"{request.workspace_path} is not an overlay")
    lowers = [_inside(lower) for lower in found.options.get("lowerdir", "").split(":")][::-1]
    expected = lower_folders(path, storage, request)
    if lowers != expected:
        raise DirtyReset(f"the workspace's layers are {lowers}, not {expected}")
    if _inside(found.options.get("upperdir", "")) != f"{storage.folder}/{UPPER}":
        raise DirtyReset(f"the workspace's upper folder is {found.options.get('upperdir')}")
    has_points = lowers[-1] == f"{storage.folder}/{POINTS}"
    return [*request.layers, *([POINTS] if has_points else [])]


def _inside(path: str) -> str:
    """A path as the keeper sees it: bubblewrap mounts from under /oldroot."""
    return path.removeprefix("/oldroot")


def _read_only_layer(mounted: dict[str, MountLine], path: str) -> str:
    """The digest of the layer mounted at `path`, by the root that the kernel gives for the mount."""
    found = mounted.get(path)
    if found is None or not found.is_read_only or found.kind != "tmpfs":
        raise DirtyReset(f"{path} is not mounted read-only")
    return found.root.rpartition("/")[2]
