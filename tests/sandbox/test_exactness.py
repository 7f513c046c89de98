"""A reset that is not exact is caught, in whatever way it is not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.conftest import COLD
from sandbox.outside import keeper_inside
from workers.archive import Archive, Entry, EntryKind, pack
from workers.errors import SandboxError
from workers.sandbox.bubblewrap import BubblewrapBackend, BubblewrapOptions
from workers.sandbox.fingerprint import of_folder, of_layers
from workers.sandbox.layers import unpack_into
from workers.sandbox.protocol import Command, SandboxSpec

TREE = (
    Entry("folder", EntryKind.FOLDER, 0o755),
    Entry("folder/inner.txt", EntryKind.FILE, data=b"one\ntwo\n"),
    Entry("hello.txt", EntryKind.FILE, data=b"hello\n"),
    Entry("link", EntryKind.LINK, target="hello.txt"),
    Entry("run.sh", EntryKind.FILE, 0o755, data=b"#!/bin/sh\n"),
)


def _same_size_and_time(root: Path) -> None:
    path = root / "hello.txt"
    info = path.stat()
    path.write_bytes(b"jello\n")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _other_link(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("run.sh")


def _other_type(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").write_bytes(b"hello\n")


def _swapped(root: Path) -> None:
    (root / "hello.txt").rename(root / "x")
    (root / "run.sh").rename(root / "hello.txt")
    (root / "x").rename(root / "run.sh")


DIRT: dict[str, Callable[[Path], object]] = {
    "other bytes, same size and time": _same_size_and_time,
    "one byte more": lambda root: (root / "hello.txt").write_bytes(b"hello\n\n"),
    "a new file": lambda root: (root / "folder" / "conftest.py").touch(),
    "a hidden file": lambda root: (root / ".pth").write_bytes(b"import os"),
    "an empty folder": lambda root: (root / "empty").mkdir(),
    "a file gone": lambda root: (root / "folder" / "inner.txt").unlink(),
    "another mode": lambda root: (root / "run.sh").chmod(0o644),
    "a set-id bit": lambda root: (root / "run.sh").chmod(0o4755),
    "a folder's mode": lambda root: (root / "folder").chmod(0o777),
    "another link target": _other_link,
    "another type": _other_type,
    "two files swapped": _swapped,
    "an attribute": lambda root: os.setxattr(root / "hello.txt", "user.note", b"x"),
}


@pytest.mark.parametrize("name", DIRT)
def test_a_fingerprint_sees(tmp_path: Path, name: str) -> None:
    root = tmp_path / "tree"
    unpack_into(str(root), TREE)
    clean = of_folder(str(root))
    DIRT[name](root)
    assert of_folder(str(root)) != clean


@pytest.mark.root
def test_a_fingerprint_sees_another_owner(tmp_path: Path) -> None:
    unpack_into(str(tmp_path / "tree"), TREE)
    clean = of_folder(str(tmp_path / "tree"))
    os.chown(tmp_path / "tree" / "hello.txt", 1, 1)
    assert of_folder(str(tmp_path / "tree")) != clean


@pytest.mark.root
def test_layers_have_the_fingerprint_of_what_they_show(tmp_path: Path) -> None:
    above = (
        Entry("folder", EntryKind.FOLDER, 0o700, is_opaque=True),
        Entry("folder/new", EntryKind.FILE, data=b"n"),
        Entry("hello.txt", EntryKind.WHITEOUT),
    )
    whole = (
        Entry("folder", EntryKind.FOLDER, 0o700),
        Entry("folder/new", EntryKind.FILE, data=b"n"),
        *TREE[3:],
    )
    for name, entries in (("below", TREE), ("above", above), ("whole", whole)):
        unpack_into(str(tmp_path / name), entries)
    assert of_layers([str(tmp_path / "below"), str(tmp_path / "above")]) == of_folder(str(tmp_path / "whole"))


@contextlib.contextmanager
def keepers_user(folder: Path) -> Iterator[None]:
    """In `folder` as the user that owns it, whose name means something there."""
    before, owner = os.getcwd(), folder.stat().st_uid
    os.chdir(folder)
    os.setegid(owner)
    os.seteuid(owner)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.chdir(before)


@pytest.mark.root
@pytest.mark.parametrize("name", DIRT)
async def test_a_dirty_layer_is_caught_on_demand_and_by_the_sample(name: str) -> None:
    backend = BubblewrapBackend(BubblewrapOptions(keepers=1, warm=COLD, verify_every=1))
    await backend.start()
    spec = SandboxSpec(layers=(pack(TREE),))
    living = await backend.create(spec)
    await living.verify()
    root = Path(f"/proc/{keeper_inside(backend)}/root/p/layers/{spec.layers[0].digest}")
    with keepers_user(root):
        DIRT[name](Path())
    with pytest.raises(SandboxError, match="dirty_reset"):
        await living.verify()
    with pytest.raises(SandboxError, match="dirty_reset"):
        await backend.create(spec)
    assert backend.dirty_resets == 1
    assert backend._keepers[0].slot_count == 1
    assert (await (await backend.create(SandboxSpec())).exec(Command(("true",)))).exit_code == 0
    await backend.close()


async def test_the_start_of_a_fork_is_named_by_its_content(
    real: BubblewrapBackend, workspace: Archive
) -> None:
    digests = []
    for line in ("echo a > a; echo b > b", "echo b > b; echo a > a", "echo a > a; echo c > b"):
        sandbox = await real.create(SandboxSpec(layers=(workspace,)))
        await sandbox.exec(Command.shell(line))
        fork = await real.fork(await sandbox.snapshot())
        digests.append(fork.reset_digest)
    assert digests[0] == digests[1] != digests[2]
