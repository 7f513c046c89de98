"""Sections of the config made into the parts that they describe."""

from __future__ import annotations

import logging

from orchestrator.config import Config, PolicyConfig, SandboxConfig
from orchestrator.players import ModelPlayers, Players, ScriptPlayers, Scripts, make_agent
from workers.agent.budget import Budget, OnMalformedCall
from workers.policy.config import Flavour, LocalPolicyConfig, OpenAIPolicyConfig
from workers.policy.factory import make_policy
from workers.policy.protocol import Sampling
from workers.sandbox.bubblewrap import BubblewrapBackend, BubblewrapOptions
from workers.sandbox.fake import FakeBackend
from workers.sandbox.protocol import SandboxBackend
from workers.trajectory import LogprobsMode

logger = logging.getLogger(__name__)
LOCAL_CONTEXT_TOKENS = 2048


def make_backend(config: SandboxConfig, run: str = "") -> SandboxBackend:
    """`run` is what containers are labelled with."""
    match config.backend:
        case "bubblewrap":
            options = BubblewrapOptions(
                keepers=config.keepers or 0, uid=config.uid, verify_every=config.verify_every
            )
            return BubblewrapBackend(options)
        case "docker":
            return _docker_backend(config, run)
        case "fake":
            return FakeBackend()


def _docker_backend(config: SandboxConfig, run: str) -> SandboxBackend:
    from workers.sandbox.docker_backend.backend import (
        DockerBackend,
        DockerOptions,
    )  # costs what others need not pay

    options = DockerOptions(url=config.engine, image=config.image, run=run)
    return DockerBackend(options, lambda name: logger.info("making container %s", name))


def make_budget(config: Config) -> Budget:
    rollout = config.rollout
    return Budget(
        max_steps=rollout.max_steps,
        max_tokens=rollout.max_tokens,
        command_timeout_s=rollout.command_timeout_s,
        policy_deadline_s=config.policy.deadline_s,
        output_limit_bytes=rollout.output_limit_bytes,
        state_limit_bytes=rollout.state_limit_bytes,
        on_malformed_call=OnMalformedCall(rollout.on_malformed_call),
    )


def make_players(config: Config, scripts: Scripts) -> Players:
    """`scripts` are those to play where the policy is `script`; empty otherwise."""
    if config.policy.kind == "script":
        return ScriptPlayers(scripts)
    rollout = config.rollout
    policy = make_policy(_policy_config(config.policy))
    sampling = Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_tokens=rollout.max_completion_tokens,
    )
    is_small = config.policy.kind == "local" and not config.policy.gguf
    return ModelPlayers(policy, make_agent(policy, rollout.scaffold, sampling, is_small))


def _policy_config(config: PolicyConfig) -> LocalPolicyConfig | OpenAIPolicyConfig:
    mode = LogprobsMode(config.logprobs_mode)
    if config.kind == "local":
        return LocalPolicyConfig(
            gguf=config.gguf,
            threads=config.threads or 0,
            parallel=config.parallel,
            context_tokens=config.context_tokens or LOCAL_CONTEXT_TOKENS,
            logprobs_mode=mode,
        )
    return OpenAIPolicyConfig(
        url=config.url,
        model=config.model,
        api_key_env=config.api_key_env,
        flavour=Flavour(config.flavour),
        tokenizer=config.tokenizer,
        context_tokens=config.context_tokens,
        logprobs_mode=mode,
        retries=config.attempts,
    )
