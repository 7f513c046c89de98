"""Small real HTTP servers on loopback that answer as vLLM, SGLang and chat servers do."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Reply:
    """`body` is sent as JSON, or as it is where it is bytes."""

    body: object = None
    status: int = 200
    delay_s: float = 0.0


@dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, object]
    headers: dict[str, str]


@dataclass
class Replay:
    """`routes` maps "METHOD /path" to a reply, a list of replies one after another, or a function."""

    routes: dict[str, Reply | list[Reply] | Callable[[dict[str, object]], Reply]]
    url: str = ""
    requests: list[Request] = field(default_factory=list)

    def answer(self, method: str, path: str, body: dict[str, object]) -> Reply:
        route = self.routes.get(f"{method} {path}", Reply({"detail": "Not Found"}, 404))
        if callable(route):
            return route(body)
        if isinstance(route, list):
            return route.pop(0) if len(route) > 1 else route[0]
        return route

    def sent(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]


@contextmanager
def serve(replay: Replay) -> Iterator[Replay]:
    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def do_GET(self) -> None:
            self._reply("GET", {})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self._reply("POST", json.loads(self.rfile.read(length)))

        def _reply(self, method: str, body: dict[str, object]) -> None:
            replay.requests.append(Request(self.path, body, dict(self.headers.items())))
            reply = replay.answer(method, self.path, body)
            time.sleep(reply.delay_s)
            data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            try:
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # the client did not wait

        def log_message(self, format: str, *args: object) -> None:
            return None

    class LocalServer(ThreadingHTTPServer):
        daemon_threads = True

    server = LocalServer(("127.0.0.1", 0), Handler)
    replay.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield replay
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for connection in connections:
            with contextlib.suppress(OSError):  # the client may have gone first
                connection.shutdown(socket.SHUT_RDWR)


def models(owner: str, **extra: object) -> Reply:
    entry = {"id": "org/model", "object": "model", "owned_by": owner, "max_model_len": 4096, **extra}
    return Reply({"object": "list", "data": [entry]})


def vllm_answer(ids: list[int], **changes: object) -> Reply:
    """The shape of vLLM 0.33's `/v1/completions`."""
    choice = {
        "index": 0,
        "text": "<text>",
        "logprobs": {
            "text_offset": list(range(len(ids))),
            "token_logprobs": [-0.25 * (at + 1) for at in range(len(ids))],
            "tokens": ["x"] * len(ids),
            "top_logprobs": [{"x": -0.25}] * len(ids),
        },
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": ids,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "weight_versions": [{"version": "3", "start": 0, "end": len(ids)}],
        **changes,
    }
    return Reply(
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": "org/model",
            "choices": [choice],
            "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2},
        }
    )


def sglang_answer(ids: list[int], prompt_tokens: int, **changes: object) -> Reply:
    """The shape of SGLang 0.5.23's `/generate`."""
    meta = {
        "id": "rid-1",
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": prompt_tokens,
        "weight_version": "default",
        "weight_versions": [{"version": "5", "start": 0, "end": len(ids)}],
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "output_token_logprobs": [[-0.5 * (at + 1), number, None] for at, number in enumerate(ids)],
        "e2e_latency": 0.1,
        **changes,
    }
    return Reply({"text": "<text>", "output_ids": ids, "meta_info": meta})


def chat_answer(content: str | None, calls: list[object] | None = None, finish: str = "stop") -> Reply:
    message: dict[str, object] = {"role": "assistant", "content": content}
    if calls is not None:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return Reply({"id": "chat-1", "object": "chat.completion", "choices": [choice]})
