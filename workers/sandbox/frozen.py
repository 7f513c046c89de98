"""A dead slot's workspace: its upper folder as an archive, and what changed in it. Standard library only."""

from __future__ import annotations

import os
import socket

from workers.archive import pack
from workers.sandbox import wire
from workers.sandbox.changes import changes
from workers.sandbox.messages import Freeze
from workers.sandbox.slot import UPPER
from workers.sandbox.tree import TooLarge, walk


def freeze_state(request: Freeze, handle: int, lowers: list[str], reply: socket.socket) -> None:
    """Answer with the state that a slot came to rest in. `lowers` are the layers' folders, the first lowest."""
    upper = os.open(UPPER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
    try:
        tree = walk(upper, request.max_bytes)
    except TooLarge as error:
        wire.send(reply, {"ok": True, "too_large": str(error), "changes": []})
        return
    archive = pack(tree.entries)
    listed: list[wire.Json] = [change.to_json() for change in changes(tree, lowers)]
    wire.send(
        reply, {"ok": True, "too_large": "", "digest": archive.digest, "changes": listed}, (archive.data,)
    )
