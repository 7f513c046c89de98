"""Sandboxes made ahead of need: whoever asks for one that is ready gets it without waiting for its making.

Invariants: what is handed out was fresh from its making, was asked whether it lives, and is handed out once; only
specs that were asked for twice are kept ready, between a low and a high mark; all together stay under a limit and
no more than so many are in the making at once; what nobody asked for in a while is closed; closing leaves nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from workers.errors import SandboxError
from workers.sandbox.protocol import SandboxSpec

Key = tuple[object, ...]
_WORTH_KEEPING = 2


@dataclass(frozen=True, slots=True)
class WarmOptions:
    """Below `low` ready ones of a spec, more are made until there are `high`; 0 makes none ahead of need.

    `total` bounds those of all specs, `creations` those in the making, `idle_s` how long unasked-for ones stay.
    """

    low: int = 1
    high: int = 4
    total: int = 32
    creations: int = 4
    idle_s: float = 30.0


@dataclass(slots=True)
class WarmStats:
    """What the pool did so far. `acquisitions_s` are the latest waits for a sandbox, warm or not."""

    taken_warm: int = 0
    taken_cold: int = 0
    found_dead: int = 0
    acquisitions_s: deque[float] = field(default_factory=lambda: deque(maxlen=1024))


class Warmable(Protocol):
    async def is_alive(self) -> bool: ...

    async def close(self) -> None: ...


S = TypeVar("S", bound=Warmable)


@dataclass(slots=True)
class _Line(Generic[S]):
    """The ready sandboxes of one spec."""

    spec: SandboxSpec
    ready: deque[S] = field(default_factory=deque)
    in_making: int = 0
    asked: int = 0
    is_filling: bool = False
    last_asked_s: float = 0.0


class WarmPool(Generic[S]):
    """Keeps sandboxes ready. `make` makes one, and undoes what it began where it fails or is cancelled."""

    def __init__(self, make: Callable[[SandboxSpec], Awaitable[S]], options: WarmOptions) -> None:
        self._make = make
        self._options = options
        self._lines: dict[Key, _Line[S]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._creations = asyncio.Semaphore(options.creations)
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.stats = WarmStats()

    @property
    def ready_count(self) -> int:
        return sum(len(line.ready) for line in self._lines.values())

    async def take(self, spec: SandboxSpec) -> S:
        """One that is ready, else one made now. Raises what `make` raises."""
        started_s = time.monotonic()
        if self._options.high == 0:
            return await self._make_one(spec, started_s)
        line = self._lines.setdefault(_key(spec), _Line(spec))
        line.asked += 1
        line.last_asked_s = started_s
        self._sweep_later()
        while line.ready:
            sandbox = line.ready.popleft()
            self._fill(line)
            if await self._is_usable(sandbox):
                self.stats.taken_warm += 1
                self.stats.acquisitions_s.append(time.monotonic() - started_s)
                return sandbox
        self._fill(line)
        return await self._make_one(spec, started_s)

    async def prewarm(self, spec: SandboxSpec) -> None:
        """Make some ready, up to the high mark, for a spec that will be asked for; returns when they are."""
        line = self._lines.setdefault(_key(spec), _Line(spec))
        line.asked, line.last_asked_s = _WORTH_KEEPING, time.monotonic()
        self._sweep_later()
        self._fill(line)
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Close what is ready and end what is in the making. Safe twice."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        lines, self._lines = self._lines, {}
        await asyncio.gather(*(_close_quietly(s) for line in lines.values() for s in line.ready))

    async def _make_one(self, spec: SandboxSpec, started_s: float) -> S:
        async with self._creations:
            sandbox = await self._make(spec)
        self.stats.taken_cold += 1
        self.stats.acquisitions_s.append(time.monotonic() - started_s)
        return sandbox

    async def _is_usable(self, sandbox: S) -> bool:
        try:
            if await sandbox.is_alive():
                return True
        except BaseException:
            self._spawn(_close_quietly(sandbox))
            raise
        self.stats.found_dead += 1
        self._spawn(_close_quietly(sandbox))
        return False

    def _fill(self, line: _Line[S]) -> None:
        """Begin to make more where the low mark is passed, until the high mark is reached."""
        have = len(line.ready) + line.in_making
        if have < self._options.low:
            line.is_filling = True
        if line.asked < _WORTH_KEEPING or not line.is_filling or self._is_closed:
            return
        all_of_them = sum(len(other.ready) + other.in_making for other in self._lines.values())
        room = min(self._options.high - have, self._options.total - all_of_them)
        for _ in range(room):
            line.in_making += 1
            self._spawn(self._add(line))
        line.is_filling = False

    async def _add(self, line: _Line[S]) -> None:
        try:
            async with self._creations:
                sandbox = await self._make(line.spec)
        except SandboxError:
            return  # whoever asks next makes one, and meets the cause
        finally:
            line.in_making -= 1
        if self._is_closed or _key(line.spec) not in self._lines:
            await _close_quietly(sandbox)
        else:
            line.ready.append(sandbox)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self._options.idle_s, self._sweep)

    def _sweep(self) -> None:
        """Close what nobody asked for in a while."""
        self._sweeper = None
        now_s = time.monotonic()
        for key, line in list(self._lines.items()):
            if now_s - line.last_asked_s >= self._options.idle_s and not line.in_making:
                del self._lines[key]
                for sandbox in line.ready:
                    self._spawn(_close_quietly(sandbox))
        if self._lines and not self._is_closed:
            self._sweep_later()


async def _close_quietly(sandbox: Warmable) -> None:
    try:
        await sandbox.close()
    except SandboxError:
        pass  # its keeper is gone, and so is it


def _key(spec: SandboxSpec) -> Key:
    layers = tuple(layer.digest for layer in spec.layers)
    mounts = tuple((item.path, item.files.digest) for item in spec.read_only)
    return (spec.image, spec.workspace_path, layers, mounts, spec.limits)
