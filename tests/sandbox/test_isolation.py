"""What can't be seen, reached or broken from inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.outside import keeper_inside, mounts_of
from workers.archive import Archive
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.protocol import Command, Sandbox, SandboxSpec

SOCKETS = """
import socket
for name, family, kind in (("vsock", 40, 1), ("alg", 38, 5), ("packet", 17, 3), ("unix", 1, 1), ("inet", 2, 1)):
    try:
        socket.socket(family, kind).close()
        print(name, "made")
    except OSError:
        print(name, "refused")
"""
CALLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, number in (("unshare", 272), ("mount", 165), ("bpf", 321), ("keyctl", 250), ("io_uring", 425),
                     ("userfaultfd", 323), ("memfd", 319), ("perf", 298), ("setns", 308), ("clone3", 435)):
    print(name, libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())
"""


async def run(sandbox: Sandbox, line: str) -> str:
    result = await sandbox.exec(Command.shell(line))
    return (result.stdout + result.stderr).decode()


async def test_no_home_nor_project_of_the_host_is_there(sandbox: Sandbox) -> None:
    for path in (
        str(Path.home()),
        str(Path(__file__).parents[2]),
        "/run/docker.sock",
        "/etc/shadow",
        "/sys/kernel",
    ):
        if path not in ("/", "/root"):
            assert "missing" in await run(sandbox, f"test -e '{path}' || echo missing"), path
    assert await run(sandbox, "ls -A /root /home /run /srv /opt /mnt") == (
        "/home:\nagent\n\n/mnt:\n\n/opt:\n\n/root:\n\n/run:\n\n/srv:\n"
    )


async def test_no_installed_package_can_be_read(sandbox: Sandbox) -> None:
    found = await run(
        sandbox, r"find / \( -name site-packages -o -name dist-packages \) -exec ls -A {} \; 2>/dev/null"
    )
    assert found == ""
    assert "No module" in await run(sandbox, "python3 -c 'import workers'")
    assert "No module" in await run(sandbox, "python3 -c 'import ray'")


async def test_the_standard_library_works(sandbox: Sandbox) -> None:
    names = "sqlite3, json, asyncio, ssl, ctypes, multiprocessing as m"
    line = f"python3 -c 'import {names}; print(m.Pool(2).map(abs, [-1]))'"
    assert await run(sandbox, line) == "[1]\n"


async def test_the_environment_is_clean(sandbox: Sandbox) -> None:
    names = {line.partition("=")[0] for line in (await run(sandbox, "env")).splitlines()}
    assert names <= {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "TERM",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
    }


async def test_no_descriptor_is_inherited(sandbox: Sandbox) -> None:
    result = await sandbox.exec(Command(("ls", "/proc/self/fd")))
    assert result.stdout.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls's own


