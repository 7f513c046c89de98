"""What only containers promise: walls, limits by cgroup, images of their own, and an end with their owner."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.sandbox.docker_engine import IMAGE, containers, docker, make_backend, volumes
from workers.archive import Archive, Entry, EntryKind, pack, unpack
from workers.errors import SandboxError, Unsupported
from workers.sandbox.docker_backend import sweep
from workers.sandbox.docker_backend.backend import DockerBackend, DockerOptions
from workers.sandbox.docker_backend.build import build, phase
from workers.sandbox.docker_backend.engine import Engine
from workers.sandbox.docker_backend.owner import OWNER, RUN, is_dead, labels
from workers.sandbox.docker_backend.proof import differences
from workers.sandbox.protocol import Bound, Command, ReadOnlyMount, Sandbox, SandboxSpec
from workers.sandbox.warm import WarmOptions
from workers.task import Limits

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]

SMALL = Limits(memory_mb=128, storage_mb=32, inodes=2000, pids=32)
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
async def dock() -> AsyncIterator[DockerBackend]:
    backend = make_backend()
    await backend.start()
    yield backend
    await backend.close()
    assert containers() == set()
    assert volumes() == set()


@pytest.fixture
async def box(dock: DockerBackend, workspace: Archive) -> Sandbox:
    return await dock.create(SandboxSpec(layers=(workspace,), limits=SMALL))


async def told(sandbox: Sandbox, line: str, timeout_s: float = 15) -> str:
    return (await sandbox.exec(Command.shell(line, timeout_s))).stdout.decode("utf-8", "replace").strip()


async def until(holds: Callable[[], bool], timeout_s: float = 15) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if await asyncio.to_thread(holds):
            return True
        await asyncio.sleep(0.1)
    return False


async def test_the_agent_has_no_rights_and_no_network(box: Sandbox) -> None:
    assert await told(box, "id -u; id -g") == "1000\n1000"
    assert set((await told(box, "grep -E 'CapEff|CapPrm|CapInh' /proc/self/status | cut -f2")).split()) == {
        "0" * 16
    }
    assert await told(box, "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | cut -f2") == "1\n2"
    assert await told(box, "ls /sys/class/net") == "lo"
    assert await told(box, "ls -la / | grep -c docker.sock; find /run /var/run/ -name '*.sock'") == "0"


@pytest.mark.parametrize("family", [40, 17, 38])  # VSOCK, PACKET, ALG
async def test_sockets_that_leave_the_network_namespace_are_refused(box: Sandbox, family: int) -> None:
    code = f"import socket\ntry: socket.socket({family}, socket.SOCK_STREAM)\nexcept OSError as e: print(e.errno)"
    assert (await box.exec(Command(("python3", "-c", code)))).stdout.strip() in (b"97", b"1")


async def test_nothing_of_the_image_can_be_written(box: Sandbox) -> None:
    line = "find / -xdev -writable -not -path '/proc/*' ! -type l 2>/dev/null | head"
    assert set((await told(box, line)).split()) == {"/tmp", "/var/tmp", "/home/agent", "/workspace"}
    assert await told(
        box, "touch /usr/x /etc/x /x; unshare -U true || echo no; mount -t tmpfs x /tmp || echo no"
    ) == ("no\nno")


async def test_the_container_is_what_was_asked_for(box: Sandbox) -> None:
    (identity,) = containers()
    facts = json.loads(docker("inspect", identity))[0]
    host = facts["HostConfig"]
    assert facts["Config"]["Labels"][OWNER].split()[0] == str(os.getpid())
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["AutoRemove"]) == ("none", True, True)
    assert (host["CapDrop"], host["Privileged"]) == (["ALL"], False)
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["Memory"] == host["MemorySwap"] == (128 + 32) << 20
    assert host["Binds"] is None


async def test_the_name_is_recorded_before_the_container_exists() -> None:
    seen: list[tuple[str, str]] = []

    def record(name: str) -> None:
        seen.append((name, docker("ps", "--all", "--quiet", "--filter", f"name={name}")))

    backend = DockerBackend(DockerOptions(image=IMAGE, run="a-run", warm=WarmOptions(high=0)), record)
    await backend.start()
    await backend.create(SandboxSpec())
    named = docker("ps", "--format", "{{.Names}}", "--filter", f"label={RUN}=a-run")
    await backend.close()
    assert {found for _, found in seen} == {""}
    assert named == seen[-1][0]


async def test_a_memory_bomb_is_ended_and_told_from_an_exit_code(box: Sandbox) -> None:
    result = await box.exec(Command(("python3", "-c", "x = bytearray(600 << 20)"), timeout_s=20))
    assert (result.oom_killed, result.timed_out, result.exit_code, result.signal) == (True, False, 137, 9)
    shared = "import mmap\nm = mmap.mmap(-1, 600 << 20)\nfor i in range(0, 600 << 20, 4096): m[i] = 1"
    assert (await box.exec(Command(("python3", "-c", shared), timeout_s=20))).oom_killed
    assert not (await box.exec(Command.shell("exit 137"))).oom_killed
    assert await told(box, "echo fine") == "fine"


async def test_a_fork_bomb_stays_inside_and_is_noticed(box: Sandbox) -> None:
    result = await box.exec(Command.shell("b() { b | b & }; b; sleep 1", timeout_s=4))
    assert Bound.PIDS in result.bounds_met
    assert (await box.exec(Command.shell("sleep 60", timeout_s=0.2))).duration_s < 5
    assert await told(box, "echo fine") == "fine"


@pytest.mark.parametrize("place", [".", "/tmp", "/dev/shm"])
async def test_a_disk_bomb_meets_the_end_of_its_disk(box: Sandbox, place: str) -> None:
    line = f"cd {place}; for i in 1 2 3; do head -c 20M /dev/zero > bomb$i || echo full; done"
    result = await box.exec(Command.shell(line, timeout_s=20))
    assert b"full" in result.stdout or result.oom_killed
    assert b"No space" in result.stderr or result.oom_killed
    full = await box.exec(Command.shell("head -c 50M /dev/zero > bomb", timeout_s=20))
    assert Bound.DISK in full.bounds_met
    await box.exec(Command.shell(f"rm -f {place}/bomb* bomb*"))
    assert await told(box, "echo fine") == "fine"


async def test_an_inode_bomb_meets_its_bound(box: Sandbox) -> None:
    code = "import os\nfor i in range(5000): os.close(os.open(f'f{i}', os.O_CREAT))"
    result = await box.exec(Command(("python3", "-c", code), timeout_s=20))
    assert b"No space left" in result.stderr
    assert result.bounds_met == (Bound.INODES,)


async def test_neither_killing_everything_nor_many_orphans_end_the_sandbox(box: Sandbox) -> None:
    for line in (
        "kill -9 -1",
        "kill -TERM 1; kill -9 1",
        "for i in $(seq 200); do (sleep 0.01 &) ; done; sleep 0.3",
    ):
        await box.exec(Command.shell(line, timeout_s=10))
    assert await told(box, "ps() { ls /proc | grep -c '^[0-9]'; }; sleep 0.3; ps; echo fine") != ""
    assert (await told(box, "echo fine")) == "fine"
    assert int(await told(box, "ls /proc | grep -c '^[0-9]*$'")) < 12


async def test_a_late_command_takes_its_children_with_it(box: Sandbox) -> None:
    result = await box.exec(Command.shell("trap '' TERM; setsid sleep 99 & sleep 98", timeout_s=0.5))
    assert result.timed_out
    assert await told(box, "cat /proc/*/cmdline | tr '\\0' ' ' | grep -c 'sleep 9[89]'; true") in ("0", "1")
    assert (
        await told(box, "for f in /proc/[0-9]*/comm; do read -r c <$f; [ $c = sleep ] && echo left; done")
        == ""
    )


async def test_cancelling_a_command_ends_it(box: Sandbox) -> None:
    running = asyncio.create_task(box.exec(Command.shell("sleep 77", timeout_s=60)))
    await asyncio.sleep(0.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (
        await told(box, "for f in /proc/[0-9]*/comm; do read -r c <$f; [ $c = sleep ] && echo left; done")
        == ""
    )


async def test_protected_files_belong_to_nobody_inside(dock: DockerBackend, workspace: Archive) -> None:
    tests = pack((Entry("t/check.py", EntryKind.FILE, data=b"secret"),))
    mounts = (ReadOnlyMount("/workspace/tests", tests), ReadOnlyMount("/verifier", tests))
    sandbox = await dock.create(SandboxSpec(layers=(workspace,), read_only=mounts))
    line = "for d in /verifier tests; do echo x > $d/t/check.py || echo no; rm -rf $d/t; mv $d gone || echo no; done"
    assert await told(sandbox, f"{{ {line}; }} 2>/dev/null; cat /verifier/t/check.py tests/t/check.py") == (
        "no\nno\nno\nno\nsecretsecret"
    )


async def test_odd_files_are_read_without_following_them(box: Sandbox) -> None:
    code = (
        "import os, socket\n"
        "os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('sock'); os.link('hello.txt', 'hard')\n"
        "os.symlink('/etc/passwd', 'out'); os.symlink('/', 'root'); os.mkdir('shut', 0)\n"
        "open('closed', 'w').write('c'); os.chmod('closed', 0); open('set', 'w'); os.chmod('set', 0o4755)\n"
        "open(b'bad\\xff\\n', 'w').write('b'); open('n' * 250, 'w')\n"
    )
    assert (await box.exec(Command(("python3", "-c", code)))).exit_code == 0
    state = await box.freeze()
    assert state.archive is not None
    entries = {entry.path: entry for entry in unpack(state.archive)}
    assert set(entries) == {"hard", "out", "root", "shut", "closed", "set", "bad\udcff\n", "n" * 250}
    assert entries["hard"].data == b"hello\n"
    assert entries["out"].target == "/etc/passwd"
    assert (entries["set"].mode, entries["closed"].data) == (0o755, b"c")
    assert "fifo" in {change.path for change in state.changes}


async def test_a_sparse_giant_is_too_large(dock: DockerBackend) -> None:
    sandbox = await dock.create(SandboxSpec(limits=Limits(storage_mb=200)))
    await sandbox.exec(Command.shell("truncate -s 190M giant"))
    state = await sandbox.freeze(max_bytes=1 << 20)
    assert (state.archive, "bytes" in state.too_large) == (None, True)


async def test_creating_is_cancelled_without_a_trace(dock: DockerBackend, workspace: Archive) -> None:
    for delay_s in (0.0, 0.01, 0.03, 0.06, 0.1, 0.2):
        making = asyncio.create_task(dock.create(SandboxSpec(layers=(workspace,))))
        await asyncio.sleep(delay_s)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
    await dock.close()
    assert await until(lambda: containers() | volumes() == set())


OWNER_CODE = """
import asyncio
from tests.sandbox.docker_engine import make_backend
from workers.sandbox.docker_backend.owner import OWNER, labels
from workers.sandbox.protocol import Command, SandboxSpec

