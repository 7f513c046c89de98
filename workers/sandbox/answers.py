"""How a keeper says no. Standard library only."""

from __future__ import annotations

import errno
import socket

from workers.sandbox import wire


class Failure(Exception):
    """The keeper can't do it: the cause and detail of a SandboxError."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(cause, detail)
        self.cause = cause
        self.detail = detail


def failure(error: OSError) -> Failure:
    """What a failed system call of the keeper's means."""
    if error.errno == errno.ENOMEM:
        return Failure("host_out_of_memory", str(error))
    if error.errno == errno.ENOSPC:
        return Failure("layers_full", f"{error}: raise the keeper's layer limit or close sandboxes")
    return Failure("create_failed", str(error))


def send_failure(reply: socket.socket, error: Failure) -> None:
    """Tell the owner, if it still listens."""
    try:
        wire.send(reply, {"ok": False, "cause": error.cause, "detail": error.detail})
    except OSError:
        pass


def send_os_error(reply: socket.socket, error: OSError) -> None:
    """Tell the owner what the agent would have met."""
    try:
        wire.send(reply, {"ok": True, "errno": error.errno, "text": error.strerror or str(error)})
    except OSError:
        pass
