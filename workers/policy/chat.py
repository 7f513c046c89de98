"""Text mode: `/v1/chat/completions` of anything OpenAI-compatible. No ids, no log-probabilities.

A server that parses tool calls itself answers with `tool_calls`; they are written back into the text as
`<tool_call>{"name": …, "arguments": …}</tool_call>`, the one form that agents read, and taken out of it again
when the conversation is sent back.
"""

from __future__ import annotations

import json
import re

from workers.policy.http import Server
from workers.policy.protocol import Completion, Sampling
from workers.policy.wire import Json, as_list, as_object, as_text, first_choice
from workers.trajectory import Message

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls"}


class Chat:
    """Speaks to a chat server."""

    def __init__(self, server: Server, model: str) -> None:
        self._server = server
        self._model = model

    async def sample(
        self, messages: tuple[Message, ...], tools_json: str, sampling: Sampling, deadline_s: float
    ) -> Completion:
        body = await self._server.post(
            "/v1/chat/completions", self._request(messages, tools_json, sampling), deadline_s
        )
        choice = first_choice(body)
        message = as_object(choice.get("message"), "message")
        content = message.get("content")
        text = "" if content is None else as_text(content, "content")
        calls = message.get("tool_calls") or []
        blocks = [_block(as_object(call, "tool_calls[]")) for call in as_list(calls, "tool_calls")]
        return Completion(
            text="\n".join(part for part in (text, *blocks) if part),
            finish_reason=_FINISH.get(str(choice.get("finish_reason")), "stop"),
            request_id=str(body.get("id", "")),
            token_ids=None,
            logprobs=None,
            versions=(),
        )

    def _request(
        self, messages: tuple[Message, ...], tools_json: str, sampling: Sampling
    ) -> dict[str, object]:
        request: dict[str, object] = {
            "model": self._model,
            "messages": wire_messages(messages),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": False,
        }
        tools = json.loads(tools_json)
        optional = {
            "tools": tools or None,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
            "top_k": sampling.top_k if sampling.top_k > 0 else None,
            "min_p": sampling.min_p if sampling.min_p > 0 else None,
        }
        return {**request, **{key: value for key, value in optional.items() if value is not None}}


def wire_messages(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    """The conversation as the API wants it: calls named, each answered under its id.

    A result that answers no call, because there was none that could be read, is a user's message.
    """
    sent: list[dict[str, object]] = []
    open_calls: list[str] = []
    for message in messages:
        if message.role == "assistant":
            entry, open_calls = _assistant(message.content, len(sent))
            sent.append(entry)
        elif message.role == "tool" and open_calls:
            sent += [{"role": "tool", "tool_call_id": c, "content": message.content} for c in open_calls]
            open_calls = []
        else:
            role = "user" if message.role == "tool" else message.role
            sent.append({"role": role, "content": message.content})
    return sent


def _assistant(content: str, position: int) -> tuple[dict[str, object], list[str]]:
    calls: list[dict[str, object]] = []
    for found in _CALL.findall(content):
        function = _function(found)
        if function is not None:
            name = f"call_{position}_{len(calls)}"
            calls.append({"id": name, "type": "function", "function": function})
    if not calls:
        return {"role": "assistant", "content": content}, []
    text = _CALL.sub("", content).strip()
    entry: dict[str, object] = {"role": "assistant", "content": text, "tool_calls": calls}
    return entry, [str(call["id"]) for call in calls]


def _function(text: str) -> dict[str, object] | None:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return {"name": call["name"], "arguments": json.dumps(call.get("arguments", {}))}


def _block(call: Json) -> str:
    function = as_object(call.get("function"), "function")
    name = as_text(function.get("name"), "function.name")
    arguments = function.get("arguments", "{}")
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        value = arguments  # the agent's own malformed call, to be reported to it
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': value}, ensure_ascii=False)}\n</tool_call>"
