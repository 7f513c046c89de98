"""The five tools that an agent may be given, and how the text of one call is read.

A call is the JSON text of an object `{"name": "run", "arguments": {"command": "ls"}}`. Reading never fails
otherwise than by `MalformedCall`, whatever the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from workers.agent.output import whole_unicode


class Kind(StrEnum):
    STRING = "string"
    INTEGER = "integer"


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: Kind
    meaning: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    meaning: str
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One well-formed call. Texts hold no lone surrogates; only declared arguments are there."""

    name: str
    texts: dict[str, str]
    numbers: dict[str, int]

    @property
    def arguments_json(self) -> str:
        return json.dumps({**self.texts, **self.numbers}, ensure_ascii=False)


class MalformedCall(ValueError):
    """The text is not a call. `cause` is a short word to count, `message` tells the agent what to do."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(cause, message)
        self.cause = cause
        self.message = message


_PATH = Parameter("path", Kind.STRING, "The file's path, relative to the workspace or absolute.")
TOOLS = (
    Tool(
        "run",
        "Run a shell command in the workspace and see its output and exit code.",
        (Parameter("command", Kind.STRING, "The command line for bash."),),
    ),
    Tool(
        "read_file",
        "Read a text file.",
        (
            _PATH,
            Parameter(
                "first_line", Kind.INTEGER, "The first line to show, counted from 1.", is_required=False
            ),
            Parameter("line_count", Kind.INTEGER, "How many lines to show.", is_required=False),
        ),
    ),
    Tool(
        "write_file",
        "Write a file, replacing it if it is there and making folders on the way.",
        (_PATH, Parameter("content", Kind.STRING, "The whole content of the file.")),
    ),
    Tool(
        "edit_file",
        "Replace a passage of a file. The old text must occur exactly once.",
        (
            _PATH,
            Parameter("old", Kind.STRING, "The exact text to replace."),
            Parameter("new", Kind.STRING, "The text to put in its place."),
        ),
    ),
    Tool("submit", "Say that the task is done. Nothing can be changed afterwards."),
)
_BY_NAME = {tool.name: tool for tool in TOOLS}
_WRAPPERS = ("name", "arguments")


def schemas_json(names: tuple[str, ...]) -> str:
    """The JSON schemas of the named tools, as chat templates and servers take them."""
    return json.dumps([_schema(_BY_NAME[name]) for name in names if name in _BY_NAME], ensure_ascii=False)


def call_json(name: str, **arguments: str) -> str:
    """The text of one call."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def read_call(text: str) -> Call:
    """Read the text of one call. Raises MalformedCall."""
    value = _loads(text)
    if isinstance(value, list):
        raise MalformedCall("several_calls", "One call at a time: send one JSON object, not a list.")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MalformedCall(
            "not_a_call", 'Not a tool call: send {"name": "<tool>", "arguments": {...}} and nothing else.'
        )
    name = whole_unicode(value["name"])
    tool = _BY_NAME.get(name)
    if tool is None:
        raise MalformedCall("unknown_tool", f"There is no tool named {name[:64]!r}.")
    unknown = sorted(set(value) - set(_WRAPPERS))
    if unknown:
        raise MalformedCall("bad_arguments", f"Unknown key beside name and arguments: {unknown[0][:64]!r}.")
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):  # some models and servers give the arguments as JSON text
        arguments = _loads(arguments)
    if not isinstance(arguments, dict):
        raise MalformedCall("bad_arguments", "The arguments must be a JSON object.")
    return _checked(tool, arguments)


def _loads(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise MalformedCall("broken_json", f"The call is not valid JSON: {reason[:200]}.") from None
    return value


def _checked(tool: Tool, arguments: dict[str, object]) -> Call:
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    known = {parameter.name for parameter in tool.parameters}
    for name in arguments:
        if name not in known:
            raise MalformedCall("bad_arguments", f"{tool.name} has no argument {whole_unicode(name)[:64]!r}.")
    for parameter in tool.parameters:
        value = arguments.get(parameter.name)
        if value is None and not parameter.is_required:
            continue
        if parameter.kind is Kind.STRING and isinstance(value, str):
            texts[parameter.name] = _text(tool, parameter, value)
        elif parameter.kind is Kind.INTEGER and isinstance(value, int) and not isinstance(value, bool):
            numbers[parameter.name] = value
        else:
            what = "is missing" if parameter.name not in arguments else f"must be a {parameter.kind}"
            raise MalformedCall("bad_arguments", f"{tool.name}: the argument {parameter.name!r} {what}.")
    return Call(tool.name, texts, numbers)


def _text(tool: Tool, parameter: Parameter, value: str) -> str:
    # No program argument and no path can hold a NUL; a file's content can.
    if "\0" in value and parameter.name in ("command", "path"):
        raise MalformedCall("bad_arguments", f"{tool.name}: {parameter.name!r} holds a NUL character.")
    return whole_unicode(value)


def _schema(tool: Tool) -> dict[str, object]:
    properties = {p.name: {"type": str(p.kind), "description": p.meaning} for p in tool.parameters}
    required = [p.name for p in tool.parameters if p.is_required]
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": tool.name, "description": tool.meaning, "parameters": parameters}
    return {"type": "function", "function": function}
