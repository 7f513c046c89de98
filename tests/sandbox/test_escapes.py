"""Attempts to see or touch what is not the sandbox's: secrets with names and words that change with the seed.

Each secret is planted outside where a careless wall would show it, then looked for from inside by every way that
leads there; what is asserted is that its word never comes back.
"""

from __future__ import annotations

import os
import random
import socket
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.archive import Archive, Entry, EntryKind, pack
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.protocol import Command, ReadOnlyMount, Sandbox, SandboxSpec

SEEDS = range(3)


@pytest.fixture(params=SEEDS)
def chance(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{request.param} {os.environ.get('PYTEST_SEED', '')}")


def word(chance: random.Random, length: int = 12) -> str:
    return "".join(chance.choices(string.ascii_lowercase, k=length))


@pytest.fixture
def planted(
    chance: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, list[Path]]]:
    """A word in files of the host and in this process's environment."""
    secret = word(chance, 20)
    folders = [tmp_path / word(chance) / word(chance), Path("/dev/shm"), Path("/tmp")]
    files = []
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f".{word(chance)}"
        file.write_text(secret)
        files.append(file)
    monkeypatch.setenv(word(chance).upper(), secret)
    os.environ[f"X_{word(chance)}"] = secret
    yield secret, files
    for file in files:
        file.unlink()
    for name in [name for name, value in os.environ.items() if value == secret]:
        del os.environ[name]


async def said(sandbox: Sandbox, line: str) -> str:
    result = await sandbox.exec(Command.shell(line, timeout_s=40))
    return (result.stdout + result.stderr).decode("utf-8", "replace")


async def test_no_file_of_the_host_is_reached_by_any_way(
    real: BubblewrapBackend, planted: tuple[str, list[Path]], chance: random.Random
) -> None:
    secret, files = planted
    sandbox = await real.create(SandboxSpec())
    ways = [
        "",
        "/proc/self/root",
        "/proc/1/root",
        "/proc/1/cwd",
        "/proc/self/cwd/../../../../..",
        "/oldroot",
        "/newroot",
        "/proc/self/fd/0/../../../..",
        "/rollcage",
        "/p",
        "/proc/self/task/self/root",
    ]
    chance.shuffle(ways)
    for file in files:
        for way in ways:
            assert secret not in await said(sandbox, f"cat '{way}{file}'; ln -sf '{way}{file}' l; cat l")
    assert secret not in await said(
        sandbox, "grep -rl . /proc/*/environ /proc/*/cmdline 2>/dev/null | xargs cat"
    )
    assert secret not in await said(
        sandbox,
        "for p in /proc/[0-9]*; do cat $p/environ $p/maps $p/root/proc/self/environ; ls -l $p/fd; done",
    )
    found = await said(sandbox, f"find / -name '{files[0].name}' -o -name '{files[2].name}' 2>/dev/null")
    assert found == ""
    with pytest.raises(OSError):
        await sandbox.read_file(str(files[2]))


async def test_a_link_that_leads_out_shows_the_host_nothing_either(
    real: BubblewrapBackend, planted: tuple[str, list[Path]], chance: random.Random
) -> None:
    secret, files = planted
    sandbox = await real.create(SandboxSpec())
    name = word(chance)
    for file in files:
        up = "../" * chance.randrange(2, 9)
        await said(
            sandbox, f"ln -sfn {file} {name}; ln -sfn {file.parent} d{name}; ln -sfn {up}{file} u{name}"
        )
        for path in (name, f"d{name}/{file.name}", f"u{name}"):
            with pytest.raises((OSError, ValueError)):
                assert secret.encode() not in await sandbox.read_file(path)
    state = await sandbox.freeze()
    assert state.archive is not None
    assert secret.encode() not in state.archive.data
    assert all(secret not in change.text for change in state.changes)


async def test_no_socket_of_the_host_is_reached(real: BubblewrapBackend, chance: random.Random) -> None:
    sandbox, name = await real.create(SandboxSpec()), word(chance)
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as server:
        abstract.bind(f"\0{name}")
        abstract.listen()
        port = server.getsockname()[1]
        tries = [
            f"s(socket.AF_UNIX).connect('\\0{name}')",
            *(f"s(socket.AF_UNIX).connect('{path}')" for path in ("/var/run/docker.sock", "/run/docker.sock",
                                                                 "/run/dbus/system_bus_socket")),
            *(f"s(socket.AF_INET).connect(('{host}', {port}))" for host in ("127.0.0.1", "172.17.0.1", "0.0.0.0")),
            "s(socket.AF_INET).connect(('169.254.169.254', 80))",
            "s(socket.AF_INET6).connect(('fd00:ec2::254', 80))",
            *(f"s(socket.AF_INET).connect(('127.0.0.1', {p}))" for p in (6379, 8265, 10001, 6380)),
            f"s(40).connect((2, {port}))",
            f"s(40).connect((1, {port}))",
        ]  # fmt: skip
        chance.shuffle(tries)
        code = "import socket\ndef s(f):\n    x = socket.socket(f); x.settimeout(3); return x\n" + "".join(
            f"try:\n    {line}\n    print('reached', {line!r})\nexcept OSError: pass\n" for line in tries
        )
        result = await sandbox.exec(Command(("python3", "-c", code), timeout_s=60))
    assert (result.exit_code, result.stdout) == (0, b""), result.stderr


