"""The `host` image: this machine's /usr, read-only, with a generated /etc.

Invariants: no home, /run, /var, /opt or /sys of the host is in it; every site-packages and dist-packages folder
is masked, and so are the folders that hold this project, so that no installed package and no task set can be
read from inside. The digest is over metadata (path, type, mode, owner, size, mtime, link target) of /usr, not
over the bytes of its files: it tells two hosts apart, it doesn't prove them equal.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.archive import Archive, Entry, EntryKind, pack
from workers.errors import SandboxError

AGENT_MIN_PYTHON = (3, 9)
KEEPER_MIN_PYTHON = (3, 11)
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})
_SOURCE_FOLDERS = ("/usr/src", "/usr/local/src")
_ROOT_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_NAMES = (
    "alternatives",
    "ca-certificates.conf",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
_ETC_GENERATED = (
    ("passwd", "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
     "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"),
    ("group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("hostname", "sandbox\n"),
    ("shells", "/bin/sh\n/bin/bash\n"),
)  # fmt: skip
_SYSTEM_PYTHON = "/usr/bin/python3"
_PYTHON_PROBE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python and the folder that it needs, empty where /usr has it all."""

    executable: str
    prefix: str


@dataclass(frozen=True, slots=True)
class HostImage:
    """What keepers and slots are built from. `binds` are read-only, `links` are (target, path) at the root."""

    digest: str
    etc: Archive
    binds: tuple[str, ...]
    masks: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    agent_path: str
    keeper_python: Interpreter
    first_process: str


@functools.cache
def host_image(extra_masks: tuple[str, ...] = ()) -> HostImage:
    """Look at this machine once in a process; it takes about a second. Raises SandboxError `create_failed`."""
    agent, keeper = _interpreter(AGENT_MIN_PYTHON), _interpreter(KEEPER_MIN_PYTHON)
    first = shutil.which("cat", path="/usr/bin:/bin")
    if first is None:
        raise SandboxError("create_failed", "this machine has no `cat` in /usr/bin; install coreutils")
    etc = _etc()
    digest, packages = _survey(("/usr", *([agent.prefix] if agent.prefix else [])))
    roots = [
        f"/{name}" for name in _ROOT_NAMES if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]
    links = tuple((os.readlink(f"/{n}"), f"/{n}") for n in _ROOT_NAMES if os.path.islink(f"/{n}"))
    masks = _outermost((*packages, *_own_folders(), *_existing(_SOURCE_FOLDERS), *_existing(extra_masks)))
    total = hashlib.sha256(
        f"{digest} {etc.digest} {masks} {roots} {links}".encode("utf-8", "surrogateescape")
    )
    return HostImage(
        digest=total.hexdigest(),
        etc=etc,
        binds=("/usr", *roots, *([agent.prefix] if agent.prefix else [])),
        masks=masks,
        links=links,
        agent_path=(f"{agent.prefix}/bin:" if agent.prefix else "") + "/usr/local/bin:/usr/bin:/bin",
        keeper_python=keeper,
        first_process=os.path.realpath(first),
    )


def _interpreter(minimum: tuple[int, int]) -> Interpreter:
    """The system's Python where it is new enough, else the one that runs this."""
    if _system_python_version() >= minimum:
        return Interpreter(_SYSTEM_PYTHON, "")
    prefix = os.path.realpath(sys.base_prefix)
    executable = f"{prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return Interpreter(executable, "" if prefix.startswith("/usr") else prefix)


@functools.cache
def _system_python_version() -> tuple[int, int]:
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [_SYSTEM_PYTHON, "-I", "-S", "-c", code],
            capture_output=True, check=True, timeout=_PYTHON_PROBE_TIMEOUT_S,
        )  # fmt: skip
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, subprocess.SubprocessError, ValueError):
        return (0, 0)


def _survey(roots: tuple[str, ...]) -> tuple[str, list[str]]:
    """The metadata digest of folders, and the package folders in them."""
    digest, packages = hashlib.sha256(), []
    for root in roots:
        stack = [root]
        while stack:
            folder = stack.pop()
            for path, info in _scan(folder):
                target = os.readlink(path) if stat.S_ISLNK(info.st_mode) else ""
                size = 0 if stat.S_ISDIR(info.st_mode) else info.st_size
                line = f"{path}\0{info.st_mode:o} {info.st_uid} {info.st_gid} {size} {info.st_mtime_ns} {target}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
                if stat.S_ISDIR(info.st_mode):
                    if os.path.basename(path) in _PACKAGE_FOLDERS:
                        packages.append(path)
                    else:
                        stack.append(path)
    return digest.hexdigest(), packages


def _scan(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda e: e.name)
    except OSError:
        return  # not readable for us, so not readable from inside
    for entry in entries:
        try:
            yield entry.path, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue


def _own_folders() -> list[str]:
    """The folder that this project is imported from, where the image would show it."""
    home = str(Path(__file__).resolve().parents[2])
    return [home] if home.startswith("/usr/") else []


def _existing(paths: tuple[str, ...]) -> list[str]:
    real = (os.path.realpath(path) for path in paths)
    return [path for path in real if os.path.isdir(path) and path.startswith("/usr/")]


def _outermost(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The paths without those that lie under another."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return tuple(kept)


def _etc() -> Archive:
    entries: dict[str, Entry] = {}
    for name in _ETC_NAMES:
        for entry in _copy(f"/etc/{name}", name):
            entries[entry.path] = entry
    for name, text in _ETC_GENERATED:
        entries[name] = Entry(name, EntryKind.FILE, 0o644, data=text.encode())
    return pack(tuple(entries.values()))


def _copy(path: str, name: str) -> Iterator[Entry]:
    """What everybody may read at `path`, links as links."""
    try:
        info = os.lstat(path)
    except OSError:
        return
    if stat.S_ISLNK(info.st_mode):
        yield Entry(name, EntryKind.LINK, target=os.readlink(path))
    elif stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IROTH:
        yield Entry(name, EntryKind.FILE, 0o644, data=Path(path).read_bytes())
    elif stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_IROTH:
        yield Entry(name, EntryKind.FOLDER, 0o755)
        for child in sorted(os.listdir(path)):
            yield from _copy(f"{path}/{child}", f"{name}/{child}")
