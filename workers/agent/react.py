"""The tool-calling scaffold: the model is shown the tools' schemas and answers with one call a turn.

Read are, in this order: what stands between `<tool_call>` and `</tool_call>`; a fenced block that holds a
JSON object; a JSON object as the whole text or at its end. Text around a call is the model's own thinking.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from workers.agent.call import schemas_json
from workers.agent.output import whole_unicode
from workers.task import PublicTask
from workers.trajectory import Message

SYSTEM = (
    "You solve tasks in a Linux sandbox by calling tools. Call one tool at a time and wait for its result. "
    "The workspace is {workspace}; commands run there. When the task is done, call submit."
)
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|<tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```(?:json|tool_call)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_MOST_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class React:
    """The scaffold for models that can call tools."""

    system: str = SYSTEM

    def opening(self, task: PublicTask) -> tuple[Message, ...]:
        system = self.system.replace("{workspace}", task.workspace_path)
        return Message("system", system), Message("user", whole_unicode(task.instruction))

    def tools_json(self, task: PublicTask) -> str:
        return schemas_json(task.tools)

    def action(self, text: str, task: PublicTask) -> str:
        return find_call(text)

    def observation(self, text: str) -> Message:
        return Message("tool", text)


def find_call(text: str) -> str:
    """The text of the call in a completion, a JSON list where there are several, else the text itself."""
    tagged: list[str] = [part.strip() for part in _TAGGED.findall(text)]
    if len(tagged) == 1:
        return tagged[0]
    if tagged:
        return json.dumps(tagged)
    fenced: str
    for fenced in _FENCED.findall(text):
        if fenced.lstrip().startswith("{"):
            return fenced.strip()
    return _trailing_object(text)


def _trailing_object(text: str) -> str:
    """A JSON object that ends the text, whatever stands before it."""
    stripped = text.strip()
    if not stripped.endswith("}"):
        return stripped
    start = stripped.find("{")
    for _ in range(_MOST_CANDIDATES):
        if start < 0:
            break
        try:
            json.loads(stripped[start:])
        except (ValueError, RecursionError):
            start = stripped.find("{", start + 1)
            continue
        return stripped[start:]
    return stripped
