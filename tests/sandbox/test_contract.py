"""What every backend promises, the fake as well as the real one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from workers.archive import EMPTY, Archive, Entry, EntryKind, pack, unpack
from workers.errors import SandboxError, Unsupported
from workers.sandbox.fake import FakeBackend
from workers.sandbox.protocol import Command, ReadOnlyMount, SandboxBackend, SandboxSpec
from workers.trajectory import ChangeKind


@contextlib.contextmanager
def where_supported() -> Iterator[None]:
    """What a backend says that it can't do ends the test: it was told apart from what it can, which is the contract.

    Not a skip, which in CI means that something is missing from the machine."""
    try:
        yield
    except Unsupported as error:
        pytest.xfail(str(error))


async def test_a_command_sees_the_layers_in_order(backend: SandboxBackend, workspace: Archive) -> None:
    above = pack(
        (Entry("hello.txt", EntryKind.FILE, data=b"above\n"), Entry("folder/inner.txt", EntryKind.WHITEOUT))
    )
    sandbox = await backend.create(SandboxSpec(layers=(workspace, above)))
    result = await sandbox.exec(Command.shell("cat hello.txt link; ls folder; ./run.sh; test -x run.sh"))
    assert (result.exit_code, result.stdout) == (0, b"above\nabove\nran\n")


async def test_streams_exit_codes_and_stdin_come_through(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    result = await sandbox.exec(Command(("sh", "-c", "cat; echo err >&2; exit 7"), stdin=b"in\0put"))
    assert (result.exit_code, result.signal, result.stdout, result.stderr) == (7, None, b"in\0put", b"err\n")
    assert (await sandbox.exec(Command(("cat",)))).stdout == b""
    assert (
        await sandbox.exec(Command(("sh", "-c", "echo $A$B"), env=(("A", "x"), ("B", "y=z"))))
    ).stdout == b"xy=z\n"


async def test_a_signal_is_told_from_an_exit_code(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    result = await sandbox.exec(Command(("sh", "-c", "kill -9 $$")))
    assert (result.exit_code, result.signal) == (137, 9)
    result = await sandbox.exec(Command(("sh", "-c", "exit 137")))
    assert (result.exit_code, result.signal) == (137, None)


async def test_a_program_that_is_not_there_is_127(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    result = await sandbox.exec(Command(("no-such-program",)))
    assert result.exit_code == 127
    assert result.stderr


async def test_a_nul_byte_in_an_argument_is_the_commands_own_error(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    assert (await sandbox.exec(Command(("echo", "a\0b")))).exit_code == 126


async def test_a_late_command_is_killed_and_its_output_kept(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    result = await sandbox.exec(
        Command.shell("trap '' TERM; echo early; while :; do sleep 0.05; done", timeout_s=0.5)
    )
    assert (result.timed_out, result.oom_killed, result.output_killed) == (True, False, False)
    assert result.stdout == b"early\n"
    assert 0.4 < result.duration_s < 5


async def test_long_output_keeps_its_two_ends(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    command = Command(("sh", "-c", "seq 1 200000"), output_limit_bytes=1000)
    result = await sandbox.exec(command)
    everything = "".join(f"{n}\n" for n in range(1, 200001)).encode()
    assert result.stdout == everything[:500] + everything[-500:]
    assert result.dropped_bytes == len(everything) - 1000
    assert not result.output_killed


async def test_endless_output_is_ended(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    result = await sandbox.exec(Command(("yes",), timeout_s=60))
    assert result.output_killed
    assert not result.timed_out
    assert len(result.stdout) <= 64 * 1024


async def test_a_background_process_does_not_hold_the_command(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    result = await sandbox.exec(Command.shell("sleep 30 & echo started", timeout_s=10))
    assert (result.exit_code, result.stdout, result.timed_out) == (0, b"started\n", False)
    assert result.duration_s < 5


async def test_files_are_read_and_written(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    await sandbox.write_file("new/deep/file.bin", b"\0\xff")
    await sandbox.write_file("hello.txt", b"short")
    assert await sandbox.read_file("new/deep/file.bin") == b"\0\xff"
    assert await sandbox.read_file("link") == b"short"
    assert await sandbox.read_file("/workspace/folder/inner.txt") == b"one\ntwo\n"
    assert (await sandbox.exec(Command.shell("cat hello.txt"))).stdout == b"short"


async def test_unreadable_paths_raise_what_the_agent_would_meet(
    backend: SandboxBackend, workspace: Archive
) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("nothing")
    with pytest.raises(IsADirectoryError):
        await sandbox.read_file("folder")
    with pytest.raises(ValueError):
        await sandbox.read_file("hello.txt", max_bytes=3)
    await sandbox.exec(Command.shell("mkfifo pipe"))
    with pytest.raises(ValueError):
        await sandbox.read_file("pipe")
    with pytest.raises(OSError):
        await sandbox.write_file("hello.txt/below", b"")


async def test_the_frozen_state_is_the_difference(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    await sandbox.exec(
        Command.shell(
            "echo three >> folder/inner.txt; rm hello.txt; echo n > new.txt; chmod 700 run.sh; ln -s / out"
        )
    )
    state = await sandbox.freeze()
    assert state.archive is not None
    kinds = {change.path: change.kind for change in state.changes}
    assert kinds == {
        "folder/inner.txt": ChangeKind.CHANGED,
        "hello.txt": ChangeKind.DELETED,
        "new.txt": ChangeKind.ADDED,
        "out": ChangeKind.ADDED,
        "run.sh": ChangeKind.MODE,
    }
    texts = {change.path: change.text for change in state.changes}
    assert "+three\n" in texts["folder/inner.txt"]
    entries = {entry.path: entry for entry in unpack(state.archive)}
    assert entries["hello.txt"].kind is EntryKind.WHITEOUT
    assert entries["new.txt"].data == b"n\n"
    assert entries["out"].target == "/"


async def test_doing_nothing_leaves_an_empty_state(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    await sandbox.exec(Command.shell("cat hello.txt; ls -R"))
    state = await sandbox.freeze()
    assert state.archive == EMPTY
    assert state.changes == ()


async def test_a_state_travels_as_a_layer(backend: SandboxBackend, workspace: Archive) -> None:
    first = await backend.create(SandboxSpec(layers=(workspace,)))
    await first.exec(
        Command.shell("rm -r folder; mkdir folder; echo x > folder/other; rm hello.txt; mkdir hello.txt")
    )
    state = (await first.freeze()).archive
    assert state is not None
    second = await backend.create(SandboxSpec(layers=(workspace, state)))
    result = await second.exec(Command.shell("find . | sort"))
    assert result.stdout.split() == [
        b".",
        b"./folder",
        b"./folder/other",
        b"./hello.txt",
        b"./link",
        b"./run.sh",
    ]


async def test_a_state_past_a_cap_says_which(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    await sandbox.exec(Command.shell("head -c 2000000 /dev/zero > big"))
    state = await sandbox.freeze(max_bytes=1_000_000)
    assert state.archive is None
    assert "bytes" in state.too_large


async def test_the_same_spec_has_the_same_reset_digest(backend: SandboxBackend, workspace: Archive) -> None:
    tests = ReadOnlyMount("/tests", pack((Entry("t", EntryKind.FILE, data=b"t"),)))
    specs = [
        SandboxSpec(layers=(workspace,)),
        SandboxSpec(layers=(workspace, EMPTY)),
        SandboxSpec(layers=(workspace,), workspace_path="/app"),
        SandboxSpec(layers=(workspace,), read_only=(tests,)),
    ]
    digests = []
    for spec in specs:
        one, two = await backend.create(spec), await backend.create(spec)
        await one.exec(Command.shell("echo dirt > hello.txt; touch x"))
        await one.close()
        again = await backend.create(spec)
        assert one.reset_digest == two.reset_digest == again.reset_digest
        digests.append(one.reset_digest)
    assert len(set(digests)) == len(specs)


async def test_protected_files_are_shown_and_do_not_travel(
    backend: SandboxBackend, workspace: Archive
) -> None:
    tests = pack((Entry("check.txt", EntryKind.FILE, data=b"secret\n"),))
    planted = pack((Entry("tests/conftest.py", EntryKind.FILE, data=b"planted"),))
    mounts = (ReadOnlyMount("/workspace/tests", tests), ReadOnlyMount("/verifier", tests))
    sandbox = await backend.create(SandboxSpec(layers=(workspace, planted), read_only=mounts))
    assert await sandbox.read_file("/verifier/check.txt") == b"secret\n"
    assert (
        await sandbox.exec(Command.shell("ls tests; cat tests/check.txt"))
    ).stdout == b"check.txt\nsecret\n"
    await sandbox.exec(Command.shell("echo mine > solution.txt"))
    state = (await sandbox.freeze()).archive
    assert state is not None
    assert [entry.path for entry in unpack(state)] == ["solution.txt"]


async def test_a_sandbox_is_unusable_once_closed_and_closing_twice_is_safe(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxError):
        await sandbox.exec(Command(("true",)))
    await backend.close()
    await backend.close()


async def test_a_frozen_sandbox_runs_nothing_more(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    await sandbox.freeze()
    with pytest.raises(SandboxError):
        await sandbox.exec(Command(("true",)))


@pytest.mark.parametrize("path", ["relative", "/", "/usr/x", "/etc", "/a/../b", "/proc", "/tmp/x", "/a//b"])
async def test_a_workspace_path_of_the_image_is_refused(backend: SandboxBackend, path: str) -> None:
    with pytest.raises(SandboxError):
        await backend.create(SandboxSpec(workspace_path=path))


async def test_many_commands_run_side_by_side(backend: SandboxBackend) -> None:
    sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(8)))
    results = await asyncio.gather(
        *(
            box.exec(Command.shell(f"sleep 0.3; echo {n}"))
            for n, box in enumerate(sandboxes)
            for _ in range(2)
        )
    )
    assert [int(result.stdout) for result in results] == [n for n in range(8) for _ in range(2)]
    await asyncio.gather(*(box.close() for box in sandboxes))


async def test_a_limit_of_one_command_is_lower_than_the_sandboxes(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    with where_supported():
        result = await sandbox.exec(Command(("sh", "-c", "ulimit -n"), open_files=20))
    assert result.stdout == b"20\n"


async def test_another_user_is_served_or_refused_with_an_alternative(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    assert (await sandbox.exec(Command(("true",), user="agent"))).exit_code == 0
    with where_supported():
        assert (await sandbox.exec(Command(("id", "-u"), user="root"))).stdout == b"0\n"


async def test_a_diff_looks_without_ending_anything(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    with where_supported():
        assert (await sandbox.diff()).changes == ()
    await sandbox.exec(
        Command.shell("echo more >> hello.txt; rm run.sh; echo n > new; chmod 700 folder/inner.txt")
    )
    diff = await sandbox.diff()
    assert {(change.path, str(change.kind)) for change in diff.changes} == {
        ("hello.txt", "changed"), ("run.sh", "deleted"), ("new", "added"), ("folder/inner.txt", "mode"),
    }  # fmt: skip
    assert (await sandbox.exec(Command.shell("cat new"))).stdout == b"n\n"
    assert (await sandbox.freeze()).changes == diff.changes


async def test_a_sandbox_goes_on_from_its_snapshot(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    await sandbox.exec(Command.shell("echo one > state; rm hello.txt"))
    with where_supported():
        first = await sandbox.snapshot()
    assert (await sandbox.exec(Command.shell("cat state; ls; echo two > state; echo x > extra"))).stdout == (
        b"one\nfolder\nlink\nrun.sh\nstate\n"
    )
    await sandbox.restore(first)
    assert (
        await sandbox.exec(Command.shell("cat state; ls"))
    ).stdout == b"one\nfolder\nlink\nrun.sh\nstate\n"
    await sandbox.exec(Command.shell("echo three > state"))
    changes = {(change.path, str(change.kind)) for change in (await sandbox.freeze()).changes}
    assert changes == {("state", "added"), ("hello.txt", "deleted")}


async def test_forks_share_nothing_but_their_start(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    await sandbox.exec(Command.shell("echo base > state; rm -r folder; mkdir folder; echo n > folder/new"))
    with where_supported():
        snapshot = await sandbox.snapshot()
    await sandbox.exec(Command.shell("echo later > state"))
    forks = [await backend.fork(snapshot) for _ in range(3)]
    assert len({fork.reset_digest for fork in forks}) == 1
    assert forks[0].reset_digest != sandbox.reset_digest or snapshot.spec.layers == ()
    for n, fork in enumerate(forks):
        await fork.exec(Command.shell(f"echo {n} >> state"))
    for n, fork in enumerate(forks):
        assert (await fork.exec(Command.shell("cat state; ls folder"))).stdout == f"base\n{n}\nnew\n".encode()
    await sandbox.close()
    await backend.discard(snapshot)
    await backend.discard(snapshot)
    assert (await forks[1].exec(Command.shell("cat state"))).stdout == b"base\n1\n"
    with pytest.raises(SandboxError, match="bad_snapshot"):
        await backend.fork(snapshot)


async def test_a_chain_of_snapshots_adds_up(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    for n in range(8):
        await sandbox.exec(
            Command.shell(
                f"echo {n} > s{n}; echo {n} >> log; rm -rf s{n - 2} folder; mkdir folder; > folder/{n}"
            )
        )
        with where_supported():
            snapshot = await sandbox.snapshot()
    fork = await backend.fork(snapshot)
    assert (await fork.exec(Command.shell("echo $(ls . folder) $(cat log)"))).stdout == (
        b".: folder hello.txt link log run.sh s6 s7 folder: 7 0 1 2 3 4 5 6 7\n"
    )
    state, exported = await fork.freeze(), await backend.export(snapshot)
    assert state.archive == exported
    whole = await backend.create(SandboxSpec(layers=(workspace, exported)))
    assert (await whole.exec(Command.shell("echo $(ls . folder) $(cat log)"))).stdout == (
        b".: folder hello.txt link log run.sh s6 s7 folder: 7 0 1 2 3 4 5 6 7\n"
    )


async def test_a_snapshot_travels_to_another_backend(backend: SandboxBackend, workspace: Archive) -> None:
    spec = SandboxSpec(layers=(workspace,))
    sandbox = await backend.create(spec)
    await sandbox.exec(Command.shell("echo kept > state; rm hello.txt; ln -s / out"))
    with where_supported():
        exported = await backend.export(await sandbox.snapshot())
    other = FakeBackend()
    await other.start()
    for place in (backend, other):
        snapshot = await place.import_snapshot(exported, spec)
        fork = await place.fork(snapshot)
        assert (
            await fork.exec(Command.shell("cat state; test -e hello.txt; echo $?; readlink out"))
        ).stdout == (b"kept\n1\n/\n")
        assert (await fork.freeze()).archive == exported
        assert await place.export(snapshot) == exported
    await other.close()


async def test_an_export_past_a_cap_is_an_error(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    await sandbox.exec(Command.shell("head -c 2000000 /dev/zero > big"))
    with where_supported():
        snapshot = await sandbox.snapshot()
    with pytest.raises(SandboxError, match="snapshot_too_large"):
        await backend.export(snapshot, max_bytes=1_000_000)
    assert (await backend.export(snapshot)).size_bytes > 2_000_000


async def test_a_snapshot_of_another_spec_is_refused(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    with where_supported():
        snapshot = await sandbox.snapshot()
    other = await backend.create(SandboxSpec())
    for wrong in (snapshot, replace(snapshot, name="no-such")):
        with pytest.raises(SandboxError, match="bad_snapshot"):
            await other.restore(wrong)


async def test_a_clean_sandbox_verifies(backend: SandboxBackend, workspace: Archive) -> None:
    sandbox = await backend.create(SandboxSpec(layers=(workspace,)))
    await sandbox.exec(Command.shell("echo dirt > hello.txt"))
    with where_supported():
        await sandbox.verify()
