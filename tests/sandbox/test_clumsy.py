"""Clumsy and hostile commands: each ends for the reason that is told, and the sandbox works on."""

from __future__ import annotations

import time

import pytest

from workers.archive import Archive, unpack
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.protocol import Bound, Command, Sandbox, SandboxSpec
from workers.task import Limits

SMALL = Limits(memory_mb=128, storage_mb=32, inodes=2000, pids=32)
SPIN = "while True: pass"


@pytest.fixture
async def small(real: BubblewrapBackend, workspace: Archive) -> Sandbox:
    return await real.create(SandboxSpec(layers=(workspace,), limits=SMALL))


async def works(sandbox: Sandbox) -> None:
    result = await sandbox.exec(Command.shell("echo fine", timeout_s=20))
    assert (result.exit_code, result.stdout) == (0, b"fine\n")


async def test_processor_time_is_a_limit_of_its_own(small: Sandbox) -> None:
    result = await small.exec(Command(("python3", "-c", SPIN), timeout_s=30, cpu_s=1))
    assert (result.cpu_killed, result.timed_out, result.oom_killed) == (True, False, False), result
    await works(small)


async def test_the_signal_of_a_limit_is_not_the_limit(small: Sandbox) -> None:
    result = await small.exec(Command.shell("kill -XCPU $$"))
    assert (result.signal, result.cpu_killed) == (24, False)
    result = await small.exec(Command.shell("exit 137"))
    assert (result.exit_code, result.oom_killed, result.signal) == (137, False, None)
    result = await small.exec(Command.shell("kill -9 $$"))
    assert (result.exit_code, result.oom_killed, result.signal) == (137, False, 9)


async def test_a_full_disk_and_used_up_names_are_told(small: Sandbox) -> None:
    result = await small.exec(Command.shell("head -c 100M /dev/zero > big"))
    assert Bound.DISK in result.bounds_met
    await small.exec(Command.shell("rm big"))
    result = await small.exec(Command.shell("mkdir m; cd m; seq 1 5000 | xargs touch 2>/dev/null"))
    assert Bound.INODES in result.bounds_met
    await small.exec(Command.shell("rm -r m"))
    assert (await small.exec(Command(("true",)))).bounds_met == ()
    await works(small)


async def test_used_up_processes_are_told(small: Sandbox) -> None:
    code = "import subprocess as s\nfor _ in range(40):\n    try: s.Popen(['sleep', '5'])\n    except OSError: pass"
    result = await small.exec(Command(("python3", "-c", code)))
    assert Bound.PIDS in result.bounds_met
    await works(small)


async def test_files_that_one_command_may_open_are_limited(small: Sandbox) -> None:
    code = "f = []\ntry:\n    while True: f.append(open('/dev/null'))\nexcept OSError as e: print(len(f), e.errno)"
    result = await small.exec(Command(("python3", "-c", code), open_files=30))
    assert result.stdout == b"27 24\n"


async def test_a_stopped_command_is_ended_at_its_time(small: Sandbox) -> None:
    result = await small.exec(Command.shell("echo out; kill -STOP $$", timeout_s=0.5))
    assert (result.timed_out, result.stdout) == (True, b"out\n")
    await works(small)


async def test_closed_streams_do_not_lose_the_exit_code(small: Sandbox) -> None:
    result = await small.exec(Command.shell("exec 0<&- 1>&- 2>&-; sleep 0.2; exit 7"))
    assert (result.exit_code, result.stdout, result.timed_out) == (7, b"", False)


async def test_a_program_that_wants_a_terminal_gets_none(small: Sandbox) -> None:
    result = await small.exec(
        Command.shell("tty; stty -a < /dev/tty; (read -p x y < /dev/tty) 2>&1; echo on", timeout_s=5)
    )
    assert not result.timed_out
    assert result.stdout.endswith(b"on\n")


async def test_reading_standard_input_ends_at_once(small: Sandbox) -> None:
    result = await small.exec(
        Command.shell("read line; echo got:$line; cat; python3 -c 'input()'", timeout_s=10)
    )
    assert (result.stdout, result.timed_out) == (b"got:\n", False)


async def test_a_pipe_that_is_held_and_filled_does_not_hold_the_answer(small: Sandbox) -> None:
    started = time.monotonic()
    result = await small.exec(
        Command.shell("(trap '' PIPE; while :; do echo noise; done) & sleep 0.1; echo over >&2", timeout_s=20)
    )
    assert (result.stderr, result.exit_code) == (b"over\n", 0)
    assert time.monotonic() - started < 5
    await works(small)


async def test_a_path_of_4096_characters_is_only_an_error(small: Sandbox) -> None:
    result = await small.exec(Command.shell("mkdir -p $(printf 'd/%.0s' $(seq 2100))"))
    assert result.exit_code != 0
    with pytest.raises(OSError):
        await small.read_file("a" * 4097)
    with pytest.raises(OSError):
        await small.write_file("d/" * 2100 + "x", b"")
    await works(small)


async def test_what_no_mode_allows_is_met_as_the_agent_meets_it(small: Sandbox) -> None:
    await small.exec(Command.shell("mkdir shut; echo s > shut/s; chmod 000 shut hello.txt"))
    with pytest.raises(PermissionError):
        await small.read_file("hello.txt")
    with pytest.raises(PermissionError):
        await small.read_file("shut/s")
    assert (await small.exec(Command.shell("cat hello.txt shut/s"))).exit_code != 0
    assert (await small.exec(Command(("true",), cwd="shut"))).exit_code == 126
    diff = await small.diff()
    assert {str(change.kind) for change in diff.changes} == {"added", "mode"}
    state = await small.freeze()
    assert state.archive is not None
    assert {entry.path: entry.mode for entry in unpack(state.archive)} == {
        "shut": 0,
        "shut/s": 0o644,
        "hello.txt": 0,
    }


async def test_devices_and_set_id_bits_gain_nothing(small: Sandbox) -> None:
    line = "mknod c c 1 3; mknod b b 8 0; cp /usr/bin/id i; chmod 6755 i; ./i -u; ls c b"
    result = await small.exec(Command.shell(line))
    assert result.stdout == b"1000\n"
    assert result.exit_code != 0


async def test_ten_thousand_hard_links_are_bounded_by_names(small: Sandbox) -> None:
    result = await small.exec(
        Command.shell("for i in $(seq 500); do ln hello.txt l$i; done; ls | wc -l", timeout_s=30)
    )
    assert result.exit_code == 0
    state = await small.freeze()
    assert state.archive is not None


@pytest.mark.parametrize(
    "line", ["kill -9 -1", "kill -STOP -1", "kill -9 1", "pkill -9 .", "reboot -f", "exec kill -9 $$"]
)
async def test_killing_everything_leaves_the_sandbox(small: Sandbox, line: str) -> None:
    result = await small.exec(Command.shell(f"(sleep 50 &); {line}; true", timeout_s=3))
    assert result.duration_s < 10
    await works(small)
