"""Whatever the agent leaves behind, reading it is safe, bounded and exact."""

from __future__ import annotations

import pytest

from workers.archive import Archive, EntryKind, unpack
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.protocol import Command, FinalState, Sandbox, SandboxSpec


async def left(sandbox: Sandbox, line: str) -> FinalState:
    result = await sandbox.exec(Command.shell(line))
    assert result.exit_code == 0, result.stderr
    return await sandbox.freeze()


async def test_links_out_travel_as_links(sandbox: Sandbox) -> None:
    state = await left(
        sandbox, "ln -s /etc/passwd p; ln -s / root; ln -s ../../../.. up; rm -r folder; ln -s /etc folder"
    )
    assert state.archive is not None
    entries = {entry.path: entry for entry in unpack(state.archive)}
    assert {path: entry.target for path, entry in entries.items()} == {
        "p": "/etc/passwd", "root": "/", "up": "../../../..", "folder": "/etc",
    }  # fmt: skip


async def test_what_can_not_travel_is_listed(sandbox: Sandbox) -> None:
    code = "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
    state = await left(sandbox, f'mkfifo pipe; python3 -c "{code}"; echo x > kept')
    assert state.archive is not None
    kinds = {entry.path: entry.kind for entry in unpack(state.archive)}
    assert kinds == {"kept": EntryKind.FILE, "pipe": EntryKind.WHITEOUT, "sock": EntryKind.WHITEOUT}
    assert {change.path for change in state.changes} == {"kept", "pipe", "sock"}


async def test_set_id_bits_and_hard_links_do_not_travel(sandbox: Sandbox) -> None:
    state = await left(sandbox, "cp /bin/true s; chmod 6755 s; echo x > a; ln a b; chmod 000 a")
    assert state.archive is not None
    entries = {entry.path: entry for entry in unpack(state.archive)}
    assert entries["s"].mode == 0o755
    assert entries["a"].data == entries["b"].data == b"x\n"
    assert entries["a"].mode == 0


async def test_a_deep_tree_passes_a_cap_and_closes_quickly(sandbox: Sandbox) -> None:
    state = await left(sandbox, "d=.; for i in $(seq 1 300); do d=$d/d; done; mkdir -p $d")
    assert state.archive is None
    assert "deeper than 200" in state.too_large
    await sandbox.close()


async def test_sparse_files_do_not_fill_memory(sandbox: Sandbox) -> None:
    state = await left(sandbox, "truncate -s 200M a; truncate -s 200M b")
    assert state.archive is None
    assert "bytes" in state.too_large


async def test_an_opaque_folder_and_its_losses_are_seen(sandbox: Sandbox) -> None:
    state = await left(sandbox, "rm -r folder; mkdir folder; echo n > folder/new")
    assert state.archive is not None
    entries = {entry.path: entry for entry in unpack(state.archive)}
    assert entries["folder"].is_opaque
    assert {(c.path, str(c.kind)) for c in state.changes} == {
        ("folder/inner.txt", "deleted"),
        ("folder/new", "added"),
    }


async def test_an_imitated_opaque_mark_means_nothing(sandbox: Sandbox) -> None:
    code = "import os; os.makedirs('fake'); os.setxattr('fake', 'user.overlay.opaque', b'y')"
    await sandbox.exec(Command(("python3", "-c", code)))
    state = await sandbox.freeze()
    assert state.archive is not None
    assert not any(entry.is_opaque for entry in unpack(state.archive))


async def test_odd_names_survive(sandbox: Sandbox) -> None:
    state = await left(sandbox, r"touch $'two\nlines' $'\xff\xfe' 'ü 日本'; mkdir -p $'d\x01'")
    assert state.archive is not None
    assert {entry.path for entry in unpack(state.archive)} == {
        "two\nlines",
        "\udcff\udcfe",
        "ü 日本",
        "d\x01",
    }


async def test_the_same_state_has_the_same_bytes(real: BubblewrapBackend, workspace: Archive) -> None:
    lines = ("echo a > a; echo b > b; mkdir c", "mkdir c; echo b > b; sleep 0.1; echo a > a")
    states = []
    for line in lines:
        sandbox = await real.create(SandboxSpec(layers=(workspace,)))
        states.append((await left(sandbox, line)).archive)
        await sandbox.close()
    assert states[0] == states[1]


async def test_a_process_that_keeps_writing_is_dead_before_the_reading(sandbox: Sandbox) -> None:
    await sandbox.exec(
        Command.shell("(setsid sh -c 'while :; do date >> busy; done' >/dev/null 2>&1 &); sleep 0.2")
    )
    state = await sandbox.freeze()
    assert state.archive is not None
    assert {entry.kind for entry in unpack(state.archive)} == {EntryKind.FILE}


@pytest.mark.parametrize("count", [30_000])
async def test_many_files_are_read_in_bounded_time(sandbox: Sandbox, count: int) -> None:
    state = await left(sandbox, f"mkdir m; cd m; seq 1 {count} | xargs touch")
    assert state.archive is not None
    assert len(state.changes) == count + 1
