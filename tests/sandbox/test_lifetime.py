"""Nothing outlives its owner, and nothing unclean is handed out."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.conftest import COLD
from sandbox.outside import descendants, host_mounts, keeper_inside, mounts_of, wait_until_gone
from workers.archive import EMPTY, Archive, Entry, EntryKind, pack
from workers.errors import SandboxError, Unsupported
from workers.sandbox import doctor, reset
from workers.sandbox.attendants import FRESH
from workers.sandbox.bubblewrap import BubblewrapBackend, BubblewrapOptions
from workers.sandbox.image import HostImage, host_image
from workers.sandbox.messages import Create, Mount, Setup
from workers.sandbox.protocol import Command, SandboxSpec
from workers.sandbox.slot import UPPER, Storage
from workers.task import Limits

OWNER = """
import asyncio
from workers.sandbox.bubblewrap import BubblewrapBackend, BubblewrapOptions
from workers.sandbox.protocol import Command, SandboxSpec

async def main():
    backend = BubblewrapBackend(BubblewrapOptions(keepers=2))
    await backend.start()
    boxes = [await backend.create(SandboxSpec()) for _ in range(6)]
    for box in boxes:
        await box.exec(Command.shell("(setsid sleep 54321 &) ; sleep 54321 & echo started"))
    print("ready", flush=True)
    await asyncio.gather(*(box.exec(Command.shell("exec sleep 54321", timeout_s=900)) for box in boxes))

