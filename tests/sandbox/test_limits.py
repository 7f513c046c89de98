"""Bombs: each goes off inside, is told for what it is, and leaves the sandbox and the host usable."""

from __future__ import annotations

import asyncio

import pytest

from workers.archive import Archive
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.protocol import Command, Sandbox, SandboxSpec
from workers.task import Limits

SMALL = Limits(memory_mb=128, storage_mb=32, inodes=2000, pids=32)
HOARD = "x = bytearray({mb} << 20)\nimport time; time.sleep({s})"
SHARED = "import mmap\nm = mmap.mmap(-1, 400 << 20)\nfor i in range(0, 400 << 20, 4096): m[i] = 1"


@pytest.fixture
async def small(real: BubblewrapBackend, workspace: Archive) -> Sandbox:
    return await real.create(SandboxSpec(layers=(workspace,), limits=SMALL))


async def still_works(sandbox: Sandbox) -> None:
    result = await sandbox.exec(Command.shell("echo fine", timeout_s=10))
    assert (result.exit_code, result.stdout) == (0, b"fine\n")


async def test_a_fork_bomb_stays_inside(small: Sandbox) -> None:
    result = await small.exec(Command.shell("b() { b | b & }; b; sleep 1; echo end", timeout_s=5))
    assert result.duration_s < 7
    await small.exec(Command.shell("kill -9 -1"))
    await still_works(small)


async def test_the_owner_still_gets_in_when_all_processes_are_used(small: Sandbox) -> None:
    await small.exec(
        Command(("python3", "-c", "import subprocess as s\nfor _ in range(40): s.Popen(['sleep', '60'])"))
    )
    assert await small.read_file("hello.txt") == b"hello\n"
    assert (await small.freeze()).archive is not None


@pytest.mark.parametrize("code", [HOARD.format(mb=200, s=20), SHARED + "\nimport time; time.sleep(20)"])
async def test_a_memory_bomb_is_ended_and_named(small: Sandbox, code: str) -> None:
    result = await small.exec(Command(("python3", "-c", code), timeout_s=15))
    assert result.oom_killed
    assert not result.timed_out
    await still_works(small)


async def test_many_small_hoarders_count_together(small: Sandbox) -> None:
    line = f"for i in 1 2 3 4; do python3 -c '{HOARD.format(mb=60, s=20)}' & done; wait"
    assert (await small.exec(Command.shell(line, timeout_s=15))).oom_killed
    await still_works(small)


async def test_memory_shared_after_a_fork_counts_once(small: Sandbox) -> None:
    code = "import os, time\nx = b'y' * (60 << 20)\nfor _ in range(4):\n    if not os.fork(): break\ntime.sleep(1)"
    result = await small.exec(Command(("python3", "-c", code), timeout_s=15))
    assert (result.exit_code, result.oom_killed) == (0, False)


async def test_a_background_hoarder_is_ended_too(small: Sandbox) -> None:
    await small.exec(Command.shell(f"python3 -c '{HOARD.format(mb=200, s=60)}' >/dev/null 2>&1 & sleep 0.01"))
    for _ in range(50):
        if (await small.exec(Command.shell("pgrep python3"))).exit_code != 0:
            return
        await asyncio.sleep(0.1)
    pytest.fail("it is still there")


async def test_hidden_memory_is_refused(small: Sandbox) -> None:
    assert (
        b"not permitted"
        in (await small.exec(Command(("python3", "-c", "import os; os.memfd_create('x')")))).stderr
    )
    code = "import sys; sys.stdin.fileno(); open('/proc/self/fd/0', 'wb').write(b'x')"
    assert (await small.exec(Command(("python3", "-c", code), stdin=b"sealed"))).exit_code != 0


@pytest.mark.parametrize("path", ["big", "/big", "/tmp/big", "/dev/shm/big", "/home/agent/big"])
async def test_the_disk_is_bounded_everywhere(small: Sandbox, path: str) -> None:
    result = await small.exec(
        Command.shell(f"for i in 1 2 3 4; do head -c 20000000 /dev/zero > {path}$i; done")
    )
    assert b"No space left" in result.stderr
    await small.exec(Command.shell(f"rm {path}*"))
    await still_works(small)


async def test_the_number_of_files_is_bounded(small: Sandbox) -> None:
    result = await small.exec(Command.shell("mkdir m; cd m; seq 1 5000 | xargs touch"))
    assert b"No space left" in result.stderr


async def test_a_sparse_file_is_bounded(small: Sandbox) -> None:
    result = await small.exec(Command.shell("truncate -s 1T sparse"))
    assert result.exit_code != 0


async def test_a_full_disk_fails_a_write_as_the_agent_would_meet_it(small: Sandbox) -> None:
    with pytest.raises(OSError):
        await small.write_file("big", bytes(40 << 20))


async def test_output_that_nobody_reads_does_not_stop_a_background_process(small: Sandbox) -> None:
    await small.exec(
        Command.shell("(for i in $(seq 3000); do echo a line of noise $i; done; touch finished) & true")
    )
    for _ in range(60):
        if (await small.exec(Command.shell("test -e finished"))).exit_code == 0:
            return
        await asyncio.sleep(0.1)
    pytest.fail("it never finished")


async def test_a_cancelled_command_ends(small: Sandbox) -> None:
    task = asyncio.create_task(small.exec(Command.shell("sleep 100")))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.3)
    assert (await small.exec(Command.shell("pgrep sleep"))).exit_code == 1
