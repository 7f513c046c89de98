"""What a run came to: numbers, file and table."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from orchestrator.stats import (
    Ending,
    FailureCount,
    Quantiles,
    RunStats,
    StopCount,
    TaskStats,
    Timings,
    pass_rate,
    quantiles,
    spread,
)
from orchestrator.summary import as_json, command, print_summary, reported_rate, write_summary
from orchestrator.types import Fate, TaskState
from workers.errors import Boundary


def stats(run_dir: Path, ending: Ending = Ending.DONE) -> RunStats:
    return RunStats(
        run_id="20260101-120000-abcd",
        run_dir=run_dir,
        command="run",
        ending=ending,
        task_set="quickstart",
        policy="local",
        seed=0,
        tasks=(
            TaskStats("sum-two", TaskState.ACTIVE, "1 of 2 probes passed", 2, 1, rollouts=8, passes=6),
            TaskStats("[red]fix-it[/red]", TaskState.TOO_HARD, "0 of 4 probes passed", 4, 0),
            TaskStats("broken", TaskState.QUARANTINED, "no verdict after every retry", failures=3),
        ),
        groups_asked=3,
        groups={Fate.DELIVERED: 2, Fate.ZERO_VARIANCE: 1},
        episodes_ok=18,
        episodes_failed=1,
        retries=2,
        stops=(StopCount("submitted", 10), StopCount("max_steps", 8)),
        failures=(FailureCount(Boundary.SANDBOX, "pool_lost", 3),),
        rewards=spread([1.0, 0.0, 1.0, 1.0]),
        resets_s=quantiles([0.01, 0.02, 0.5]),
        tokens_sampled=12_345,
        timings=Timings(wall_s=30.0, setup_s=5.0, probing_s=10.0, played_s=20.0),
    )


def shown(facts: RunStats) -> str:
    out = io.StringIO()
    print_summary(facts, Console(file=out, width=160))
    return out.getvalue()


def test_the_interval_keeps_its_width_where_nothing_or_everything_passed() -> None:
    none, all_ = pass_rate(0, 4), pass_rate(4, 4)
    assert (none.low, all_.high) == (0.0, 1.0)
    assert none.high == pytest.approx(0.4899, abs=1e-4)
    assert all_.low == pytest.approx(1 - none.high)


def test_a_known_interval_is_reproduced() -> None:
    rate = pass_rate(15, 20)
    assert (rate.low, rate.high) == (pytest.approx(0.5313, abs=1e-4), pytest.approx(0.8881, abs=1e-4))


@given(st.integers(0, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_rate_and_lies_in_zero_to_one(counts: tuple[int, int]) -> None:
    rate = pass_rate(*counts)
    assert 0.0 <= rate.low <= rate.high <= 1.0
    assert rate.rate is None or rate.low <= rate.rate <= rate.high


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="5 passes of 4"):
        pass_rate(5, 4)


def test_quantiles_are_values_that_were_met() -> None:
    assert quantiles(list(range(1, 101))) == Quantiles(100, 50, 95)
    assert quantiles([3.0]) == Quantiles(1, 3.0, 3.0)
    assert quantiles([]) == Quantiles()


def test_a_spread_is_that_of_the_population() -> None:
    assert spread([1.0, 0.0]).std == 0.5
    assert spread([]).mean is None


def test_probes_are_reported_only_where_there_are_no_rollouts(tmp_path: Path) -> None:
    kept, hard, broken = stats(tmp_path).tasks
    assert reported_rate(kept) == (pass_rate(6, 8), "rollouts")
    assert reported_rate(hard) == (pass_rate(0, 4), "probes")
    assert reported_rate(broken)[0].rate is None


def test_the_summary_file_holds_the_numbers_whole_and_alone(tmp_path: Path) -> None:
    path = write_summary(stats(tmp_path))
    assert [item.name for item in tmp_path.iterdir()] == ["summary.json"]
    facts = json.loads(path.read_text())
    assert facts == as_json(stats(tmp_path))
    assert facts["groups"] == {"asked": 3, "delivered": 2, "zero_variance": 1, "stale": 0, "cancelled": 0}
    assert facts["episodes"]["failures"] == [{"boundary": "sandbox", "cause": "pool_lost", "count": 3}]
    assert facts["episodes_per_s"] == 0.9
    assert facts["tasks"][0]["measured_on"] == "rollouts"


def test_a_run_in_which_nothing_was_played_has_a_summary(tmp_path: Path) -> None:
    empty = RunStats(
        "r", tmp_path, "run", Ending.FAILED, "mine", "openai", 0, ending_detail="[/nothing] said"
    )
    facts = json.loads(write_summary(empty).read_text())
    assert facts["episodes_per_s"] is None
    assert not any(isinstance(value, float) and math.isnan(value) for value in facts.values())
    assert "failed: [/nothing] said" in shown(empty)


def test_the_table_shows_tasks_totals_failures_and_what_to_do_next(tmp_path: Path) -> None:
    (tmp_path / "episodes").mkdir()
    told = shown(stats(tmp_path))
    for piece in (
        "sum-two",
        "0.75",
        "8 rollouts",
        "too hard",
        "[red]fix-it[/red]",
        "2 delivered, 1 zero variance",
        "p50 20.0 ms, p95 500.0 ms",
        "pool_lost",
        "episodes/",
        "show",
        "config.yaml",
    ):
        assert piece in told, piece
    assert told.count(f"  {command()} ") == 3


def test_an_interrupted_run_tells_how_to_go_on(tmp_path: Path) -> None:
    assert f"run --resume {tmp_path}" in shown(stats(tmp_path, Ending.INTERRUPTED)).replace("\n", "")