async def test_another_sandbox_shares_nothing(
    real: BubblewrapBackend, chance: random.Random, workspace: Archive
) -> None:
    secret, name = word(chance, 20), word(chance)
    one, two = [await real.create(SandboxSpec(layers=(workspace,))) for _ in range(2)]
    places = [".", "/tmp", "/dev/shm", "/home/agent", f"/{word(chance)}", "/var/tmp"]
    for place in places:
        await said(one, f"mkdir -p {place}; echo {secret} > {place}/{name}")
    keep = f"import time, os, socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0{name}'); s.listen(); {secret} = 1"
    await one.exec(Command.shell(f'SECRET={secret} python3 -c "{keep}; time.sleep(60)" >/dev/null 2>&1 &'))
    for place in places:
        assert secret not in await said(two, f"cat {place}/{name}")
    assert secret not in await said(
        two, "cat /proc/*/environ /proc/*/cmdline; ls -lR /proc/*/fd /tmp /dev/shm"
    )
    assert name not in await said(two, "cat /proc/net/unix; ipcs -a")
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
    assert "refused" in await said(two, f'python3 -c "{connect}"')
    assert secret in await said(one, f"cat /tmp/{name}")


async def test_protected_files_are_nowhere_but_where_they_are_shown(
    real: BubblewrapBackend, chance: random.Random, workspace: Archive
) -> None:
    secret, place, name = word(chance, 20), f"/{word(chance)}", word(chance)
    tests = ReadOnlyMount(place, pack((Entry(name, EntryKind.FILE, data=secret.encode()),)))
    judge = await real.create(SandboxSpec(layers=(workspace,), read_only=(tests,)))
    agent = await real.create(SandboxSpec(layers=(workspace,)))
    assert secret in await said(judge, f"cat {place}/{name}")
    for line in (
        f"cat {place}/{name}",
        f"find / -name {name} 2>/dev/null",
        f"grep -r {secret} /tmp /home /mnt /opt /var /run",
    ):
        assert secret not in await said(agent, line)
        assert name not in (await said(agent, line)).replace(f"{place}/{name}", "")
    assert "Read-only" in await said(judge, f"echo x > {place}/{name}")
    assert (await judge.exec(Command.shell(f"rm -rf {place}; mv {place} /x; rmdir {place}"))).exit_code != 0


def installed_packages() -> list[Path]:
    return sorted(p for p in Path(pytest.__file__).parents[1].iterdir() if (p / "__init__.py").exists())


async def test_no_installed_package_can_be_read(real: BubblewrapBackend, chance: random.Random) -> None:
    sandbox = await real.create(SandboxSpec())
    for package in chance.sample(installed_packages(), 5):
        assert "shown" not in await said(sandbox, f"test -e '{package}' && echo shown")
        assert (await sandbox.exec(Command(("python3", "-c", f"import {package.name}")))).exit_code != 0 or (
            "site-packages"
            not in await said(sandbox, f"python3 -c 'import {package.name} as p; print(p.__file__)'")
        )
    for name in ("workers", "orchestrator", "ray"):
        assert "No module" in await said(sandbox, f"python3 -c 'import {name}'")
    assert await said(sandbox, f"ls '{Path(__file__).parents[2]}' 2>/dev/null") == ""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the call numbers are x86_64's")
async def test_no_call_changes_the_walls(real: BubblewrapBackend, chance: random.Random) -> None:
    sandbox = await real.create(SandboxSpec())
    calls = {
        "unshare user": (272, 0x10000000),
        "unshare mount": (272, 0x20000),
        "unshare net": (272, 0x40000000),
        "clone user": (56, 0x10000011, 0, 0, 0, 0),
        "setns": (308, 0, 0),
        "mount": (165, b"none", b"/mnt", b"tmpfs", 0, 0),
        "umount": (166, b"/workspace", 2),
        "pivot_root": (155, b"/tmp", b"/tmp"),
        "chroot": (161, b"/tmp"),
        "open_tree": (428, -100, b"/", 1),
        "move_mount": (429, 0, b"", -100, b"/mnt", 4),
        "fsopen": (430, b"tmpfs", 0),
        "ptrace first": (101, 16, 1, 0, 0),
        "ptrace seize": (101, 0x4206, 1, 0, 0),
        "kexec": (246, 0, 0, 0, 0),
        "bpf": (321, 0, 0, 0),
        "keyctl": (250, 0, -3, 1),
        "add_key": (248, b"user", b"x", b"y", 1, -3),
        "open_by_handle": (304, 0, 0, 0),
        "perf": (298, 0, 0, -1, -1, 0),
        "userfaultfd": (323, 0),
        "io_uring": (425, 1, 0),
        "pidfd_getfd": (438, 0, 0, 0),
        "init_module": (175, 0, 0, b""),
        "swapon": (167, b"/tmp", 0),
        "settime": (227, 0, 0),
        "setuid": (105, 0),
        "setgroups": (116, 0, 0),
        "mknod": (133, b"/tmp/sda", 0o60666, 0x800),
        "mknod char": (133, b"m", 0o20666, 0x101),
    }
    names = sorted(calls)
    chance.shuffle(names)
    code = "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n" + "".join(
        f"r = c.syscall({', '.join(map(repr, calls[name]))})\nif r == 0 and {name!r} == 'clone user': os._exit(9)\n"
        f"if r >= 0: print('allowed', {name!r}, r)\n"
        for name in names
    )
    assert await said(sandbox, f"cat > probe.py <<'END'\n{code}\nEND\npython3 probe.py") == ""
