"""Makes policies from their configuration."""

from __future__ import annotations

from functools import partial

from workers.policy.config import LocalPolicyConfig, PolicyConfig
from workers.policy.local import open_local
from workers.policy.remote import open_remote
from workers.policy.served import ServedPolicy

LOCAL = LocalPolicyConfig()


def make_policy(config: PolicyConfig = LOCAL) -> ServedPolicy:
    """A policy that is not started yet: nothing is connected or run before `start`."""
    if isinstance(config, LocalPolicyConfig):
        return ServedPolicy(partial(open_local, config), config.logprobs_mode, config.version)
    return ServedPolicy(partial(open_remote, config), config.logprobs_mode, config.version)
