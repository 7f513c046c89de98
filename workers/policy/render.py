"""Turns messages into ids by a model's chat template, so that no content can become a control token.

The template is rendered with unlikely marks in the place of contents and split at them. Its own pieces are
encoded with special tokens read, contents with special tokens spelled out. So a content keeps every blank,
also where the template would trim it. What a continuation appends is the template's text from the end of an
assistant's content to where the next assistant turn opens, less what closes the turn up to the end-of-turn
token where the model sampled that token itself.

A template that shows no tools gets them described in the system message; one that has no role for tool
results gets them as a user's message, one without a system role gets that text before the user's. Contents
are encoded apart from what stands around them, which suits byte-level vocabularies; a tokenizer that puts a
blank before every text puts one before every content too.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import jinja2
import jinja2.sandbox
import numpy as np
from numpy.typing import NDArray

from workers.errors import ConfigError
from workers.policy.protocol import Completion
from workers.policy.tokenizer import Tokenizer
from workers.trajectory import Message

_MARK = "Zq7mark{}x"
_MOST_CACHED = 1024


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja chat template with the names of the special tokens that it may print."""

    source: str
    bos_token: str = ""
    eos_token: str = ""

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """Read a Hugging Face model folder. Raises ConfigError where it has no chat template."""
        settings: dict[str, object] = {}
        try:
            if (folder / "tokenizer_config.json").is_file():
                loaded = json.loads((folder / "tokenizer_config.json").read_bytes())
                settings = loaded if isinstance(loaded, dict) else {}
            path = folder / "chat_template.jinja"
            source = (
                path.read_text("utf-8") if path.is_file() else _template_of(settings.get("chat_template"))
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder}: {error}", "give the model's own tokenizer folder") from None
        if not source:
            raise ConfigError(
                f"no chat template in {str(folder)!r}",
                "put chat_template.jinja beside tokenizer.json, or use policy.flavour=chat",
            )
        return cls(source, _token_text(settings.get("bos_token")), _token_text(settings.get("eos_token")))


class TemplateRenderer:
    """The renderer for every model whose template and tokenizer are known."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = _Rendered(template)
        self._has_system_role = self._takes(Message("system", _MARK.format(9)), _dialogue("user")[0])
        self._tool_role = "tool" if self._takes(*_dialogue("tool")) else "user"
        self._between = self._continuation_pieces()
        self._cache: dict[str, tuple[int, ...]] = {}

    @property
    def tokenizer_sha256(self) -> str:
        return self._tokenizer.sha256

    async def opening(self, messages: tuple[Message, ...], tools_json: str) -> NDArray[np.int32]:
        tools: list[object] = json.loads(tools_json)
        if tools and not self._template.shows_tools(tools):
            messages, tools = _with_described(messages, tools), []
        if not self._has_system_role:
            messages = _without_system(messages)
        marked = [Message(m.role, _MARK.format(number)) for number, m in enumerate(messages)]
        pieces = self._template.split(marked, tools, opens_turn=True)
        return await self._encode(pieces, [message.content for message in messages])

    async def continuation(self, completion: Completion, observation: Message) -> NDArray[np.int32]:
        role = self._tool_role if observation.role == "tool" else observation.role
        closing, before, after = self._between[role]
        ids = [await self._piece(closing), await self._piece(before)]
        if completion.finish_reason == "stop" and completion.token_ids is not None:
            ids[0] = _after_sampled(ids[0], int(completion.token_ids[-1]))
        ids.append(tuple(await self._tokenizer.encode(observation.content, reads_special=False)))
        ids.append(await self._piece(after))
        return np.asarray([number for part in ids for number in part], np.int32)

    async def _encode(self, pieces: list[str], contents: list[str]) -> NDArray[np.int32]:
        parts = await asyncio.gather(
            *(self._piece(piece) for piece in pieces),
            *(self._content(content) for content in contents),
        )
        fixed, free = parts[: len(pieces)], parts[len(pieces) :]
        ids = list(fixed[0])
        for content, piece in zip(free, fixed[1:], strict=True):
            ids += [*content, *piece]
        return np.asarray(ids, np.int32)

    async def _content(self, text: str) -> tuple[int, ...]:
        return tuple(await self._tokenizer.encode(text, reads_special=False)) if text else ()

    async def _piece(self, text: str) -> tuple[int, ...]:
        """A piece of the template; the same few come again and again."""
        if text not in self._cache:
            ids = tuple(await self._tokenizer.encode(text, reads_special=True)) if text else ()
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            self._cache[text] = ids
        return self._cache[text]

    def _takes(self, *messages: Message) -> bool:
        try:
            self._template.split(list(messages), [], opens_turn=True)
        except ConfigError:
            return False
        return True

    def _continuation_pieces(self) -> dict[str, tuple[str, str, str]]:
        """By role: what closes an assistant's turn, what opens the observation, what follows it."""
        between = {}
        for role in {"user", self._tool_role}:
            after_assistant, after_result = self._template.split(_dialogue(role), [], opens_turn=True)[-2:]
            closing = self._closing(after_assistant)
            between[role] = (closing, after_assistant.removeprefix(closing), after_result)
        return between

    def _closing(self, after_assistant: str) -> str:
        """What the template writes after an assistant's content that ends the conversation."""
        ended = self._template.split(_dialogue("user")[:2], [], opens_turn=False)[-1]
        shared = 0
        while shared < min(len(ended), len(after_assistant)) and ended[shared] == after_assistant[shared]:
            shared += 1
        return ended[:shared]


