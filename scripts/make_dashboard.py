"""Writes dashboards/rollcage.json. Run it after a change here; `--check` only says whether it is stale."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "dashboards" / "rollcage.json"
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class Query:
    """One line or family of lines; `legend` may name labels as {{label}}."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    is_stacked: bool = False


def rate(metric: str) -> str:
    return f"rate({metric}[$__rate_interval])"


def quantiles(histogram: str, by: str = "") -> tuple[Query, ...]:
    """p50 and p95 of a histogram, apart by a label where one is given."""
    labels = f"le, {by}" if by else "le"
    suffix = f" {{{{{by}}}}}" if by else ""
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by ({labels}) ({rate(f'{histogram}_bucket')}))",
            f"{name}{suffix}",
        )
        for name, share in (("p50", 0.5), ("p95", 0.95))
    )


JUDGED = 'rollcage_episodes_total{outcome=~"passed|not_passed"}'
PASSED = 'rollcage_episodes_total{outcome="passed"}'
FAILED = 'rollcage_episodes_total{outcome=~"failed_.*"}'
PANELS = (
    Panel(
        "Episodes by outcome",
        "Episodes a second: passed, not passed, or failed at a boundary.",
        "ops",
        (Query(f"sum by (outcome) ({rate('rollcage_episodes_total')})", "{{outcome}}"),),
        is_stacked=True,
    ),
    Panel(
        "Failures by boundary and cause",
        "Episodes lost for good and attempts given another try, a second.",
        "ops",
        (
            Query(f"sum by (outcome, cause) ({rate(FAILED)})", "{{outcome}} {{cause}}"),
            Query(
                f"sum by (outcome, cause) ({rate('rollcage_retries_total')})", "retried {{outcome}} {{cause}}"
            ),
        ),
    ),
    Panel(
        "Groups by fate",
        "Complete groups a minute: delivered, without variance, stale, cancelled.",
        "short",
        (Query(f"60 * sum by (fate) ({rate('rollcage_groups_total')})", "{{fate}}"),),
        is_stacked=True,
    ),
    Panel(
        "Pass share",
        "Passed of those with a verdict.",
        "percentunit",
        (Query(f"sum({rate(PASSED)}) / sum({rate(JUDGED)})", "passed"),),
    ),
    Panel(
        "Reward mean",
        "Of the last rewards. A sudden jump is a suspected hack until shown otherwise.",
        "short",
        (Query("rollcage_reward_mean", "reward"),),
    ),
    Panel(
        "Tasks",
        "What the filter made of the tasks.",
        "short",
        (Query("sum by (fate) (rollcage_tasks)", "{{fate}}"),),
        is_stacked=True,
    ),
    Panel("Sandbox reset", "Restoring and resetting a sandbox.", "s", quantiles("rollcage_reset_seconds")),
    Panel("Actions", "All actions of one rollout.", "s", quantiles("rollcage_sandbox_seconds")),
    Panel("Scoring", "Judging one episode.", "s", quantiles("rollcage_score_seconds", "protection")),
    Panel(
        "Policy tokens",
        "Tokens sampled a second, by pool.",
        "short",
        (Query(f"sum by (pool) ({rate('rollcage_policy_tokens_total')})", "{{pool}}"),),
        is_stacked=True,
    ),
    Panel(
        "Policy wait",
        "Waiting for the policy in one rollout.",
        "s",
        quantiles("rollcage_policy_wait_seconds"),
    ),
    Panel(
        "Queues",
        "Work between the parts; one that only grows names the part after it.",
        "short",
        (
            Query("sum(rollcage_leases)", "leased to pools"),
            Query("sum(rollcage_unscored)", "waiting for a verdict"),
            Query("sum(rollcage_score_queue)", "in the scorers"),
            Query("sum(rollcage_undelivered_groups)", "groups not acknowledged"),
        ),
    ),
    Panel(
        "Slots",
        "Sandboxes in use and at hand.",
        "short",
        (
            Query("sum by (pool) (rollcage_slots_busy)", "busy {{pool}}"),
            Query("sum by (pool) (rollcage_slots)", "all {{pool}}"),
        ),
    ),
    Panel(
        "Tool calls",
        "Calls a second by tool and outcome.",
        "ops",
        (
            Query(f"sum by (tool, outcome) ({rate('rollcage_tool_calls_total')})", "{{tool}} {{outcome}}"),
            Query(f"sum({rate('rollcage_malformed_calls_total')})", "malformed"),
        ),
    ),
    Panel(
        "Memory of the actors",
        "Resident memory.",
        "bytes",
        (Query("rollcage_process_resident_memory_bytes", "{{role}} {{pool}}"),),
    ),
)


def dashboard() -> dict[str, Json]:
    return {
        "uid": "rollcage",
        "title": "Rollcage",
        "tags": ["rollcage"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
            ]
        },
        "panels": [_panel(index, panel) for index, panel in enumerate(PANELS)],
    }


def _panel(index: int, panel: Panel) -> Json:
    row, column = divmod(index, COLUMNS)
    custom: dict[str, Json] = {"fillOpacity": 20, "showPoints": "never"}
    if panel.is_stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    targets: list[Json] = [
        {
            "refId": chr(ord("A") + place),
            "datasource": dict(DATASOURCE),
            "expr": query.expr,
            "legendFormat": query.legend,
        }
        for place, query in enumerate(panel.queries)
    ]
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": dict(DATASOURCE),
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        is_fresh = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text()
        print(f"{TARGET}: {'up to date' if is_fresh else 'stale: run scripts/make_dashboard.py'}")
        return 0 if is_fresh else 1
    TARGET.write_text(text(), encoding="utf-8")
    print(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
