"""Backends for the sandbox tests: one keeper each, so that every test starts and ends real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.sandbox.docker_engine import docker_engine, make_backend
from workers.archive import Archive, Entry, EntryKind, pack
from workers.sandbox.bubblewrap import BubblewrapBackend, BubblewrapOptions
from workers.sandbox.fake import FakeBackend
from workers.sandbox.protocol import Sandbox, SandboxBackend, SandboxSpec
from workers.sandbox.warm import WarmOptions

__all__ = ["docker_engine"]


COLD = WarmOptions(high=0)
"""Nothing is made ahead of need, so that tests can count processes."""


@pytest.fixture
def workspace() -> Archive:
    return pack(
        (
            Entry("hello.txt", EntryKind.FILE, data=b"hello\n"),
            Entry("folder", EntryKind.FOLDER, 0o755),
            Entry("folder/inner.txt", EntryKind.FILE, data=b"one\ntwo\n"),
            Entry("run.sh", EntryKind.FILE, 0o755, data=b"#!/bin/sh\necho ran\n"),
            Entry("link", EntryKind.LINK, target="hello.txt"),
        )
    )


@pytest.fixture
async def real() -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend(BubblewrapOptions(keepers=1, warm=COLD))
    await backend.start()
    yield backend
    await backend.close()


BACKENDS: dict[str, Callable[[], SandboxBackend]] = {
    "fake": FakeBackend,
    "bubblewrap": lambda: BubblewrapBackend(BubblewrapOptions(keepers=1, warm=COLD)),
    "docker": make_backend,
}
"""Every backend that keeps the contract, by name."""


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[SandboxBackend]:
    if request.param == "docker":
        request.getfixturevalue("docker_engine")
    chosen = BACKENDS[request.param]()
    await chosen.start()
    yield chosen
    await chosen.close()


@pytest.fixture
async def sandbox(real: BubblewrapBackend, workspace: Archive) -> AsyncIterator[Sandbox]:
    made = await real.create(SandboxSpec(layers=(workspace,)))
    yield made
    await made.close()
