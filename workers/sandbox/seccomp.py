"""The system calls that a sandbox may not make, as a classic BPF program.

Invariants: a call from another ABI kills the process; `clone3` answers ENOSYS, so that C libraries fall
back to `clone`, whose namespace flags can be seen; only UNIX, INET, INET6 and NETLINK sockets exist, since
AF_VSOCK reaches the host; memory that resident sizes don't show (memfd, System V objects) is refused.
Assembled here, so that no libseccomp is needed. Standard library only.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ABI, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32  # in struct seccomp_data
_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020080
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_SOCKET_FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK

# fcntl calls on files that all slots share or that shrink what others get: F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ
_SHARED_FILE_CALLS = (1024, 1026, 1031)
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and the same by force

# name: (x86_64, aarch64); -1 where the architecture has no such call
_DENIED = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "personality": (135, 92),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}


@dataclass(frozen=True, slots=True)
class _Machine:
    column: int
    abi: int
    clone: int
    clone3: int
    socket: int
    socketpair: int
    ioctl: int
    fcntl: int
    setsockopt: int


_MACHINES = {
    "x86_64": _Machine(
        0, 0xC000003E, clone=56, clone3=435, socket=41, socketpair=53, ioctl=16, fcntl=72, setsockopt=54
    ),
    "aarch64": _Machine(
        1, 0xC00000B7, clone=220, clone3=435, socket=198, socketpair=199, ioctl=29, fcntl=25, setsockopt=208
    ),
}


def program(machine: str = "") -> bytes:
    """The program for this machine. Raises KeyError on one that it was not written for."""
    m = _MACHINES[machine or os.uname().machine]
    code = [
        _step(_LOAD, _ABI),
        _step(_EQUAL, m.abi, skip_true=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32_BIT, skip_false=1),
        _refuse(errno.ENOSYS),
    ]
    for numbers in _DENIED.values():
        if numbers[m.column] >= 0:
            code += [_step(_EQUAL, numbers[m.column], skip_false=1), _refuse(errno.EPERM)]
    code += [_step(_EQUAL, m.clone3, skip_false=1), _refuse(errno.ENOSYS)]
    code += _when(
        m.clone,
        [
            _step(_LOAD, _FIRST_ARGUMENT),
            _step(_ANY_BIT, _NAMESPACE_FLAGS, skip_false=1),
            _refuse(errno.EPERM),
            _allow(),
        ],
    )
    for call in (m.socket, m.socketpair):
        code += _when(call, _only_first_argument(_SOCKET_FAMILIES, errno.EAFNOSUPPORT))
    code += _when(m.ioctl, _not_second_argument(_TERMINAL_INJECTION, errno.EPERM))
    code += _when(m.fcntl, _not_second_argument(_SHARED_FILE_CALLS, errno.EINVAL))
    code += _when(m.setsockopt, _ignored_sizes())
    return b"".join([*code, _allow()])


def _ignored_sizes() -> list[bytes]:
    """Say yes to a wish for larger socket buffers, and do nothing: what they hold is memory that nobody counts."""
    tests = [_step(_EQUAL, value, skip_true=len(_BUFFER_SIZES) - i) for i, value in enumerate(_BUFFER_SIZES)]
    body = [_step(_LOAD, _THIRD_ARGUMENT), *tests, _allow(), _refuse(0)]
    return [_step(_LOAD, _SECOND_ARGUMENT), _step(_EQUAL, _SOL_SOCKET, skip_true=1), _allow(), *body]


def _step(code: int, value: int, skip_true: int = 0, skip_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, skip_true, skip_false, value)


def _allow() -> bytes:
    return _step(_RETURN, _ALLOW)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)


def _when(call: int, body: list[bytes]) -> list[bytes]:
    """`body`, which must end in a return, for one call only; the call number is loaded before and after."""
    return [_step(_EQUAL, call, skip_false=len(body)), *body]


def _only_first_argument(allowed: tuple[int, ...], number: int) -> list[bytes]:
    tests = [_step(_EQUAL, value, skip_true=len(allowed) - i) for i, value in enumerate(allowed)]
    return [_step(_LOAD, _FIRST_ARGUMENT), *tests, _refuse(number), _allow()]


def _not_second_argument(denied: tuple[int, ...], number: int) -> list[bytes]:
    tests = [_step(_EQUAL, value, skip_true=len(denied) - i) for i, value in enumerate(denied)]
    return [_step(_LOAD, _SECOND_ARGUMENT), *tests, _allow(), _refuse(number)]