async def main():
    backend = make_backend()
    await backend.start()
    boxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(3)))
    await asyncio.gather(*(box.exec(Command.shell("sleep 4321 & (setsid sleep 4321 &)")) for box in boxes))
    print(labels("")[OWNER], flush=True)
    await asyncio.gather(*(box.exec(Command.shell("exec sleep 4321", timeout_s=900)) for box in boxes))

asyncio.run(main())
"""


async def test_killing_the_owner_leaves_no_container_and_no_volume() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        OWNER_CODE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert owner.stdout is not None
    label = (await owner.stdout.readline()).decode().strip()
    assert len(containers(label)) == 3
    owner.kill()
    await owner.wait()
    assert await until(lambda: containers(label) | volumes(label) == set())


BUSY_CODE = """
import asyncio
from tests.sandbox.docker_engine import make_backend
from workers.sandbox.docker_backend.owner import OWNER, labels
from workers.sandbox.protocol import Command, SandboxSpec

async def work(backend):
    while True:
        box = await backend.create(SandboxSpec())
        await box.exec(Command.shell("sleep 4321 & echo x > file"))
        await box.snapshot()
        await box.freeze()
        await box.close()

async def main():
    backend = make_backend()
    print(labels("")[OWNER], flush=True)
    await backend.start()
    await asyncio.gather(work(backend), work(backend))

