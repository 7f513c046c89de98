"""SGLang in token mode: `/generate` with `input_ids`, ids and log-probabilities in `meta_info`.

SGLang's log-probabilities are of the distribution after the temperature and before top-p, top-k and min-p,
unless the server was started to return the original ones: at temperature 1 with nothing cut off, which `raw`
demands, the two are the same. `processed` with something cut off is refused, since they would not be those of
what was sampled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.errors import ConfigError, PolicyError
from workers.policy.config import is_uncut
from workers.policy.http import Server
from workers.policy.protocol import Completion, Sampling, VersionSpan
from workers.policy.wire import (
    Json,
    as_ids,
    as_int,
    as_list,
    as_logprobs,
    as_object,
    as_text,
    bad,
    version_number,
    version_spans,
)

_VERSION_DEADLINE_S = 2.0
_FINISH = frozenset({"stop", "length", "abort"})


class SgLang:
    """The dialect of SGLang's own route."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def sample(
        self,
        prompt_ids: NDArray[np.int32],
        sampling: Sampling,
        session: str,
        deadline_s: float,
        version: int,
    ) -> Completion:
        if not is_uncut(sampling):
            raise ConfigError(
                "SGLang's log-probabilities leave top_p, top_k and min_p out", "set top_p=1 top_k=0 min_p=0"
            )
        body = await self._server.post(
            "/generate",
            _request(prompt_ids, sampling),
            deadline_s,
            headers={"X-SMG-Routing-Key": session.encode("ascii", "replace").decode()},
        )
        meta = as_object(body.get("meta_info"), "meta_info")
        if as_int(meta.get("prompt_tokens"), "prompt_tokens") != len(prompt_ids):
            raise bad(f"the server read {meta.get('prompt_tokens')} of {len(prompt_ids)} prompt tokens")
        finish = as_text(
            as_object(meta.get("finish_reason"), "finish_reason").get("type"), "finish_reason.type"
        )
        if finish not in _FINISH:
            raise bad(f"finish_reason {finish!r}")
        ids, logprobs = _sampled(meta, finish)
        return Completion(
            text=as_text(body.get("text"), "text"),
            finish_reason=finish,
            request_id=str(meta.get("id", "")),
            token_ids=ids,
            logprobs=logprobs,
            versions=_versions(meta, len(ids), version),
        )

    async def version(self) -> int | None:
        try:
            body = await self._server.get("/model_info", _VERSION_DEADLINE_S)
        except PolicyError as error:
            if error.cause != "endpoint_error":
                raise
            return None
        return version_number(body.get("weight_version"))


def _request(prompt_ids: NDArray[np.int32], sampling: Sampling) -> dict[str, object]:
    params: dict[str, object] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed % (1 << 31)
    return {
        "input_ids": prompt_ids.tolist(),
        "sampling_params": params,
        "return_logprob": True,
        "stream": False,
    }


def _sampled(meta: Json, finish: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and log-probabilities stand together in one list of (log-probability, id, text)."""
    listed = meta.get("output_token_logprobs")
    if listed is None or (listed == [] and meta.get("completion_tokens")):
        raise PolicyError("no_logprobs", "the server gave no log-probabilities")
    entries = [
        as_list(entry, "output_token_logprobs[]") for entry in as_list(listed, "output_token_logprobs")
    ]
    if not entries and finish == "abort":
        return np.empty(0, np.int32), np.empty(0, np.float32)
    if any(len(entry) < 2 for entry in entries):
        raise bad("an entry of output_token_logprobs is too short")
    ids = as_ids([entry[1] for entry in entries], "output_token_logprobs")
    return ids, as_logprobs([entry[0] for entry in entries], len(ids))


def _versions(meta: Json, count: int, version: int) -> tuple[VersionSpan, ...]:
    number = version_number(meta.get("weight_version"))
    return version_spans(meta.get("weight_versions"), count, version if number is None else number)
