"""What the keeper's forked children do in a slot: commands and single files. Standard library only."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

from workers.sandbox import files, syscalls, wire
from workers.sandbox.answers import send_os_error
from workers.sandbox.inside import Entry, Program, become_agent, join
from workers.sandbox.messages import Exec, Read, Write
from workers.sandbox.supervisor import Supervisor


def run_command(entry: Entry, request: Exec, blobs: tuple[bytes, ...], reply: socket.socket) -> None:
    """Run one command, answer, then guard what it left in the background."""
    stdin, words = blobs
    parts = words.split(b"\0")
    argv, pairs = parts[: request.argument_count], parts[request.argument_count :]
    env = {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}
    supervisor = Supervisor(request, entry.limits.memory_mb << 20, reply.fileno())
    program = Program(argv, env, request.cwd, request.open_files, request.cpu_s)
    outcome = supervisor.run(entry, program, stdin)
    head: dict[str, wire.Json] = {
        "ok": True,
        "code": os.waitstatus_to_exitcode(outcome.wait_status),
        "limit": outcome.limit,
        "dropped": outcome.dropped_bytes,
        "duration_s": outcome.duration_s,
    }
    try:
        wire.send(reply, head, (outcome.stdout, outcome.stderr))
    except OSError:
        pass  # nobody waits for it any more
    reply.close()
    supervisor.guard()


def run_file_read(entry: Entry, request: Read, reply: socket.socket) -> None:
    """Answer with the body of a file, as the agent would read it."""

    def work() -> None:
        wire.send(reply, {"ok": True}, (files.read(request.path, request.max_bytes),))

    _as_agent(entry, request.timeout_s, reply, work)


def run_file_write(entry: Entry, request: Write, data: bytes, reply: socket.socket) -> None:
    """Write the body of a file, as the agent would."""

    def work() -> None:
        files.write(request.path, data)
        wire.send(reply, {"ok": True})

    _as_agent(entry, request.timeout_s, reply, work)


def _as_agent(entry: Entry, timeout_s: float, reply: socket.socket, work: Callable[[], None]) -> None:
    """Do `work` in a child that has become the agent; an OSError of it is the agent's, not the host's."""
    join(entry)
    child = os.fork()
    if child == 0:
        try:
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
            become_agent()
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            work()
        except OSError as error:
            send_os_error(reply, error)
        finally:
            os._exit(0)
    pidfd = os.pidfd_open(child)
    if not syscalls.is_readable(pidfd, timeout_s):
        os.kill(child, signal.SIGKILL)
        send_os_error(reply, TimeoutError(110, f"took longer than {timeout_s} s"))
    os.waitpid(child, 0)