asyncio.run(main())
"""
STORM = int(os.environ.get("DOCKER_STORM", "6"))


async def kill_one(delay_s: float) -> str:
    """Start an owner that makes and removes containers all the time, kill it, and give its label."""
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        BUSY_CODE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert owner.stdout is not None
    label = (await owner.stdout.readline()).decode().strip()
    await asyncio.sleep(delay_s)
    owner.kill()
    await owner.wait()
    return label


@pytest.mark.timeout(60 + 10 * STORM)
async def test_owners_killed_at_random_points_leave_nothing() -> None:
    chance = random.Random(7)
    dead = [await kill_one(chance.uniform(0.05, 1.5)) for _ in range(STORM)]

    def left() -> set[str]:
        return {name for label in dead for name in containers(label) | volumes(label)}

    if not await until(lambda: left() == set()):  # the engine missed a death: that is what the sweep is for
        backend = make_backend()
        await backend.start()
        await backend.close()
    assert left() == set()


def owner_label_of_the_dead() -> str:
    code = "from workers.sandbox.docker_backend.owner import OWNER, labels; print(labels('')[OWNER])"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    ).stdout.strip()


async def test_what_a_dead_owner_left_is_swept_at_start() -> None:
    dead = await asyncio.to_thread(owner_label_of_the_dead)
    elsewhere = " ".join([*labels("")[OWNER].split()[:3], "1"])
    mine = labels("")[OWNER]
    made = [docker("create", "--label", f"{OWNER}={who}", IMAGE, "true") for who in (dead, elsewhere, mine)]
    backend = make_backend()
    await backend.start()
    there = docker("ps", "--all", "--quiet", "--no-trunc").split()
    left = {identity for identity in made if identity in there}
    await backend.close()
    docker("rm", "--force", *left)
    assert left == set(made[1:])


async def test_a_living_backend_sweeps_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_EVERY_S", 0.2)
    dead = await asyncio.to_thread(owner_label_of_the_dead)
    backend = make_backend()
    await backend.start()
    docker("create", "--label", f"{OWNER}={dead}", IMAGE, "true")
    docker("volume", "create", "--label", f"{OWNER}={dead}")
    assert await until(lambda: containers(dead) | volumes(dead) == set())
    await backend.close()


def test_an_owner_is_known_by_more_than_its_pid() -> None:
    pid, started, boot, namespace = labels("")[OWNER].split()
    assert not is_dead({OWNER: f"{pid} {started} {boot} {namespace}"})
    assert is_dead({OWNER: f"{pid} {int(started) + 1} {boot} {namespace}"})
    assert is_dead({OWNER: f"{pid} {started} another-boot {namespace}"})
    assert not is_dead({OWNER: f"1 2 {boot} 3"})
    assert not is_dead({OWNER: "nonsense"})
    assert not is_dead({})


async def test_a_task_image_is_built_and_its_own_files_are_the_lowest_layer(
    dock: DockerBackend, tmp_path: Path, workspace: Archive
) -> None:
    (tmp_path / "seed.txt").write_text("from the image\n")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {IMAGE}\nENV PATH=/opt/tool:/usr/bin:/bin\nWORKDIR /app\nCOPY seed.txt hello.txt ./\nUSER 1234\n"
    )
    (tmp_path / "hello.txt").write_text("hidden\n")
    image = f"dockerfile:{os.getpid():064x}"
    engine = Engine("", 1, 120)
    try:
        assert build(engine, tmp_path, image, 120).startswith("sha256:")
    finally:
        engine.close()
    try:
        sandbox = await dock.create(SandboxSpec(image=image, workspace_path="/app", layers=(workspace,)))
        assert await told(sandbox, "id -u; echo $PATH; cat seed.txt hello.txt; echo more >> seed.txt") == (
            "1234\n/opt/tool:/usr/bin:/bin\nfrom the image\nhello"
        )
        state = await sandbox.freeze()
        assert [(change.path, change.kind.value) for change in state.changes] == [("seed.txt", "changed")]
    finally:
        await dock.close()
        docker("rmi", "--force", f"rollcage-task:{os.getpid():064x}")


@pytest.mark.parametrize(
    ("dockerfile", "told_phase"),
    [
        (f"FROM {IMAGE}\nRUN echo going && exit 3\n", "step 2 of 2 (RUN echo going && exit 3)"),
        (f"FROM {IMAGE}\nCOPY nothing .\n", "step 2 of 2 (COPY nothing .)"),
        ("FROM localhost:1/no/such:image\n", "fetching the base image (FROM localhost:1/no/such:image)"),
        ("NONSENSE\n", "before the first step"),
        (None, "before the first step"),
    ],
)
def test_a_build_that_fails_names_its_phase(tmp_path: Path, dockerfile: str | None, told_phase: str) -> None:
    if dockerfile is not None:
        (tmp_path / "Dockerfile").write_text(dockerfile)
    engine = Engine("", 1, 60)
    try:
        with pytest.raises(SandboxError) as failed:
            build(engine, tmp_path, "dockerfile:feed", 60)
    finally:
        engine.close()
    assert failed.value.cause == "image_build_failed"
    assert failed.value.detail.startswith(told_phase)


def test_the_phase_is_the_last_step_named() -> None:
    assert phase(["Step 1/2 : FROM a", "Step 2/2 : RUN b", " ---> Running in x"]) == "step 2 of 2 (RUN b)"


async def test_what_can_not_be_had_is_refused(dock: DockerBackend) -> None:
    with pytest.raises(Unsupported):
        await dock.create(SandboxSpec(limits=Limits(allow_internet=True)))
    with pytest.raises(Unsupported):
        await dock.create(SandboxSpec(image="compose:0"))
    with pytest.raises(SandboxError, match="image_missing"):
        await dock.create(SandboxSpec(image="docker:localhost:1/no/such:image"))
    with pytest.raises(SandboxError, match="image_missing"):
        await dock.create(SandboxSpec(image="dockerfile:0"))


async def test_a_container_made_ahead_of_need_is_fresh_and_one_that_died_is_not_handed_out() -> None:
    backend, spec = make_backend(warm=2), SandboxSpec()
    await backend.start()
    await backend.prewarm(spec)
    ready = containers()
    assert len(ready) == 2
    started = time.monotonic()
    one = await backend.create(spec)
    assert time.monotonic() - started < 0.1
    assert await told(one, "ls; echo dirt > dirt") == ""
    await backend.prewarm(spec)
    docker("rm", "--force", "--volumes", *(ready & containers()))
    other = await backend.create(spec)
    assert await told(other, "ls; echo fine") == "fine"
    await backend.close()
    assert containers() | volumes() == set()


async def test_no_engine_is_one_error_with_the_remedy(tmp_path: Path) -> None:
    backend = DockerBackend(DockerOptions(url=f"unix://{tmp_path}/none.sock"))
    with pytest.raises(SandboxError, match="start dockerd"):
        await backend.start()
    await backend.close()
    with pytest.raises(SandboxError):
        await backend.create(SandboxSpec())


async def test_a_container_that_is_taken_away_is_a_sandbox_that_died(box: Sandbox) -> None:
    docker("rm", "--force", "--volumes", *containers())
    with pytest.raises(SandboxError, match="sandbox_died"):
        await box.exec(Command(("true",)))
    await box.close()


async def test_what_a_container_stands_on_is_proved_on_demand(
    dock: DockerBackend, workspace: Archive
) -> None:
    tests = pack((Entry("check.py", EntryKind.FILE, data=b"secret"),))
    sandbox = await dock.create(
        SandboxSpec(layers=(workspace,), read_only=(ReadOnlyMount("/verifier", tests),))
    )
    await sandbox.exec(Command.shell("echo dirt > hello.txt; touch /tmp/x; mkdir /workspace/more"))
    await sandbox.verify()
    (container,) = containers()
    docker("exec", "--user", "0", container, "sh", "-c", "echo changed > /verifier/check.py")
    with pytest.raises(SandboxError, match=r"dirty_reset.*/verifier"):
        await sandbox.verify()


def test_a_changed_image_is_seen_at_every_kind_of_name() -> None:
    spec = SandboxSpec()
    image = {"usr": "folder 0 a", "usr/bin/x": "file 9 b", "etc/hosts": "file 7 c"}
    laid = {
        **image,
        "workspace": "folder 0 d",
        "home": "folder 0 e",
        "home/agent": "folder 0 e",
        ".dockerenv": "file 0 f",
    }
    assert differences(spec, image, {**laid, "etc/hosts": "file 0 g", "dev/console": "file 0 h"}) == []
    for path, value in (
        ("usr/bin/x", "file 9 other"), ("usr/bin/new", "file 0 i"), ("etc/hosts", "file 5 j"), ("usr", "folder 0 k"),
        ("workspace", "file 0 l"),
    ):  # fmt: skip
        assert differences(spec, image, {**laid, path: value}) == [path]
    assert differences(spec, image, {key: value for key, value in laid.items() if key != "usr/bin/x"}) == [
        "usr/bin/x"
    ]