class _Rendered:
    """A compiled template and the splitting of what it prints."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _no_date
        environment.filters["tojson"] = _to_json
        try:
            self._compiled = environment.from_string(template.source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template can't be read: {error}", "give another template") from None

    def text(self, messages: list[Message], tools: list[object], *, opens_turn: bool) -> str:
        try:
            return self._compiled.render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                tools=tools or None,
                add_generation_prompt=opens_turn,
                bos_token=self._template.bos_token,
                eos_token=self._template.eos_token,
            )
        except Exception as error:  # a template is a program: whatever it raises is its own
            raise _refused(f"the chat template refuses these messages: {error}") from None

    def split(self, messages: list[Message], tools: list[object], *, opens_turn: bool) -> list[str]:
        """The template's own text around each content, one piece more than there are messages."""
        rest = self.text(messages, tools, opens_turn=opens_turn)
        pieces = []
        for message in messages:
            if rest.count(message.content) != 1:
                raise _refused(f"the chat template does not print each {message.role} message once, in order")
            piece, rest = rest.split(message.content)
            pieces.append(piece)
        return [*pieces, rest]

    def shows_tools(self, tools: list[object]) -> bool:
        messages = _dialogue("user")[:1]
        return self.text(messages, tools, opens_turn=True) != self.text(messages, [], opens_turn=True)


def _refused(what: str) -> ConfigError:
    return ConfigError(what, "use policy.flavour=chat, or another template")


def _dialogue(role: str) -> list[Message]:
    roles = ("user", "assistant", role)
    return [Message(name, _MARK.format(number)) for number, name in enumerate(roles)]


def _after_sampled(closing: tuple[int, ...], last: int) -> tuple[int, ...]:
    """What is left to append when the model already ended its turn with `last`."""
    return closing[closing.index(last) + 1 :] if last in closing else closing


def _with_described(messages: tuple[Message, ...], tools: list[object]) -> tuple[Message, ...]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = (
        f"You have these tools:\n<tools>\n{lines}\n</tools>\n"
        'To call one, answer with\n<tool_call>\n{"name": "<tool>", "arguments": {...}}\n</tool_call>'
    )
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{text}"), *messages[1:])
    return (Message("system", text), *messages)


def _without_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The system message put in front of the user's, for templates that have no such role."""
    if len(messages) < 2 or messages[0].role != "system":
        return messages
    first = Message(messages[1].role, f"{messages[0].content}\n\n{messages[1].content}")
    return (first, *messages[2:])


def _template_of(value: object) -> str:
    """`chat_template` is a text, or a list of named ones of which `default` is ours."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        template = named.get("default") or next(iter(named.values()), "")
        return template if isinstance(template, str) else ""
    return ""


def _token_text(value: object) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)


def _no_date(form: str) -> str:
    """Templates may print today's date; a prompt must be the same every day."""
    return "01 Jan 2025" if form == "%d %b %Y" else "2025-01-01"
