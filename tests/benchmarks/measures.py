"""What is measured of a sandbox backend, each through its public protocol alone.

Invariants: whatever is created is closed, also when a measurement fails; rounds to warm up are not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workers.archive import Archive, Entry, EntryKind, pack
from workers.sandbox.protocol import Command, ExecResult, Sandbox, SandboxBackend, SandboxSpec, Snapshot
from workers.task import Limits

TRUE = Command(("true",))
_WARM_UP = 2
_LIMITS = Limits(memory_mb=256, storage_mb=256, pids=64)


class WarmBackend(SandboxBackend, Protocol):
    """A backend that makes sandboxes ahead of need."""

    async def prewarm(self, spec: SandboxSpec) -> None:
        """Make some ready; returns when they are."""
        ...


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything is measured."""

    resets: int
    commands: int
    throughput_s: float
    parallel: int
    files: int
    file_bytes: int
    chain: int
    forks: int
    large_state_mb: int


@dataclass(frozen=True, slots=True)
class Times:
    """One row: how long each round took."""

    seconds: tuple[float, ...]

    def at(self, share: float) -> float:
        """The value below which this share of the rounds lies."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Density:
    """So many live sandboxes with a live process each."""

    count: int
    memory_mb_each: float
    create_ms_p50: float
    create_ms_p95: float
    command_ms_p50: float


def repository(scale: Scale) -> Archive:
    """A workspace like a repository: files of different contents in folders of fifty."""
    entries = []
    for n in range(scale.files):
        if n % 50 == 0:
            entries.append(Entry(f"part{n // 50}", EntryKind.FOLDER, 0o755))
        line = f"line of file {n}\n".encode()
        body = (line * (scale.file_bytes // len(line) + 1))[: scale.file_bytes]
        entries.append(Entry(f"part{n // 50}/file{n}.py", EntryKind.FILE, data=body))
    return pack(entries)


def spec_of(layer: Archive) -> SandboxSpec:
    return SandboxSpec(layers=(layer,), limits=_LIMITS)


async def full_reset(backend: SandboxBackend, spec: SandboxSpec, rounds: int) -> Times:
    """Destroy a used sandbox, make another from the same bytes, run its first command."""
    taken = []
    sandbox = await backend.create(spec)
    try:
        for n in range(rounds + _WARM_UP):
            await _check(sandbox.exec(Command.shell("echo dirt > dirt; rm -rf part0")))
            started = time.perf_counter()
            await sandbox.close()
            sandbox = await backend.create(spec)
            await _check(sandbox.exec(TRUE))
            if n >= _WARM_UP:
                taken.append(time.perf_counter() - started)
    finally:
        await sandbox.close()
    return Times(tuple(taken))


async def prewarmed(backend: WarmBackend, spec: SandboxSpec, rounds: int) -> Times:
    """Take a sandbox that was made ahead of need: what a rollout waits for."""
    taken = []
    for _ in range(rounds):
        await backend.prewarm(spec)
        started = time.perf_counter()
        sandbox = await backend.create(spec)
        taken.append(time.perf_counter() - started)
        await _check(sandbox.exec(TRUE))
        await sandbox.close()
    return Times(tuple(taken))


async def one_command(backend: SandboxBackend, spec: SandboxSpec, rounds: int) -> Times:
    """A supervised command in a sandbox that lives."""
    sandbox = await backend.create(spec)
    try:
        taken = [await _command_s(sandbox) for _ in range(rounds + _WARM_UP)]
    finally:
        await sandbox.close()
    return Times(tuple(taken[_WARM_UP:]))


async def episodes_a_minute(backend: SandboxBackend, spec: SandboxSpec, scale: Scale) -> float:
    """Reset-and-run episodes by several workers at once, in a minute."""
    until = time.perf_counter() + scale.throughput_s
    done = 0

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < until:
            sandbox = await backend.create(spec)
            try:
                await _check(sandbox.exec(TRUE))
            finally:
                await sandbox.close()
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(scale.parallel)))
    return done * 60 / (time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Sealing, and forks from what was sealed."""

    seal: Times
    fork: Times
    fork_large: Times
    fork_chain: Times


async def snapshots(backend: SandboxBackend, spec: SandboxSpec, scale: Scale) -> Snapshots:
    """Seal a small change again and again in one sandbox; fork from the first, from a large one, from the last."""
    sandbox = await backend.create(spec)
    kept: list[Snapshot] = []
    seals = []
    try:
        for n in range(scale.chain):
            await _check(sandbox.exec(Command.shell(f"echo {n} > step{n}; echo {n} >> log")))
            started = time.perf_counter()
            kept.append(await sandbox.snapshot())
            seals.append(time.perf_counter() - started)
        first = await _forks(backend, kept[0], scale.forks)
        chain = await _forks(backend, kept[-1], scale.forks)
        size = f"head -c {scale.large_state_mb}M /dev/urandom > large"
        await _check(sandbox.exec(Command.shell(size)))
        kept.append(await sandbox.snapshot())
        large = await _forks(backend, kept[-1], scale.forks)
    finally:
        await sandbox.close()
        for snapshot in kept:
            await backend.discard(snapshot)
    return Snapshots(Times(tuple(seals)), first, large, chain)


async def _forks(backend: SandboxBackend, snapshot: Snapshot, rounds: int) -> Times:
    taken = []
    for n in range(rounds + _WARM_UP):
        started = time.perf_counter()
        fork = await backend.fork(snapshot)
        if n >= _WARM_UP:
            taken.append(time.perf_counter() - started)
        await fork.close()
    return Times(tuple(taken))


async def density(
    backend: SandboxBackend, spec: SandboxSpec, counts: Sequence[int], tell: Callable[[str], None]
) -> list[Density]:
    """The curve: sandboxes are added up to each count, each with a process that goes on living."""
    living: list[Sandbox] = []
    rows = []
    before_kb = _available_kb()
    try:
        for count in counts:
            taken = []
            while len(living) < count:
                started = time.perf_counter()
                sandbox = await backend.create(spec)
                living.append(sandbox)
                taken.append(time.perf_counter() - started)
                await _check(sandbox.exec(Command.shell("sleep 100000 >/dev/null 2>&1 </dev/null & true")))
            await asyncio.sleep(1)
            memory_mb = (before_kb - _available_kb()) / 1024 / count
            command = Times(tuple([await _command_s(box) for box in living[:20]]))
            made = Times(tuple(taken))
            rows.append(
                Density(count, memory_mb, made.at(0.5) * 1e3, made.at(0.95) * 1e3, command.at(0.5) * 1e3)
            )
            tell(f"{count} live: {memory_mb:.2f} MB each")
    finally:
        for start in range(0, len(living), 16):
            await asyncio.gather(*(box.close() for box in living[start : start + 16]))
    return rows


def _available_kb() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/meminfo has no MemAvailable")


async def _check(running: Awaitable[ExecResult]) -> None:
    result = await running
    if result.exit_code:
        raise RuntimeError(f"the command ended with {result.exit_code}: {result.stderr!r}")


async def _command_s(sandbox: Sandbox) -> float:
    started = time.perf_counter()
    await _check(sandbox.exec(TRUE))
    return time.perf_counter() - started
