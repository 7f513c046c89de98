"""What is made ahead of need is fresh, alive, bounded and handed out once."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from sandbox.outside import descendants, wait_until_gone
from workers.archive import Archive
from workers.errors import SandboxError
from workers.sandbox.bubblewrap import BubblewrapBackend, BubblewrapOptions
from workers.sandbox.protocol import Command, SandboxSpec
from workers.sandbox.warm import WarmOptions, WarmPool


class Made:
    def __init__(self, number: int) -> None:
        self.number = number
        self.lives = True
        self.is_closed = False

    async def is_alive(self) -> bool:
        return self.lives

    async def close(self) -> None:
        self.is_closed = True


class Maker:
    """Counts what it makes, and how many at once."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.at_once = self.most_at_once = 0
        self.fails = False

    async def __call__(self, spec: SandboxSpec) -> Made:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0.005)
            if self.fails:
                raise SandboxError("create_failed")
        finally:
            self.at_once -= 1
        self.made.append(Made(len(self.made)))
        return self.made[-1]


def specs(count: int) -> list[SandboxSpec]:
    return [SandboxSpec(workspace_path=f"/w{n}") for n in range(count)]


async def test_a_spec_asked_for_once_is_not_kept_ready() -> None:
    maker = Maker()
    pool = WarmPool(maker, WarmOptions())
    for spec in specs(5):
        await pool.take(spec)
    await asyncio.sleep(0.05)
    assert (len(maker.made), pool.ready_count) == (5, 0)
    await pool.close()


async def test_marks_have_hysteresis_and_nothing_is_handed_out_twice() -> None:
    maker = Maker()
    pool = WarmPool(maker, WarmOptions(low=2, high=6, creations=3))
    await pool.prewarm(SandboxSpec())
    assert pool.ready_count == 6
    taken = [await pool.take(SandboxSpec()) for _ in range(4)]
    await asyncio.sleep(0.05)
    assert (len(maker.made), pool.ready_count) == (6, 2)  # at the low mark: not yet
    taken.append(await pool.take(SandboxSpec()))
    await asyncio.sleep(0.05)
    assert pool.ready_count == 6
    assert len({one.number for one in taken}) == 5
    assert maker.most_at_once <= 3
    assert (pool.stats.taken_warm, pool.stats.taken_cold) == (5, 0)
    await pool.close()
    assert [one.is_closed for one in maker.made] == [one not in taken for one in maker.made]


async def test_the_limit_holds_over_all_specs() -> None:
    maker = Maker()
    pool = WarmPool(maker, WarmOptions(high=4, total=6))
    for spec in specs(4):
        await pool.prewarm(spec)
    assert pool.ready_count == 6
    await pool.close()


async def test_the_dead_are_not_handed_out() -> None:
    maker = Maker()
    pool = WarmPool(maker, WarmOptions(high=3))
    await pool.prewarm(SandboxSpec())
    for one in maker.made[:2]:
        one.lives = False
    assert (await pool.take(SandboxSpec())).number == 2
    assert pool.stats.found_dead == 2
    await asyncio.sleep(0.05)
    assert all(one.is_closed for one in maker.made[:2])
    await pool.close()


async def test_what_nobody_asks_for_goes() -> None:
    maker = Maker()
    pool = WarmPool(maker, WarmOptions(idle_s=0.05))
    await pool.prewarm(SandboxSpec())
    await asyncio.sleep(0.3)
    assert pool.ready_count == 0
    assert all(one.is_closed for one in maker.made)
    await pool.close()


async def test_failures_ahead_of_need_are_met_by_who_asks() -> None:
    maker = Maker()
    maker.fails = True
    pool = WarmPool(maker, WarmOptions())
    await pool.prewarm(SandboxSpec())
    with pytest.raises(SandboxError, match="create_failed"):
        await pool.take(SandboxSpec())
    await pool.close()


async def test_closing_in_the_middle_leaves_nothing() -> None:
    maker = Maker()
    pool = WarmPool(maker, WarmOptions(high=8))
    filling = asyncio.create_task(pool.prewarm(SandboxSpec()))
    await asyncio.sleep(0.007)
    await pool.close()
    await asyncio.gather(filling, return_exceptions=True)
    assert all(one.is_closed for one in maker.made)


async def test_real_ones_are_taken_fresh_and_fast(workspace: Archive) -> None:
    backend = BubblewrapBackend(BubblewrapOptions(keepers=1, warm=WarmOptions(high=3)))
    await backend.start()
    spec = SandboxSpec(layers=(workspace,))
    first = await backend.create(spec)
    await first.exec(Command.shell("echo dirt > hello.txt"))
    await backend.prewarm(spec)
    boxes = [await backend.create(spec) for _ in range(3)]
    assert backend.warm_stats.taken_warm == 3
    for box in boxes:
        assert box.reset_digest == first.reset_digest
        assert await box.read_file("hello.txt") == b"hello\n"
        await box.close()
    await backend.close()


async def test_a_ready_one_that_dies_is_found_and_closing_leaves_no_process() -> None:
    before = descendants(os.getpid())
    backend = BubblewrapBackend(BubblewrapOptions(keepers=1, warm=WarmOptions(high=2)))
    await backend.start()
    await backend.prewarm(SandboxSpec())
    below = descendants(os.getpid()) - before
    firsts = [pid for pid in below if _name(pid) == "cat"]
    os.kill(firsts[0], signal.SIGKILL)
    await asyncio.sleep(0.1)
    started = time.monotonic()
    box = await backend.create(SandboxSpec())
    box_too = await backend.create(SandboxSpec())
    assert time.monotonic() - started < 10
    assert backend.warm_stats.found_dead == 1
    for each in (box, box_too):
        assert (await each.exec(Command(("true",)))).exit_code == 0
    below |= descendants(os.getpid()) - before
    await backend.close()
    assert await asyncio.to_thread(wait_until_gone, below) == set()


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().partition("\0")[0]
    except OSError:
        return ""
