"""Opens the way to a server that somebody else runs: finds out what it is and what it can do.

Which server it is tells `owned_by` in its list of models. What can't be done is refused at the start, with
what to do instead, and never silently done another way.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from workers.errors import ConfigError
from workers.policy.chat import Chat
from workers.policy.config import Flavour, OpenAIPolicyConfig
from workers.policy.dialect import Dialect
from workers.policy.http import Endpoint, Server
from workers.policy.llamacpp import LlamaCpp, context_of, open_tokenizer, template_of
from workers.policy.protocol import Sampling
from workers.policy.render import ChatTemplate, TemplateRenderer
from workers.policy.served import Connection, TokenMode
from workers.policy.sglang import SgLang
from workers.policy.tokenizer import FolderTokenizer
from workers.policy.vllm import Vllm
from workers.policy.wire import Json, as_list, as_object
from workers.trajectory import LogprobsMode

UNKNOWN_CONTEXT_TOKENS = 1 << 30
_OWNERS = {"llamacpp": Flavour.LLAMACPP, "vllm": Flavour.VLLM, "sglang": Flavour.SGLANG}


@asynccontextmanager
async def open_remote(config: OpenAIPolicyConfig) -> AsyncIterator[Connection]:
    """Raises PolicyError where the server does not answer as it must, ConfigError where more must be said."""
    async with Server(_endpoint(config)) as server:
        model = await _model(server, config)
        flavour = config.flavour
        if flavour is Flavour.AUTO:
            flavour = _OWNERS.get(str(model.get("owned_by", "")).lower(), Flavour.CHAT)
        name = config.model or str(model.get("id", ""))
        match flavour:
            case Flavour.LLAMACPP:
                yield await _llamacpp(server, config)
            case Flavour.VLLM:
                dialect = Vllm(server, name)
                if config.logprobs_mode is LogprobsMode.PROCESSED:
                    await _check_processed(dialect, config)
                yield _with_tokenizer(dialect, config, model)
            case Flavour.SGLANG:
                yield _with_tokenizer(SgLang(server), config, model)
            case _:
                yield Connection(Chat(server, name), config.context_tokens or UNKNOWN_CONTEXT_TOKENS)


def _endpoint(config: OpenAIPolicyConfig) -> Endpoint:
    url = config.url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"policy.url = {config.url!r} is no URL", "give one like http://host:8000/v1")
    key = os.environ.get(config.api_key_env, "") if config.api_key_env else ""
    return Endpoint(url, key, config.retries, config.connect_timeout_s)


async def _model(server: Server, config: OpenAIPolicyConfig) -> Json:
    """The entry of the model that is asked for, or of the first where none is."""
    body = await server.get("/v1/models", config.start_timeout_s)
    entries = [as_object(entry, "data[]") for entry in as_list(body.get("data"), "data")]
    named = [entry for entry in entries if entry.get("id") == config.model] if config.model else entries
    if named:
        return named[0]
    # llama.cpp serves its one model under any name.
    if entries and str(entries[0].get("owned_by", "")) == "llamacpp":
        return entries[0]
    names = ", ".join(sorted(str(entry.get("id")) for entry in entries)[:20]) or "none"
    raise ConfigError(f"the server has no model {config.model!r}; it has: {names}", "set policy.model to one")


async def _llamacpp(server: Server, config: OpenAIPolicyConfig) -> Connection:
    props = await server.get("/props", config.start_timeout_s)
    renderer = TemplateRenderer(template_of(props), await open_tokenizer(server, props, None))
    mode = TokenMode(LlamaCpp(server, config.logprobs_mode), renderer)
    return Connection(mode, config.context_tokens or context_of(props))


def _with_tokenizer(dialect: Dialect, config: OpenAIPolicyConfig, model: Json) -> Connection:
    if not config.tokenizer:
        raise ConfigError(
            "token-exact episodes need the model's tokenizer, which this server does not give",
            "set policy.tokenizer to a folder with its tokenizer.json and chat template, "
            "or policy.flavour=chat to go without tokens",
        )
    folder = Path(config.tokenizer)
    folder = folder.parent if folder.is_file() else folder
    renderer = TemplateRenderer(ChatTemplate.from_folder(folder), FolderTokenizer(folder))
    reported = model.get("max_model_len")
    context = config.context_tokens or (reported if isinstance(reported, int) else 0)
    if context <= 0:
        raise ConfigError("the server does not say how long its context is", "set policy.context_tokens")
    return Connection(TokenMode(dialect, renderer), context)


async def _check_processed(dialect: Vllm, config: OpenAIPolicyConfig) -> None:
    """With only the likeliest token left, its processed log-probability is 0; the raw one is not."""
    probe = Sampling(temperature=2.0, top_k=1, max_tokens=4, seed=0)
    completion = await dialect.sample(
        np.asarray([0, 1, 2, 3], np.int32), probe, "probe", config.start_timeout_s, config.version
    )
    if completion.logprobs is not None and bool(np.any(completion.logprobs < -1e-3)):
        raise ConfigError(
            "policy.logprobs_mode=processed, but the server gives raw log-probabilities",
            "start vLLM with --logprobs-mode processed_logprobs",
        )
