"""The plain-text scaffold, for models too small to write calls: one completion is one action.

A task comes after a few answered ones of its kind, which show the form of an answer. The first fenced block
of the completion counts, or all of it where there is none. It becomes the body of the task's answer file
where the task names one, else a shell command. "submit" alone on the first line submits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from workers.agent.call import call_json
from workers.agent.demonstrations import demonstrations
from workers.agent.output import whole_unicode
from workers.task import PublicTask
from workers.trajectory import Message

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*(?:\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plain:
    """The scaffold for small models. `has_demonstrations` off leaves the task alone in the prompt."""

    has_demonstrations: bool = True

    def opening(self, task: PublicTask) -> tuple[Message, ...]:
        shown = demonstrations(task.answer_file) if self.has_demonstrations else ()
        return (*shown, Message("user", whole_unicode(task.instruction).rstrip()))

    def tools_json(self, task: PublicTask) -> str:
        return "[]"

    def action(self, text: str, task: PublicTask) -> str:
        if text.strip().split("\n", 1)[0].strip().lower() == "submit":
            return call_json("submit")
        body = first_block(text)
        if not body.strip():
            return ""
        if task.answer_file:
            return call_json("write_file", path=task.answer_file, content=body)
        return call_json("run", command=body)

    def observation(self, text: str) -> Message:
        return Message("user", text)


def first_block(text: str) -> str:
    """The body of the first fenced block, to the end where it is not closed; else all of the text."""
    opening = _FENCE.search(text)
    if opening is None:
        return text.strip() + "\n"
    fence, rest = opening[1], text[opening.end() :]
    closing = re.search(rf"^[ \t]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$", rest, re.MULTILINE)
    body = rest[: closing.start()] if closing else rest
    return body if body.endswith("\n") or not body else body + "\n"
