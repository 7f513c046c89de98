"""The command with the real local model: tokens as they were sampled, metrics as they are served."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from orchestrator.metrics import declared
from orchestrator.rules import validate
from tests.e2e.rollcage import groups, rows, start, summary, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(600)]


def test_a_run_with_the_local_model_records_its_tokens_and_serves_its_metrics(tmp_path: Path) -> None:
    few = ("tasks=quickstart", "tasks.limit=3", "rollout.groups=3", "rollout.group_size=2")
    process = start("run", *few, "scheduler.filter=off", "rollout.max_tokens=24", "run_dir=run", cwd=tmp_path)
    targets = tmp_path / "run" / "metrics_targets.json"
    wait_for(targets.exists, 120, "the endpoints are announced", process)
    served: dict[str, str] = {}
    for target in json.loads(targets.read_text()):
        with urllib.request.urlopen(f"http://{target['targets'][0]}/metrics", timeout=10) as answer:
            served[target["labels"]["role"]] = answer.read().decode()
    assert set(served) == {"conductor", "pool", "scorer"}
    names = {
        line.split("{")[0].split(" ")[0]
        for text in served.values()
        for line in text.splitlines()
        if line and not line.startswith("#")
    }
    assert {name for name in names if not name.endswith("_created")} <= declared()
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 0, out
    assert not targets.exists()

    for batch in groups(tmp_path / "run"):
        validate(batch, full=True)
    found = rows(tmp_path / "run")
    assert len(found) == 6
    for row in found:
        assert row["logprobs_mode"] == "raw"
        assert row["reset_digest"]
        assert 0 < sum(row["loss_mask"]) <= 24
        assert len(row["token_ids"]) == row["prompt_len"] + sum(row["loss_mask"])
        assert row["segments"][-1]["sampled"]
    assert len({row["tokenizer_sha256"] for row in found}) == 1
    assert summary(tmp_path / "run")["tokens_sampled"] == sum(sum(row["loss_mask"]) for row in found)
