"""How a process of the keeper gets into a slot, and how it starts the agent's programs there.

Invariants: from the join on it can't be traced or read from inside (not dumpable, in no pid namespace of the
slot's), and holds no capability, no privilege to gain and the agent's seccomp filter, so that what it starts needs
no step between fork and exec: `vfork` costs a tenth of a fork of this interpreter. Every limit is set inside the
slot's own user namespace, so that counts are the slot's and not the host user's. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace

from workers.sandbox import syscalls
from workers.task import Limits

CANNOT_RUN, NOT_FOUND = 126, 127
_OWN_SHARES = (("max_inotify_instances", 16), ("max_inotify_watches", 16384), ("max_fanotify_groups", 0))
_CPU_S = 3600
_DATA_HEADROOM = 2  # the sampler must see a memory bomb before the allocator refuses
_RESERVED_PROCESSES = 4  # so that the owner's next command gets in where the agent's have used up theirs
_MIN_FILES = 128
_START_FILES, _START_DATA = (20, 20), (64 << 20, 64 << 20)  # what a start itself needs
_BORN_WITH = (resource.RLIMIT_NPROC, resource.RLIMIT_DATA, resource.RLIMIT_NOFILE)


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. `open_files` and `cpu_s` lower the slot's own limits."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: str
    open_files: int | None = None
    cpu_s: int | None = None


class NotStarted(Exception):
    """A program that the agent could not have started either: the shell's exit code and words for that."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)
        self.code = code
        self.why = why


def join(pidfd: int) -> None:
    """Join the slot's namespaces. Children, not the caller, are in the slot's pid namespace."""
    syscalls.join_namespaces(pidfd)
    os.chdir("/")
    for name, value in _OWN_SHARES:  # counters that the kernel keeps for a user across all slots
        try:
            with open(f"/proc/sys/user/{name}", "w") as file:
                file.write(str(value))
        except OSError:
            pass  # a kernel without that counter


def become_agent(limits: Limits, filter_program: bytes) -> None:
    """Give up every right that the agent does not have, for good."""
    os.umask(0o022)
    for number in (signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # a write past the limit is an error; programs get the default
    storage_bytes = limits.storage_mb << 20
    for kind, value in (
        (resource.RLIMIT_NOFILE, max(limits.open_files, _MIN_FILES)),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, storage_bytes),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
        (resource.RLIMIT_MSGQUEUE, 1 << 16),
        (resource.RLIMIT_NPROC, limits.pids + _RESERVED_PROCESSES),
    ):
        resource.setrlimit(kind, (value, value))
    syscalls.drop_capabilities()
    syscalls.install_filter(filter_program)


def spawn(program: Program, limits: Limits, stdio: tuple[int, int, int]) -> int:
    """Start a program in the joined slot; returns its pid. Raises NotStarted.

    Every descriptor of ours closes itself on exec, and exec takes no capability along, so there is nothing more to
    give up. Limits that are lower than ours are taken on for the moment of the start and fixed on the program then.
    """
    try:
        with _lowered(program, limits):
            pid = _start(program, stdio)
    except BlockingIOError:  # the agent's processes have used up theirs: ours has a few more
        pid = _start(program, stdio)
    try:
        for kind, (soft, hard) in _lower(program, limits).items():
            resource.prlimit(pid, kind, (soft, hard))
    except ProcessLookupError:
        pass  # it has ended already
    return pid


def _start(program: Program, stdio: tuple[int, int, int]) -> int:
    argv = program.argv
    try:
        process = subprocess.Popen(
            argv, stdin=stdio[0], stdout=stdio[1], stderr=stdio[2], cwd=program.cwd, env=program.env,
            start_new_session=True, close_fds=False, restore_signals=True,
        )  # fmt: skip
    except FileNotFoundError as error:
        if error.filename == program.cwd:
            raise NotStarted(CANNOT_RUN, f"{program.cwd}: {error.strerror}") from error
        if argv[0] == b"bash" and argv[1:2] == [b"-c"]:
            return _start(replace(program, argv=[b"sh", *argv[1:]]), stdio)
        raise NotStarted(NOT_FOUND, f"{os.fsdecode(argv[0])}: command not found") from error
    except BlockingIOError:
        raise
    except (OSError, ValueError) as error:
        raise NotStarted(
            CANNOT_RUN, f"{os.fsdecode(argv[0])}: {getattr(error, 'strerror', error)}"
        ) from error
    process.returncode = 0  # reaped by whoever watches it
    return process.pid


def _lower(program: Program, limits: Limits) -> dict[int, tuple[int, int]]:
    """Limits that would harm an attendant if it kept them: soft, then hard."""
    cpu_s = min(_CPU_S, program.cpu_s or _CPU_S)
    files = min(limits.open_files, program.open_files or limits.open_files)
    data_bytes = (limits.memory_mb << 20) * _DATA_HEADROOM
    return {
        resource.RLIMIT_NPROC: (limits.pids, limits.pids),
        resource.RLIMIT_DATA: (data_bytes, data_bytes),
        resource.RLIMIT_NOFILE: (files, files),
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),  # the signal that can be told, then the one that kills
    }


@contextlib.contextmanager
def _lowered(program: Program, limits: Limits) -> Iterator[None]:
    """Ours as the program's for the moment, so that it is born with them; not the time that we have used ourselves."""
    before = {kind: resource.getrlimit(kind) for kind in _BORN_WITH}
    lower = _lower(program, limits)
    lower[resource.RLIMIT_NOFILE] = max(lower[resource.RLIMIT_NOFILE], _START_FILES)
    lower[resource.RLIMIT_DATA] = max(lower[resource.RLIMIT_DATA], _START_DATA)
    try:
        for kind, (_, hard) in before.items():
            resource.setrlimit(kind, (lower[kind][0], hard))
        yield
    finally:
        for kind, limit in before.items():
            resource.setrlimit(kind, limit)