async def test_only_its_own_processes_are_seen(sandbox: Sandbox) -> None:
    pids = (await run(sandbox, "ls /proc | grep '^[0-9]' | tr '\\n' ' '")).split()
    assert len(pids) <= 5
    assert "rollcage" not in await run(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


async def test_the_first_process_can_not_be_read_traced_or_killed(sandbox: Sandbox) -> None:
    trace = "python3 -c 'import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))'"
    assert await run(sandbox, trace) == "-1\n"
    assert "denied" in await run(sandbox, "cat /proc/1/maps /proc/1/environ")
    assert "denied" in await run(sandbox, "ls /proc/1/fd")
    await run(sandbox, "kill -9 1; kill -STOP 1; kill -TERM 1")
    await run(sandbox, "sleep 100 & kill -9 -1; kill -9 $$")
    assert await run(sandbox, "echo alive") == "alive\n"


async def test_proc_shows_nothing_of_the_hosts_start(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(Command.shell("cat /proc/cmdline /proc/keys"))).stdout == b""
    assert "Permission denied" in await run(sandbox, "echo 1 > /proc/sys/kernel/panic")


async def test_the_image_can_not_be_written(sandbox: Sandbox) -> None:
    for path in ("/usr/x", "/etc/x", "/dev/x", "/usr/bin/x", "/proc/x"):
        assert (await sandbox.exec(Command.shell(f"touch {path}"))).exit_code != 0, path
    found = await run(sandbox, "find /usr /etc -writable -not -type l 2>/dev/null | head -3")
    assert found == ""


async def test_the_rest_of_the_root_can(sandbox: Sandbox) -> None:
    assert (
        await run(sandbox, "mkdir -p /app /logs/verifier && touch /app/x ~/y /tmp/z && echo made") == "made\n"
    )


async def test_sockets_that_reach_the_host_are_refused(sandbox: Sandbox) -> None:
    said = await run(sandbox, f"python3 -c '{SOCKETS}'")
    assert said.split() == [
        "vsock",
        "refused",
        "alg",
        "refused",
        "packet",
        "refused",
        "unix",
        "made",
        "inet",
        "made",
    ]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the call numbers are x86_64's")
async def test_calls_for_the_host_are_refused(sandbox: Sandbox) -> None:
    said = (await run(sandbox, f"python3 -c '{CALLS}'")).splitlines()
    assert [line.split()[2] for line in said] == ["1"] * 9 + ["38"]


async def test_there_is_no_network(sandbox: Sandbox) -> None:
    line = "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'"
    assert "Network is unreachable" in await run(sandbox, line)
    assert (await run(sandbox, "cat /proc/net/dev")).count(":") == 1


async def test_loopback_works_inside(sandbox: Sandbox) -> None:
    await sandbox.exec(Command.shell("python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 &"))
    fetch = (
        "import time, urllib.request\n"
        "for _ in range(50):\n"
        "    try: print(urllib.request.urlopen('http://127.0.0.1:8123/hello.txt').read().decode()); break\n"
        "    except OSError: time.sleep(0.1)\n"
    )
    assert (await sandbox.exec(Command(("python3", "-c", fetch)))).stdout == b"hello\n\n"


async def test_privileges_can_not_be_gained(sandbox: Sandbox) -> None:
    status = await run(sandbox, "grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status")
    values = dict(line.split() for line in status.splitlines())
    assert {v for k, v in values.items() if k.startswith("Cap")} == {"0000000000000000"}
    assert values["NoNewPrivs:"] == "1"
    assert values["Seccomp:"] == "2"
    assert "not permitted" in await run(sandbox, "unshare -Ur true")
    assert (await sandbox.exec(Command.shell("mknod /tmp/n b 8 0"))).exit_code != 0
    assert "raised" not in await run(
        sandbox, "ulimit -n 100000 && echo raised; ulimit -u 10000 && echo raised"
    )


async def test_slots_do_not_share_files_or_processes(real: BubblewrapBackend, workspace: Archive) -> None:
    one, two = [await real.create(SandboxSpec(layers=(workspace,))) for _ in range(2)]
    await one.exec(
        Command.shell("sleep 50 & for d in . /tmp /dev/shm ~ /app; do mkdir -p $d; echo s > $d/mark; done")
    )
    assert await run(two, "cat mark /tmp/mark /dev/shm/mark ~/mark /app/mark 2>/dev/null; pgrep sleep") == ""
    took = "import ctypes; c = ctypes.CDLL(None); print(sum(c.inotify_init() >= 0 for _ in range(200)))"
    assert int((await one.exec(Command(("python3", "-c", took)))).stdout) < 20
    assert int((await two.exec(Command(("python3", "-c", took)))).stdout) > 10


async def test_the_keeper_holds_nothing_of_the_host_that_can_be_written(real: BubblewrapBackend) -> None:
    inner = keeper_inside(real)
    for line in mounts_of(inner):
        left, _, right = line.partition(" - ")
        path, options, kind = left.split()[4], left.split()[5].split(","), right.split()[0]
        assert "ro" in options or kind in ("tmpfs", "proc", "devpts") or path.startswith("/dev/"), line
        assert not path.startswith((f"{Path.home()}/", "/run", "/var", "/sys")), line
    if os.geteuid() == 0:
        assert _uid(inner) != 0


def _uid(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return 0
