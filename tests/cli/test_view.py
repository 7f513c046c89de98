"""What is shown while a run goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from orchestrator import view
from orchestrator.progress import Phase, Progress, Straggler
from orchestrator.types import Fate

ROLLING = Progress(
    phase=Phase.ROLLING,
    elapsed_s=75.0,
    tasks_total=40,
    tasks_decided=40,
    probes_done=90,
    groups_asked=10,
    groups={Fate.DELIVERED: 3, Fate.ZERO_VARIANCE: 1},
    episodes_ok=106,
    episodes_passed=31,
    failures={"sandbox/pool_lost": 2},
    in_flight=8,
    tokens_per_s=98.6,
    eta_s=62.0,
    stragglers=(Straggler("[b]slow[/b]", 55.0),),
)


def test_a_line_tells_it_all() -> None:
    assert view.line(ROLLING) == (
        "[1:15] rolling | 40/40 tasks decided by 90 probes | 4/10 groups (3 delivered, 1 zero variance) | "
        "106 judged, 31 passed, 2 failed | 99 tokens/s | about 1:02 left"
    )


def test_a_line_leaves_out_what_is_not_known() -> None:
    assert (
        view.line(Progress(Phase.STARTING, 3.0, "loading the model")) == "[0:03] starting | loading the model"
    )


def test_without_a_terminal_lines_come_now_and_then_and_at_each_new_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(view.time, "monotonic", lambda: now)
    out = io.StringIO()
    with view.showing(Console(file=out, width=40)) as show:
        for second in range(21):
            now = float(second)
            show(ROLLING)
        show(Progress(Phase.CLOSING, 96.0))
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0] == view.line(ROLLING)
    assert lines[-1].endswith("closing")


def test_on_a_terminal_a_panel_is_drawn_and_cleared() -> None:
    out = io.StringIO()
    with view.showing(Console(file=out, width=100, force_terminal=True)) as show:
        show(ROLLING)
    drawn = out.getvalue()
    assert "[b]slow[/b] for 55 s" in drawn
    assert "sandbox/pool_lost" in drawn
    assert "\x1b[?25h" in drawn, "the cursor must come back"


def test_the_terminal_is_given_back_when_the_run_raises() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="boom"), view.showing(Console(file=out, force_terminal=True)):
        raise ValueError("boom")
    assert "\x1b[?25h" in out.getvalue()
