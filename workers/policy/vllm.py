"""vLLM in token mode: `/v1/completions` with ids in, `return_token_ids` and log-probabilities out.

Defaults of the model's generation config would change the distribution, so every sampling parameter is sent.
Versions come as `weight_versions` (vLLM ≥ 0.33) where the trainer labels its weights with numbers, or from
`/weight_info` where the server runs in development mode.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.errors import PolicyError
from workers.policy.http import Server
from workers.policy.protocol import Completion, Sampling
from workers.policy.wire import (
    Json,
    as_ids,
    as_list,
    as_logprobs,
    as_object,
    as_text,
    bad,
    first_choice,
    version_number,
    version_spans,
)

_VERSION_DEADLINE_S = 2.0
_FINISH = frozenset({"stop", "length", "abort"})


class Vllm:
    """The dialect of vLLM's OpenAI server."""

    def __init__(self, server: Server, model: str) -> None:
        self._server = server
        self._model = model
        self._reports_version = True

    async def sample(
        self,
        prompt_ids: NDArray[np.int32],
        sampling: Sampling,
        session: str,
        deadline_s: float,
        version: int,
    ) -> Completion:
        body = await self._server.post(
            "/v1/completions",
            self._request(prompt_ids, sampling),
            deadline_s,
            headers={"X-Session-ID": session.encode("ascii", "replace").decode()},
        )
        choice = first_choice(body)
        prompt = choice.get("prompt_token_ids")
        if prompt is not None and as_list(prompt, "prompt_token_ids") != prompt_ids.tolist():
            raise bad("the server read another prompt than was sent")
        finish = as_text(choice.get("finish_reason"), "finish_reason")
        if finish not in _FINISH:
            raise bad(f"finish_reason {finish!r}")
        ids = _ids(choice, finish)
        return Completion(
            text=as_text(choice.get("text"), "text"),
            finish_reason=finish,
            request_id=str(body.get("id", "")),
            token_ids=ids,
            logprobs=_logprobs(choice, len(ids)),
            versions=version_spans(choice.get("weight_versions"), len(ids), version),
        )

    async def version(self) -> int | None:
        if not self._reports_version:
            return None
        try:
            body = await self._server.get("/weight_info", _VERSION_DEADLINE_S)
        except PolicyError as error:
            if error.cause != "endpoint_error":
                raise
            self._reports_version = False  # the route exists in development mode only
            return None
        return version_number(body.get("weight_version"))

    def _request(self, prompt_ids: NDArray[np.int32], sampling: Sampling) -> dict[str, object]:
        return {
            "model": self._model,
            "prompt": prompt_ids.tolist(),
            "n": 1,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else -1,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": sampling.seed,
            "logprobs": 0,  # the sampled token's own, no alternatives
            "return_token_ids": True,
            "return_weight_versions": True,
            "stream": False,
        }


def _ids(choice: Json, finish: str) -> NDArray[np.int32]:
    value = choice.get("token_ids")
    if value is None:
        raise bad("the server gives no token ids: vLLM ≥ 0.12 is needed, or policy.flavour=chat")
    if finish == "abort" and value == []:
        return np.empty(0, np.int32)
    return as_ids(value, "token_ids")


def _logprobs(choice: Json, count: int) -> NDArray[np.float32]:
    if count == 0:
        return np.empty(0, np.float32)
    logprobs = choice.get("logprobs")
    if logprobs is None:
        raise PolicyError("no_logprobs", "the server gave no log-probabilities")
    values = as_object(logprobs, "logprobs").get("token_logprobs")
    return as_logprobs(as_list(values, "token_logprobs"), count)