asyncio.run(main())
"""


def test_killing_the_owner_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    before = host_mounts()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        time.sleep(0.3)
        below = descendants(owner.pid)
        assert len(below) > 6 * 4
        owner.send_signal(signal.SIGKILL)
    assert wait_until_gone(below) == set()
    assert host_mounts() == before
    assert os.listdir(tmp_path) == []


async def test_closing_the_backend_ends_everything() -> None:
    backend = BubblewrapBackend(BubblewrapOptions(keepers=1))
    before = descendants(os.getpid())
    await backend.start()
    box = await backend.create(SandboxSpec())
    await box.exec(Command.shell("sleep 1000 & sleep 1000 & true"))
    below = descendants(os.getpid()) - before
    assert len(below) >= 4
    await backend.close()
    assert await asyncio.to_thread(wait_until_gone, below) == set()
    await box.close()


async def test_a_dead_keeper_is_an_error_with_a_cause_and_others_go_on() -> None:
    backend = BubblewrapBackend(BubblewrapOptions(keepers=2, warm=COLD))
    await backend.start()
    boxes = [await backend.create(SandboxSpec()) for _ in range(2)]
    waiting = asyncio.create_task(boxes[0].exec(Command.shell("sleep 100", timeout_s=200)))
    await asyncio.sleep(0.3)
    os.kill(backend._keepers[0].pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="keeper_died"):
        await waiting
    assert (await boxes[1].exec(Command.shell("echo on"))).stdout == b"on\n"
    for _ in range(3):
        box = await backend.create(SandboxSpec())
        assert (await box.exec(Command.shell("echo on"))).stdout == b"on\n"
    await boxes[0].close()
    await backend.close()


async def settle(keeper: int) -> None:
    """Wait until the keeper has only itself and its helpers that wait for work: what ended is reaped within a tick."""
    for _ in range(50):
        if len(descendants(keeper)) == 1 + FRESH:
            return
        await asyncio.sleep(0.1)
    assert len(descendants(keeper)) == 1 + FRESH


async def test_a_cancelled_create_leaves_no_slot(real: BubblewrapBackend) -> None:
    keeper = real._keepers[0].pid
    for n in range(60):
        task = asyncio.create_task(real.create(SandboxSpec()))
        await asyncio.sleep(n / 4000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            await task.result().close()
    await settle(keeper)
    assert real._keepers[0].slot_count == 0


async def play(backend: BubblewrapBackend, chance: random.Random) -> None:
    """A short life with random deeds."""
    box = await backend.create(SandboxSpec())
    try:
        for _ in range(3):
            match chance.choice(("exec", "read", "write", "freeze")):
                case "exec":
                    await box.exec(Command.shell("sleep 0.01 & echo x > y; echo"))
                case "read":
                    await box.read_file("/etc/passwd")
                case "write":
                    await box.write_file("a/b", bytes(chance.choice((1, 100_000))))
                case _:
                    await box.freeze()
                    return
    finally:
        await box.close()


async def test_cancelling_anything_anywhere_leaves_a_keeper_whole(real: BubblewrapBackend) -> None:
    chance = random.Random(7)
    keeper = real._keepers[0].pid
    for _ in range(20):
        lives = [asyncio.create_task(play(real, chance)) for _ in range(6)]
        await asyncio.sleep(chance.random() * 0.1)
        for life in lives:
            if chance.random() < 0.6:
                life.cancel()
        ends = await asyncio.gather(*lives, return_exceptions=True)
        assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
    await settle(keeper)
    assert real._keepers[0].slot_count == 0


async def test_slots_come_and_go_without_leaking(real: BubblewrapBackend) -> None:
    keeper, inner = real._keepers[0].pid, keeper_inside(real)
    counts = []
    for _ in range(3):
        for _ in range(10):
            box = await real.create(SandboxSpec())
            await box.exec(Command(("true",)))
            await box.close()
        await settle(keeper)
        counts.append(len(mounts_of(inner)))
    assert len(set(counts)) == 1
    if os.geteuid() == 0:
        assert len(os.listdir(f"/proc/{inner}/fd")) < 12 + FRESH


async def test_many_are_born_at_once(real: BubblewrapBackend) -> None:
    boxes = await asyncio.gather(*(real.create(SandboxSpec()) for _ in range(60)))
    results = await asyncio.gather(*(box.exec(Command.shell("echo $HOME")) for box in boxes))
    assert {result.stdout for result in results} == {b"/home/agent\n"}
    await asyncio.gather(*(box.close() for box in boxes))


async def test_layers_make_room_for_others(workspace: Archive) -> None:
    backend = BubblewrapBackend(BubblewrapOptions(keepers=1, layer_limit_mb=8))
    await backend.start()
    for n in range(6):
        layer = pack((Entry("data", EntryKind.FILE, data=bytes([n]) * (3 << 20)),))
        box = await backend.create(SandboxSpec(layers=(workspace, layer)))
        assert (await box.read_file("data", 4 << 20))[:1] == bytes([n])
        await box.close()
    await backend.close()


async def test_layers_that_can_not_fit_are_an_error(workspace: Archive) -> None:
    backend = BubblewrapBackend(BubblewrapOptions(keepers=1, layer_limit_mb=4))
    await backend.start()
    layer = pack((Entry("data", EntryKind.FILE, data=bytes(30 << 20)),))
    with pytest.raises(SandboxError, match="layers_full"):
        await backend.create(SandboxSpec(layers=(layer,)))
    box = await backend.create(SandboxSpec(layers=(workspace,)))
    assert (await box.exec(Command(("true",)))).exit_code == 0
    await backend.close()


async def test_what_the_backend_can_not_do_says_what_can(real: BubblewrapBackend) -> None:
    with pytest.raises(Unsupported, match="docker"):
        await real.create(SandboxSpec(image="python:3.12"))
    with pytest.raises(Unsupported, match="docker"):
        await real.create(SandboxSpec(limits=Limits(allow_internet=True)))


MOUNTINFO = (
    "1 0 0:1 / /usr ro - ext4 /dev/a rw\n"
    "2 0 0:2 /layers/E /etc ro - tmpfs keeper rw\n"
    "3 0 0:3 / /workspace rw - overlay overlay rw,lowerdir={lower},upperdir={upper},workdir=/w\n"
    "4 0 0:2 /layers/{tests} /tests {mode} - tmpfs keeper rw\n"
)
CLEAN = {"lower": "/oldroot/L/B:/oldroot/L/A", "upper": "", "tests": "T", "mode": "ro"}


def proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changed: str) -> str:
    facts = {**CLEAN, "upper": f"/oldroot{tmp_path}/{UPPER}", **changed}
    (tmp_path / UPPER).mkdir(exist_ok=True)
    lines = [reset._parse(line) for line in MOUNTINFO.format(**facts).splitlines()]
    monkeypatch.setattr(reset, "read_mounts", lambda pid: {line.path: line for line in lines})
    setup = Setup(1, "I", "E", ("/usr",), (), "", "", 1, 1.0)
    request = Create(1, "/workspace", ("A", "B"), (), (Mount("/tests", "T"),), Limits())
    return reset.prove(setup, lambda name: f"/L/{name}", Storage(str(tmp_path), -1), request, 0)


def test_a_clean_reset_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proved(tmp_path, monkeypatch) == proved(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "changed",
    [
        {"lower": "/oldroot/L/A:/oldroot/L/B"},
        {"lower": "/oldroot/L/B"},
        {"lower": "/oldroot/L/B:/oldroot/L/X"},
        {"upper": "/oldroot/elsewhere"},
        {"tests": "X"},
        {"mode": "rw"},
    ],
)
def test_a_dirty_reset_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]
) -> None:
    with pytest.raises(reset.DirtyReset):
        proved(tmp_path, monkeypatch, **changed)


def test_a_used_upper_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / UPPER).mkdir()
    (tmp_path / UPPER / "left").touch()
    with pytest.raises(reset.DirtyReset):
        proved(tmp_path, monkeypatch)


def test_the_image_is_looked_at_once_and_names_no_package() -> None:
    image = host_image()
    assert isinstance(image, HostImage)
    assert host_image() is image
    assert len(image.digest) == 64


def test_the_doctor_finds_this_machine_fit() -> None:
    checks = doctor.examine()
    assert [check.name for check in checks if check.is_fatal and not check.ok] == []
    assert all(check.remedy for check in checks if not check.ok)
    assert doctor.why_not() is None


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        ({"/proc/sys/user/max_user_namespaces": "0"}, "sysctl -w user.max_user_namespaces"),
        ({"/proc/sys/kernel/unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        ({"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, "apparmor_parser"),
        ({}, "seccomp"),
    ],
)
def test_each_obstacle_has_its_remedy(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], remedy: str
) -> None:
    monkeypatch.setattr(doctor, "_read", lambda path: files.get(path, ""))
    assert remedy in doctor.user_namespace_remedy("/usr/bin/bwrap", "No permissions")


async def test_without_user_namespaces_the_error_carries_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = SandboxError("no_user_namespaces", "user namespaces: refused; remedy: sysctl -w x=1")
    monkeypatch.setattr("workers.sandbox.launch._MAIN", "raise SystemExit(1)")
    monkeypatch.setattr("workers.sandbox.bubblewrap.why_not", lambda: refusal)
    backend = BubblewrapBackend(BubblewrapOptions(keepers=1))
    with pytest.raises(SandboxError, match="sysctl"):
        await backend.start()
    await backend.close()


async def test_an_empty_layer_is_enough(real: BubblewrapBackend) -> None:
    box = await real.create(SandboxSpec(layers=(EMPTY, EMPTY)))
    assert (await box.exec(Command.shell("ls -A"))).stdout == b""


def own_processes(keeper: int) -> int:
    """The keeper and what it forked to serve slots; one that ends while it is read is none."""
    count = 0
    for pid in descendants(keeper):
        try:
            count += b"keeper.zip" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return count


async def test_a_quiet_slot_with_background_processes_costs_no_process_of_ours(
    real: BubblewrapBackend,
) -> None:
    keeper = real._keepers[0].pid
    box = await real.create(SandboxSpec())
    await box.exec(Command.shell("(while :; do echo noise; date >> beat; sleep 0.05; done) & sleep 100 &"))
    for _ in range(100):
        if own_processes(keeper) == 1 + FRESH:
            break
        await asyncio.sleep(0.1)
    assert own_processes(keeper) == 1 + FRESH
    first = len(await box.read_file("beat"))
    await asyncio.sleep(0.5)
    assert len(await box.read_file("beat")) > first
    hoard = "import time; x = bytearray(700 << 20); time.sleep(100)"
    await box.exec(Command.shell(f"(sleep 4; exec python3 -c '{hoard}') >/dev/null 2>&1 &"))
    for _ in range(150):
        await asyncio.sleep(0.1)
        if (await box.exec(Command(("pgrep", "sleep")))).exit_code == 1:
            break  # the memory limit ended everything inside
    else:
        pytest.fail("the hoarder was not seen")
    await box.close()
    await settle(keeper)
