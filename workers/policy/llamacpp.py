"""llama.cpp's server in token mode: `/completion` with ids in, ids and log-probabilities out.

As measured: `tokens` holds the end-of-turn token where one was sampled; `completion_probabilities` has
entries of the model's own distribution (temperature 1) whatever is sampled from, or with
`post_sampling_probs` of the distribution sampled from, but none for a token that ends inside a character: that
one is asked for again. A stop string cuts tokens off, so none is ever sent. Every sampler that a model file
may set is set explicitly.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.errors import PolicyError
from workers.policy.config import is_uncut
from workers.policy.gguf import GgufTokenizer
from workers.policy.http import Server
from workers.policy.protocol import Completion, Sampling, VersionSpan
from workers.policy.render import ChatTemplate
from workers.policy.rescore import certain_matches, logprob_of
from workers.policy.tokenizer import any_of, apart
from workers.policy.wire import Json, as_ids, as_int, as_list, as_logprobs, as_object, as_text, bad
from workers.trajectory import LogprobsMode

_TOKENIZE_DEADLINE_S = 30.0
_PROBE = "The quick brown fox: 12345 äöü 日本語 🙂\n\t  x"
_LIKELIEST, _EVERY_TOKEN = 256, 1 << 20
_FORCING_BIAS = 1e5
_MOST_IN_A_CHARACTER = 4
_FINISH = {"eos": "stop", "limit": "length"}
_NEUTRAL: dict[str, object] = {
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
    "logit_bias": [],
    "ignore_eos": False,
}


class LlamaCpp:
    """The dialect of llama.cpp's server. It reports no version."""

    def __init__(self, server: Server, mode: LogprobsMode) -> None:
        self._server = server
        self._is_processed = mode is LogprobsMode.PROCESSED

    async def sample(
        self,
        prompt_ids: NDArray[np.int32],
        sampling: Sampling,
        session: str,
        deadline_s: float,
        version: int,
    ) -> Completion:
        ends = time.monotonic() + deadline_s
        body = await self._server.post("/completion", self._request(prompt_ids, sampling), deadline_s)
        if as_int(body.get("tokens_evaluated"), "tokens_evaluated") != len(prompt_ids):
            raise bad(f"the server read {body.get('tokens_evaluated')} of {len(prompt_ids)} prompt tokens")
        finish = _FINISH.get(as_text(body.get("stop_type"), "stop_type"))
        if finish is None:
            raise bad(f"stop_type {body.get('stop_type')!r}")
        ids = as_ids(body.get("tokens"), "tokens")
        logprobs = self._logprobs(body, ids)
        for at, value in enumerate(logprobs):
            if value is None:
                before = np.concatenate((prompt_ids, ids[:at]))
                logprobs[at] = await self._again(before, int(ids[at]), sampling, ends - time.monotonic())
        return Completion(
            text=as_text(body.get("content"), "content"),
            finish_reason=finish,
            request_id=str(body.get("id_slot", "")),
            token_ids=ids,
            logprobs=as_logprobs(logprobs, len(ids)),
            versions=(VersionSpan(0, len(ids), version),),
        )

    async def version(self) -> int | None:
        return None

    def _request(self, prompt_ids: NDArray[np.int32], sampling: Sampling) -> dict[str, object]:
        chain = ["temperature"] if is_uncut(sampling) else ["top_k", "top_p", "min_p", "temperature"]
        return {
            **_NEUTRAL,
            "prompt": prompt_ids.tolist(),
            "n_predict": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": max(sampling.top_k, 0),
            "min_p": sampling.min_p,
            "samplers": chain,
            "seed": -1 if sampling.seed is None else sampling.seed % (1 << 32),
            "n_probs": 1,
            "post_sampling_probs": self._is_processed,
            "return_tokens": True,
            "cache_prompt": True,
            "stream": False,
        }

    def _logprobs(self, body: Json, ids: NDArray[np.int32]) -> list[object]:
        """What the server gave for each token, None where it left one out."""
        listed = body.get("completion_probabilities")
        if not isinstance(listed, list) or not listed:
            # A short completion that is inside a character all the way has no entry at all.
            if len(ids) > _MOST_IN_A_CHARACTER:
                raise PolicyError("no_logprobs", "the server gave no log-probabilities")
            return [None] * len(ids)
        entries = [as_object(entry, "completion_probabilities[]") for entry in listed]
        matches = certain_matches(ids.tolist(), [as_int(entry.get("id"), "id") for entry in entries])
        if matches is None:
            raise PolicyError("no_logprobs", "the log-probabilities are of other tokens")
        return [None if match is None else self._logprob(entries[match]) for match in matches]

    def _logprob(self, entry: Json) -> object:
        if not self._is_processed:
            return entry.get("logprob")
        probability = entry.get("prob")
        if isinstance(probability, int | float) and probability > 0:
            return math.log(probability)
        raise PolicyError("no_logprobs", "a sampled token has no probability")

    async def _again(self, before: NDArray[np.int32], token: int, sampling: Sampling, left_s: float) -> float:
        """Ask for the distribution after `before`, forcing a whole character, for which entries are given."""
        whole = (await _tokenize(self._server, "a", reads_special=False))[0]
        for count in (_EVERY_TOKEN,) if self._is_processed else (_LIKELIEST, _EVERY_TOKEN):
            request = {
                **self._request(before, Sampling(temperature=0.0, max_tokens=1)),
                "samplers": ["temperature"],
                "logit_bias": [[whole, _FORCING_BIAS]],
                "n_probs": count,
                "post_sampling_probs": False,
            }
            body = await self._server.post("/completion", request, max(left_s, 0.001))
            listed = as_list(body.get("completion_probabilities"), "completion_probabilities")
            top = as_list(
                as_object(listed[0] if listed else None, "entry").get("top_logprobs"), "top_logprobs"
            )
            pairs = [(entry.get("id"), entry.get("logprob")) for entry in top if isinstance(entry, dict)]
            if self._is_processed:
                ids = np.asarray([pair[0] for pair in pairs], np.int64)
                return logprob_of(token, ids, np.asarray([pair[1] for pair in pairs], np.float64), sampling)
            found = [logprob for number, logprob in pairs if number == token]
            if found and isinstance(found[0], float | int):
                return float(found[0])
        raise PolicyError("no_logprobs", f"the server shows no log-probability of the sampled token {token}")


