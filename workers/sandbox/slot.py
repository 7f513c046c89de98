"""One sandbox's place in a keeper: a size-bounded file system and a first process that only waits.

Invariants: every byte that the agent can write (/, the workspace, /tmp, /dev/shm) lies on one bounded tmpfs;
/usr, /etc and the protected mounts are read-only; a slot is handed out only after its reset was proved from
what the kernel says is mounted; ending the first process ends every other. Standard library only.

The first process is a copy of `cat` that echoes one byte when all is mounted, then waits on a socket that
never speaks again. SIGCHLD is ignored before it starts, so the kernel reaps orphans; no signal from inside reaches the
first process of a pid namespace; the copy can be run but not read, so nothing inside may trace it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workers.sandbox.marks import OPAQUE_XATTR
from workers.sandbox.messages import Create, Mount, Setup
from workers.sandbox.syscalls import MS_NODEV, MS_NOSUID, clone_mount, mount, unmount

UPPER, WORK, ROOT, SHARED, POINTS = "upper", "work", "root", "shm", "points"
HOME = "/home/agent"
AGENT_ID = "1000"
READY = b"R"
_SKELETON = (
    "home",
    "home/agent",
    "mnt",
    "opt",
    "root",
    "run",
    "srv",
    "var",
    "var/log",
    "var/cache",
    "var/lib",
)
_HIDDEN = ("/proc/cmdline", "/proc/keys", "/proc/key-users", "/proc/kcore", "/proc/timer_list")


@dataclass(frozen=True, slots=True)
class Storage:
    """A slot's tmpfs: where it is attached while bubblewrap starts, and a handle that outlives that."""

    folder: str
    handle: int


@dataclass(frozen=True, slots=True)
class Starting:
    """A bubblewrap on its way: its process, what it reports on, the first process's socket, complaints."""

    monitor: int
    status: int
    echo: socket.socket
    complaints: int


def make_storage(folder: str, request: Create) -> Storage:
    """Mount and lay out a slot's tmpfs."""
    limits = request.limits
    os.mkdir(folder, 0o755)
    options = f"size={limits.storage_mb}m,nr_inodes={limits.inodes},mode=0755"
    mount("slot", folder, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for name in (UPPER, WORK, ROOT, POINTS):
        os.mkdir(f"{folder}/{name}", 0o755)
    for name in _SKELETON:
        os.mkdir(f"{folder}/{ROOT}/{name}", 0o755)
    for name in (SHARED, f"{ROOT}/tmp", f"{ROOT}/var/tmp"):
        os.mkdir(f"{folder}/{name}")
        os.chmod(f"{folder}/{name}", 0o1777)
    _make_mount_points(f"{folder}/{POINTS}", request)
    return Storage(folder, clone_mount(folder))


def detach_storage(storage: Storage) -> None:
    """Take the tmpfs out of the keeper's own mounts: each start copies them all."""
    unmount(storage.folder)
    os.rmdir(storage.folder)


def mounts_inside(request: Create) -> Iterator[tuple[Mount, str]]:
    """The protected mounts that lie in the workspace, with their paths relative to it."""
    prefix = request.workspace_path + "/"
    for item in request.mounts:
        if item.path.startswith(prefix):
            yield item, item.path.removeprefix(prefix)


def _make_mount_points(folder: str, request: Create) -> None:
    """Opaque folders for the topmost layer, so that nothing the agent left can redirect or join a mount."""
    for _, relative in mounts_inside(request):
        os.makedirs(f"{folder}/{relative}", 0o755, exist_ok=True)
        os.setxattr(f"{folder}/{relative}", OPAQUE_XATTR, b"y")


def lower_folders(path: Callable[[str], str], storage: Storage, request: Create) -> list[str]:
    """The workspace's lower folders, the first lowest. `path` says where a layer or a sealed workspace lies."""
    lowers = [path(name) for name in (*request.layers, *request.above)]
    if any(True for _ in mounts_inside(request)):
        lowers.append(f"{storage.folder}/{POINTS}")
    return lowers


def arguments(
    bwrap: str,
    setup: Setup,
    first: str,
    path: Callable[[str], str],
    storage: Storage,
    request: Create,
    status: int,
) -> list[str]:
    """bubblewrap's command line for one slot."""
    folder = storage.folder
    line = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--disable-userns", "--uid", AGENT_ID, "--gid", AGENT_ID]
    line += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"]
    line += ["--hostname", "sandbox", "--clearenv", "--bind", f"{folder}/{ROOT}", "/"]
    for place in setup.binds:
        line += ["--ro-bind", place, place]
    for target, place in setup.links:
        line += ["--symlink", target, place]
    line += ["--ro-bind", path(setup.etc), "/etc"]
    for lower in lower_folders(path, storage, request):
        line += ["--overlay-src", lower]
    line += ["--overlay", f"{folder}/{UPPER}", f"{folder}/{WORK}", request.workspace_path]
    for item in sorted(request.mounts, key=lambda m: m.path):
        line += ["--ro-bind", path(item.layer), item.path]
    line += ["--proc", "/proc", "--dev", "/dev", "--bind", f"{folder}/{SHARED}", "/dev/shm"]
    line += ["--ro-bind", first, "/dev/.first", "--remount-ro", "/dev"]
    for place in _HIDDEN:
        if os.path.exists(place):
            line += ["--ro-bind", "/dev/null", place]
    line += ["--json-status-fd", str(status), "--chdir", "/", "--argv0", "cat", "--", "/dev/.first"]
    return line


def start(line: list[str], status_read: int, status_write: int) -> Starting:
    """Start bubblewrap. SIGCHLD is ignored around it so that the slot's first process inherits that."""
    ours, theirs = socket.socketpair()
    complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)
    ours.send(READY)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            line,
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=complaints,
            pass_fds=(status_write,),
            env={},
            close_fds=True,
        )
    finally:
        signal.signal(signal.SIGCHLD, before)
        theirs.close()
        os.close(status_write)
    process.returncode = 0  # the keeper reaps every child itself
    return Starting(process.pid, status_read, ours, complaints)
