"""How a process of the keeper gets into a slot and becomes the agent there.

Invariants: from the join to the exec it can't be traced or read from inside (not dumpable); when the agent's
code runs, it holds no capability, no descriptor but its three, no privilege to gain, and every limit is set
inside the slot's own user namespace, so that counts are the slot's and not the host user's.
Standard library only.
"""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import dataclass

from workers.sandbox import syscalls
from workers.task import Limits

CANNOT_RUN, NOT_FOUND = 126, 127
_OWN_SHARES = (("max_inotify_instances", 16), ("max_inotify_watches", 16384), ("max_fanotify_groups", 0))
_CPU_S = 3600
_DATA_HEADROOM = 2  # the sampler must see a memory bomb before the allocator refuses


@dataclass(frozen=True, slots=True)
class Entry:
    """The way into one slot."""

    pidfd: int
    limits: Limits
    filter_program: bytes


def join(entry: Entry) -> None:
    """Join the slot's namespaces. Its children, not the caller, are in the slot's pid namespace."""
    syscalls.join_namespaces(entry.pidfd)
    os.chdir("/")
    for name, value in _OWN_SHARES:  # counters that the kernel keeps for a user across all slots
        try:
            with open(f"/proc/sys/user/{name}", "w") as file:
                file.write(str(value))
        except OSError:
            pass  # a kernel without that counter


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. `open_files` and `cpu_s` lower the slot's own limits."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: str
    open_files: int | None = None
    cpu_s: int | None = None


def enter(entry: Entry, stdio: tuple[int, int, int], program: Program) -> int:
    """Join the slot and start the program in it as the agent; returns its pid."""
    join(entry)
    pid = os.fork()
    if pid == 0:
        try:
            _take_stdio(stdio)
            become_agent()
            _set_limits(entry.limits, program)
            syscalls.install_filter(entry.filter_program)
            _execute(program.argv, program.env, program.cwd)
        except BaseException as error:
            _complain(f"{type(error).__name__}: {error}")
        finally:
            os._exit(CANNOT_RUN)
    return pid


def become_agent() -> None:
    """Give up every right that the agent does not have. For a forked child that has joined the slot."""
    os.setsid()
    os.umask(0o022)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _write_oom_score()
    syscalls.drop_capabilities()


def _take_stdio(stdio: tuple[int, int, int]) -> None:
    high = [os.dup(fd) for fd in stdio]  # so that no number below is overwritten before it is used
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=True)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _write_oom_score() -> None:
    """The kernel's last resort takes the agent's processes before the keeper's."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def _set_limits(limits: Limits, program: Program) -> None:
    memory = limits.memory_mb << 20
    cpu_s = min(_CPU_S, program.cpu_s or _CPU_S)
    resource.setrlimit(
        resource.RLIMIT_CPU, (cpu_s, cpu_s + 1)
    )  # the signal that can be told, then the one that kills
    for kind, value in (
        (resource.RLIMIT_NOFILE, min(limits.open_files, program.open_files or limits.open_files)),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.storage_mb << 20),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
        (resource.RLIMIT_MSGQUEUE, 1 << 16),
        (resource.RLIMIT_DATA, memory * _DATA_HEADROOM),
        (resource.RLIMIT_NPROC, limits.pids),
    ):
        resource.setrlimit(kind, (value, value))


def _execute(argv: list[bytes], env: dict[bytes, bytes], cwd: str) -> None:
    """Become `argv[0]`, looked up on the PATH of `env`; only returns by raising or exiting."""
    os.chdir(cwd)
    name = os.fsdecode(argv[0])
    status = CANNOT_RUN
    try:
        os.execvpe(name, argv, env)
    except FileNotFoundError:
        status = NOT_FOUND
        if argv[0] == b"bash" and argv[1:2] == [b"-c"]:
            _execute([b"sh", *argv[1:]], env, cwd)
        _complain(f"{name}: command not found")
    except OSError as error:
        _complain(f"{name}: {error.strerror}")
    os._exit(status)


def _complain(text: str) -> None:
    os.write(2, f"{text}\n".encode("utf-8", "surrogateescape"))