class ServerTokenizer:
    """llama.cpp's `/tokenize`. Without the model's file the special tokens are not known by name: then only
    control tokens are sure to be spelled out, and the digest is over what the server shows of itself."""

    def __init__(self, server: Server, sha256: str, special: Sequence[str]) -> None:
        self._server = server
        self._sha256 = sha256
        self._spelling = any_of(special)

    @property
    def sha256(self) -> str:
        return self._sha256

    async def encode(self, text: str, *, reads_special: bool) -> list[int]:
        if reads_special:
            return await _tokenize(self._server, text, reads_special=True)
        pieces = apart(text, self._spelling)
        parts = await asyncio.gather(*(_tokenize(self._server, p, reads_special=False) for p in pieces))
        return [number for part in parts for number in part]


async def open_tokenizer(server: Server, props: Json, known: GgufTokenizer | None) -> ServerTokenizer:
    if known is not None:
        return ServerTokenizer(server, known.sha256, [text for _, text in known.special])
    probe = await _tokenize(server, _PROBE, reads_special=True)
    shown = repr((props.get("chat_template"), props.get("bos_token"), props.get("eos_token"), probe))
    return ServerTokenizer(server, hashlib.sha256(shown.encode()).hexdigest(), [])


def template_of(props: Json) -> ChatTemplate:
    return ChatTemplate(
        as_text(props.get("chat_template"), "chat_template"),
        as_text(props.get("bos_token", ""), "bos_token"),
        as_text(props.get("eos_token", ""), "eos_token"),
    )


def context_of(props: Json) -> int:
    settings = as_object(props.get("default_generation_settings"), "default_generation_settings")
    return as_int(settings.get("n_ctx"), "n_ctx")


async def _tokenize(server: Server, text: str, *, reads_special: bool) -> list[int]:
    if not text:
        return []
    request = {"content": text, "parse_special": reads_special, "add_special": False}
    body = await server.post("/tokenize", request, _TOKENIZE_DEADLINE_S)
    return [as_int(number, "tokens[]") for number in as_list(body.get("tokens"), "tokens")]
