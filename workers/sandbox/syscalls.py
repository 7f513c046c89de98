"""The few Linux calls that the standard library lacks, as functions that raise OSError.

Standard library only: these run inside the keeper, whose interpreter has no site-packages.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ALL_NAMESPACES = (
    CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same numbers on every architecture
_AT_EMPTY_PATH, _MOVE_FROM_EMPTY_PATH = 0x1000, 4
_CLONE_AND_CLOEXEC = 1 | os.O_CLOEXEC
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47
_SECCOMP_MODE_FILTER, _PR_CAP_AMBIENT_CLEAR_ALL = 2, 4

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    done = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(done, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Detach a mount; what still uses it keeps it."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def clone_mount(path: str) -> int:
    """A descriptor of a detached copy of the mount at `path`: it stays readable after `path` is unmounted."""
    fd = _libc.syscall(
        ctypes.c_long(_OPEN_TREE), ctypes.c_int(-100), os.fsencode(path), ctypes.c_uint(_CLONE_AND_CLOEXEC)
    )
    _check(fd, f"open_tree {path}")
    return int(fd)


def clone_handle(handle: int) -> int:
    """A descriptor of one more detached copy of the mount behind a descriptor."""
    flags = _CLONE_AND_CLOEXEC | _AT_EMPTY_PATH
    fd = _libc.syscall(ctypes.c_long(_OPEN_TREE), ctypes.c_int(handle), b"", ctypes.c_uint(flags))
    _check(fd, "open_tree")
    return int(fd)


def attach_mount(handle: int, path: str) -> None:
    """Attach the detached mount behind a descriptor."""
    done = _libc.syscall(
        ctypes.c_long(_MOVE_MOUNT), ctypes.c_int(handle), b"", ctypes.c_int(-100), os.fsencode(path),
        ctypes.c_uint(_MOVE_FROM_EMPTY_PATH),
    )  # fmt: skip
    _check(done, f"move_mount to {path}")


def join_mount_namespace(pidfd: int) -> None:
    """Join the mount namespace of a process, in a forked child."""
    _check(_libc.setns(pidfd, CLONE_NEWNS), "setns")


def unshare(namespaces: int) -> None:
    """unshare(2) for the calling thread."""
    _check(_libc.unshare(namespaces), "unshare")


def join_namespaces(pidfd: int) -> None:
    """Join every namespace of a process; the pid namespace holds for children only."""
    _check(_libc.setns(pidfd, ALL_NAMESPACES), "setns")


def join_pid_namespace(pidfd: int) -> None:
    """Join the pid namespace of a process, for children only."""
    _check(_libc.setns(pidfd, CLONE_NEWPID), "setns")


def prctl(option: int, value: int = 0) -> None:
    """prctl(2) with one argument."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def drop_capabilities() -> None:
    """Give up every capability, now and for good."""
    _libc.prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel knows no more
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def install_filter(program: bytes) -> None:
    """Bind this process and its children to a seccomp program. Sets no_new_privs first."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    code = ctypes.create_string_buffer(program, len(program))
    descriptor = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, descriptor, 0, 0), "seccomp")


def kill_everyone(signal_number: int) -> None:
    """Signal every process of this pid namespace but its first and the caller."""
    _libc.kill(-1, signal_number)


def is_readable(fd: int, timeout_s: float = 0.0) -> bool:
    """Whether a descriptor, of whatever number, has something to read or is at its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(int(timeout_s * 1000)))


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
