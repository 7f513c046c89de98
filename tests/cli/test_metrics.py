"""Metrics, their endpoint, their targets, and the dashboard that reads them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from orchestrator.metrics import (
    MAX_CAUSES,
    ConductorMetrics,
    MetricsServer,
    PoolMetrics,
    ScorerMetrics,
    Target,
    declared,
    remove_targets,
    write_targets,
)
from orchestrator.types import Fate
from workers.errors import Boundary
from workers.trajectory import Failure, Protection, StopReason, ToolCall, Trajectory, Verdict

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "dashboards" / "rollcage.json"
LABELS = {"pool", "backend", "outcome", "cause", "protection", "fate", "tool", "le"}


def scraped(metrics: PoolMetrics | ScorerMetrics | ConductorMetrics) -> dict[str, float]:
    """What a scraper reads: series and values."""
    server = MetricsServer(metrics.registry)
    port = server.start()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        server.close()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_a_rollout_shows_up_in_its_pools_metrics() -> None:
    pool = PoolMetrics("node-1", "bubblewrap", slots=8)
    calls = tuple(
        ToolCall(0, name, "{}", ok) for name, ok in (("run", True), ("run", False), ("rm -rf", True))
    )
    pool.busy(3)
    pool.ended(
        Trajectory(tool_calls=calls, metrics={"reset_s": 0.02, "tokens_sampled": 96, "malformed_calls": 2})
    )
    seen = scraped(pool)
    own = 'backend="bubblewrap",pool="node-1"'
    assert seen[f"rollcage_slots_busy{{{own}}}"] == 3
    assert seen[f"rollcage_slots{{{own}}}"] == 8
    assert seen[f"rollcage_policy_tokens_total{{{own}}}"] == 96
    assert seen[f"rollcage_reset_seconds_sum{{{own}}}"] == pytest.approx(0.02)
    assert seen[f"rollcage_reset_seconds_count{{{own}}}"] == 1
    assert (
        seen['rollcage_tool_calls_total{backend="bubblewrap",outcome="error",pool="node-1",tool="run"}'] == 1
    )
    assert (
        seen['rollcage_tool_calls_total{backend="bubblewrap",outcome="ok",pool="node-1",tool="other"}'] == 1
    )


def test_a_verdict_shows_up_by_protection_and_outcome() -> None:
    scorer = ScorerMetrics("scorer-1")
    scorer.waiting(2)
    scorer.judged(0.5, Verdict(1.0, 1.0, True, Protection.VALUES))
    scorer.judged(0.1, None)
    seen = scraped(scorer)
    assert seen['rollcage_score_seconds_count{outcome="passed",pool="scorer-1",protection="values"}'] == 1
    assert seen['rollcage_score_seconds_count{outcome="failed",pool="scorer-1",protection="none"}'] == 1
    assert seen['rollcage_score_queue{pool="scorer-1"}'] == 2


def test_episodes_are_counted_by_outcome_and_cause() -> None:
    conductor = ConductorMetrics()
    conductor.episode(True, 1.0, StopReason.SUBMITTED, None)
    conductor.episode(False, 0.0, StopReason.MAX_STEPS, None)
    conductor.episode(None, None, None, Failure(Boundary.SANDBOX, "pool_lost"))
    conductor.retried(Failure(Boundary.POLICY, "endpoint_unreachable"))
    conductor.group(Fate.DELIVERED)
    conductor.tasks({"active": 5, "undecided": 1})
    conductor.queues(leases=4, unscored=2, undelivered=1)
    conductor.policy_version(7)
    seen = scraped(conductor)
    assert seen['rollcage_episodes_total{cause="submitted",outcome="passed"}'] == 1
    assert seen['rollcage_episodes_total{cause="max_steps",outcome="not_passed"}'] == 1
    assert seen['rollcage_episodes_total{cause="pool_lost",outcome="failed_sandbox"}'] == 1
    assert seen['rollcage_retries_total{cause="endpoint_unreachable",outcome="failed_policy"}'] == 1
    assert seen['rollcage_groups_total{fate="delivered"}'] == 1
    assert seen['rollcage_groups_total{fate="stale"}'] == 0
    assert (seen["rollcage_reward_count"], seen["rollcage_reward_mean"]) == (2, 0.5)
    assert seen['rollcage_tasks{fate="active"}'] == 5
    assert seen["rollcage_policy_version"] == 7


def test_negative_rewards_are_counted_and_averaged() -> None:
    conductor = ConductorMetrics()
    for reward in (-1.0, -0.5):
        conductor.episode(False, reward, StopReason.SUBMITTED, None)
    seen = scraped(conductor)
    assert seen['rollcage_reward_bucket{le="-1.0"}'] == 1
    assert seen["rollcage_reward_mean"] == -0.75


def test_causes_that_are_no_words_or_too_many_become_other() -> None:
    conductor = ConductorMetrics()
    for cause in ("/tmp/x: no such file", "Task-17", *(f"cause_{letter}" for letter in map(str, range(500)))):
        conductor.retried(Failure(Boundary.SANDBOX, cause))
    causes = [name for name in scraped(conductor) if name.startswith("rollcage_retries_total")]
    assert len(causes) == MAX_CAUSES + 1


def test_only_the_closed_list_of_labels_is_used() -> None:
    for metrics in (PoolMetrics("p", "b", 1), ScorerMetrics("p"), ConductorMetrics()):
        for family in metrics.registry.collect():
            assert family.name.startswith("rollcage_")
            for sample in family.samples:
                assert set(sample.labels) <= LABELS, family.name


def test_two_actors_of_one_process_have_endpoints_of_their_own() -> None:
    servers = [MetricsServer(ConductorMetrics().registry) for _ in range(2)]
    try:
        ports = [server.start() for server in servers]
        assert len(set(ports)) == 2
    finally:
        for server in servers:
            server.close()


def test_a_closed_endpoint_is_gone_with_its_thread_and_closes_twice() -> None:
    before = threading.active_count()
    server = MetricsServer(ConductorMetrics().registry)
    port = server.start()
    server.close()
    server.close()
    assert threading.active_count() == before
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2)


def test_a_taken_port_is_an_os_error() -> None:
    first = MetricsServer(ConductorMetrics().registry)
    port = first.start()
    try:
        with pytest.raises(OSError, match="in use"):
            MetricsServer(ConductorMetrics().registry, port=port).start()
    finally:
        first.close()


def test_targets_are_written_for_prometheus_and_removed(tmp_path: Path) -> None:
    path = write_targets(
        tmp_path, [Target("127.0.0.1:1", "conductor"), Target("127.0.0.1:2", "pool", "node-1")]
    )
    assert json.loads(path.read_text()) == [
        {"targets": ["127.0.0.1:1"], "labels": {"role": "conductor"}},
        {"targets": ["127.0.0.1:2"], "labels": {"role": "pool", "pool": "node-1"}},
    ]
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    remove_targets(tmp_path)
    remove_targets(tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_panel_reads_declared_metrics_only() -> None:
    names = declared()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len(panels) >= 10
    for panel in panels:
        for target in panel["targets"]:
            used = set(re.findall(r"\brollcage_\w+", target["expr"]))
            assert used, panel["title"]
            assert used <= names, f"{panel['title']}: {used - names}"


def test_the_dashboard_is_what_its_script_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_dashboard.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
