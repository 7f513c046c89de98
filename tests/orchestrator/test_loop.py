from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.advantages import Estimator
from orchestrator.breaker import Breaker, RunStopped
from orchestrator.desk import Desk, DeskSettings
from orchestrator.groups import GroupBuffer
from orchestrator.loop import roll_out
from orchestrator.metrics import ConductorMetrics
from orchestrator.record import RunRecord
from orchestrator.scheduler import Scheduler, SchedulerSettings
from orchestrator.scoring import Bench
from orchestrator.store import read_groups
from orchestrator.stream import EpisodeStream
from orchestrator.tally import Tally
from orchestrator.types import Fate, Lease
from tests.orchestrator.fakes import FakePool, FakeScorer, make_task
from workers.errors import BoundaryError, PolicyError, VerifierError

TASKS = {name: make_task(name) for name in ("even", "never", "always")}


class Solver:
    """Solves "always" always, "never" never, and "even" every second time."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def __call__(self, lease: Lease) -> bool:
        return next(self._turn) % 2 == 0 if lease.task_id == "even" else lease.task_id == "always"


@pytest.fixture
def passes() -> Solver:
    return Solver()


class Rig:
    """A loop over one run folder; make another on the same folder to resume it."""

    def __init__(
        self, run_dir: Path, *, groups: int = 6, attempts: int = 3, filtering: bool = True, share: float = 0.5
    ) -> None:
        self.run_dir = run_dir
        self.record = RunRecord.open(run_dir, "run")
        self.scheduler = Scheduler(
            tuple(TASKS), SchedulerSettings(is_filtering=filtering, groups=groups, group_size=4, explore=0.0)
        )
        self.tally = Tally(ConductorMetrics())
        self.desk = Desk(
            DeskSettings("run", run_dir, 0, 60.0, 8, Estimator.MEAN_STD),
            TASKS,
            self.scheduler,
            GroupBuffer(max_retries=attempts - 1, max_open=64),
            self.record,
            self.tally,
            Breaker(share),
        )

    async def run(self, pools: list[FakePool], scorers: list[FakeScorer]) -> None:
        try:
            await self.desk.resume()
            bench = Bench(scorers, concurrency=4, backlog=16, attempts=2)
            await asyncio.wait_for(roll_out(self.desk, pools, bench), 60)
            self.record.finish("done")
        finally:
            self.record.close()

    def group_ids(self) -> list[str]:
        return [batch["group_id"][0].as_py() for batch in read_groups(self.run_dir)]


async def test_a_run_probes_filters_rolls_out_and_delivers_each_group_once(
    tmp_path: Path, passes: Solver
) -> None:
    rig = Rig(tmp_path)
    await rig.run([FakePool()], [FakeScorer(passes)])
    groups = list(read_groups(tmp_path))
    trained = [g for g in groups if g["group_id"][0].as_py().startswith("g")]
    assert len(trained) == 6
    assert {g["task_id"][0].as_py() for g in trained} == {"even"}
    assert all(n == 1 for n in Counter(rig.group_ids()).values())
    mixed = [g for g in trained if len(set(g["reward"].to_pylist())) == 2]
    with EpisodeStream(tmp_path, consumer="trainer", timeout_s=5) as stream:
        delivered = list(stream)
    assert [b["group_seq"][0].as_py() for b in delivered] == list(range(len(mixed)))
    assert sum(rig.tally.fates.values()) == 6


async def test_a_lost_pool_loses_no_group_and_its_leases_are_played_again(
    tmp_path: Path, passes: Solver
) -> None:
    rig = Rig(tmp_path, filtering=False, groups=9, share=1.0)
    pool = FakePool(die_at=(2, 4))
    await rig.run([pool], [FakeScorer(passes)])
    assert pool.starts == 3
    groups = list(read_groups(tmp_path))
    assert len(groups) == 9
    assert all(g.num_rows == 4 and g["valid_count"][0].as_py() == 4 for g in groups)
    assert rig.tally.failures[("infrastructure", "pool_lost")] > 0


async def test_two_pools_share_the_work(tmp_path: Path, passes: Solver) -> None:
    rig = Rig(tmp_path, filtering=False, groups=12)
    pools = [FakePool("pool-0", 2), FakePool("pool-1", 2)]
    await rig.run(pools, [FakeScorer(passes), FakeScorer(passes)])
    assert all(pool.leases for pool in pools)
    assert len(rig.group_ids()) == 12


async def test_a_missing_verdict_is_retried_on_a_scorer_and_never_played_again(
    tmp_path: Path, passes: Solver
) -> None:
    asked: Counter[str] = Counter()

    def failing(lease: Lease) -> BoundaryError | None:
        asked[lease.episode_id] += 1
        return VerifierError("judge_crashed") if lease.sample_index == 0 else None

    rig = Rig(tmp_path, filtering=False, groups=3)
    pool = FakePool()
    await rig.run([pool], [FakeScorer(passes, failing), FakeScorer(passes, failing)])
    groups = list(read_groups(tmp_path))
    assert all(g["valid_count"][0].as_py() == 3 for g in groups)
    for group in groups:
        failed = [row for row in group.to_pylist() if row["status"] == "failed"]
        assert [row["failure_cause"] for row in failed] == ["judge_crashed"]
        assert all(row["reward"] is None and row["advantage"] is None for row in failed)
    assert {asked[e] for e in asked if e.endswith("/0")} == {2}
    assert max(lease.attempt for lease in pool.leases) == 0


async def test_a_verdict_at_the_second_try_counts(tmp_path: Path, passes: Solver) -> None:
    asked: Counter[str] = Counter()

    def failing_once(lease: Lease) -> BoundaryError | None:
        asked[lease.episode_id] += 1
        return VerifierError("judge_crashed") if asked[lease.episode_id] == 1 else None

    rig = Rig(tmp_path, filtering=False, groups=3)
    await rig.run([FakePool()], [FakeScorer(passes, failing_once)])
    assert all(g["valid_count"][0].as_py() == 4 for g in read_groups(tmp_path))


async def test_a_run_that_only_fails_stops_with_the_cause(tmp_path: Path, passes: Solver) -> None:
    rig = Rig(tmp_path, filtering=False, groups=50)
    down = FakeScorer(passes, lambda _: PolicyError("endpoint_unreachable", "connection refused"))
    with pytest.raises(ExceptionGroup) as raised:
        await rig.run([FakePool()], [down])
    stopped = raised.value.subgroup(RunStopped)
    assert stopped is not None
    assert "endpoint_unreachable" in str(stopped.exceptions[0])


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7])
async def test_a_run_cut_anywhere_and_resumed_has_every_group_once(
    tmp_path: Path, passes: Solver, cut: int
) -> None:
    class Cut(Exception):
        pass

    class CutPool(FakePool):
        async def turn(self, leases, tasks, wait_s):  # type: ignore[no-untyped-def]
            if self.turns >= cut:
                raise Cut
            return await super().turn(leases, tasks, wait_s)

    with pytest.raises(ExceptionGroup):
        await Rig(tmp_path).run([CutPool()], [FakeScorer(passes)])
    rig = Rig(tmp_path)
    await rig.run([FakePool()], [FakeScorer(passes)])
    ids = rig.group_ids()
    assert len(set(ids)) == len(ids)
    assert sorted(i for i in ids if i[0] == "g") == [f"g{n:06d}" for n in range(6)]
    probes = sorted(i for i in ids if i[0] == "p")
    assert probes == [f"p{n:06d}" for n in range(len(probes))]
    assert rig.tally.probes == len(probes)
    assert sum(rig.tally.fates.values()) == 6
    with EpisodeStream(tmp_path, consumer="t", timeout_s=5) as stream:
        seqs = [batch["group_seq"][0].as_py() for batch in stream]
    assert seqs == list(range(rig.tally.fates[Fate.DELIVERED]))


async def test_draining_leases_nothing_more_and_can_be_resumed(tmp_path: Path, passes: Solver) -> None:
    rig = Rig(tmp_path, filtering=False, groups=40)

    class DrainingPool(FakePool):
        async def turn(self, leases, tasks, wait_s):  # type: ignore[no-untyped-def]
            if self.turns == 3:
                rig.desk.drain()
            return await super().turn(leases, tasks, wait_s)

    pool = DrainingPool()
    await rig.run([pool], [FakeScorer(passes)])
    assert len(pool.leases) < 40 * 4
    again = Rig(tmp_path, filtering=False, groups=40)
    await again.run([FakePool()], [FakeScorer(passes)])
    assert sorted(again.group_ids()) == [f"g{n:06d}" for n in range(40)]


async def test_probes_are_stored_but_never_delivered(tmp_path: Path, passes: Solver) -> None:
    await Rig(tmp_path).run([FakePool()], [FakeScorer(passes)])
    probes = [b for b in read_groups(tmp_path) if b["group_id"][0].as_py().startswith("p")]
    assert probes
    assert {b["fate"][0].as_py() for b in probes} == {"cancelled"}
    assert all(b["group_seq"][0].as_py() is None for b in probes)
