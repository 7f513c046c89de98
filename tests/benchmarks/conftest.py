"""The benchmarks' own smoke test needs an engine, as the sandbox tests do."""

from __future__ import annotations

from tests.sandbox.docker_engine import docker_engine

__all__ = ["docker_engine"]
