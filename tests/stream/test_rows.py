"""Episodes as rows: nothing is lost, nothing is invented, and text is always valid."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.parts import frame, unframe
from orchestrator.rows import finish_group, scored
from orchestrator.rules import validate, validate_rows
from orchestrator.schema import SCHEMA
from orchestrator.text import escape
from orchestrator.trajectories import record
from orchestrator.types import Fate
from tests.stream.making import FACTS, MADE_AT_S, branch, failed, group, lease, member, trajectory, verdict
from workers.errors import Boundary
from workers.trajectory import Branch, Change, ChangeKind, Message, RewardPart, ToolCall, Trajectory

# Any code point at all, lone surrogates among them.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
TURNS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4)
BRANCHES = st.lists(st.builds(branch, TURNS, st.integers(0, 10**6)), min_size=1, max_size=3)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    texts = st.lists(ANY_TEXT, max_size=3)
    return replace(
        trajectory(draw(BRANCHES)),
        messages=tuple(Message("tool", text) for text in draw(texts)),
        tool_calls=tuple(ToolCall(0, text, text, False, text, output=text) for text in draw(texts)),
        changes=tuple(Change(text, ChangeKind.CHANGED, 1, 0o600, text) for text in draw(texts)),
        metrics=draw(st.dictionaries(ANY_TEXT, st.floats(allow_nan=False), max_size=3)),
    )


@given(text=ANY_TEXT)
def test_escaped_text_is_valid_and_escaping_twice_changes_nothing(text: str) -> None:
    once = escape(text)
    once.encode("utf-8")
    assert escape(once) == once


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain é 漢 🙂", "plain é 漢 🙂"),
        (b"\xff ok", "\\xff ok"),
        (b"\xff ok".decode("utf-8", "surrogateescape"), "\\xff ok"),
        ("\ud800", "\\ud800"),
        ("nul\0", "nul\0"),
    ],
)
def test_what_is_no_text_is_named_by_its_escape(text: str | bytes, escaped: str) -> None:
    assert escape(text) == escaped


@settings(max_examples=60, deadline=None)
@given(told=trajectories(), reward=st.floats(allow_nan=False, allow_infinity=False))
def test_an_episode_comes_back_from_its_rows(told: Trajectory, reward: float) -> None:
    made = scored(lease(), FACTS, told, verdict(reward), MADE_AT_S)
    validate_rows(made.rows, full=True)
    assert made.rows.num_rows == len(told.branches)
    for row, expected in enumerate(told.branches):
        assert_same_tokens(made.rows, row, expected)
    contents = [message["content"] for message in json.loads(made.rows["messages"][0].as_py())]
    assert contents == [escape(message.content) for message in told.messages]
    metrics: dict[str, float] = dict(made.rows["metrics"][0].as_py())
    assert metrics == {escape(name): value for name, value in told.metrics.items()}
    assert made.rows["reward"].to_pylist() == [reward] * len(told.branches)


def assert_same_tokens(rows: pa.RecordBatch, row: int, expected: Branch) -> None:
    for name in ("token_ids", "loss_mask", "logprobs"):
        np.testing.assert_array_equal(np.asarray(rows[name][row].values), getattr(expected, name))
    told = rows["segments"][row].as_py()
    assert [(s["start"], s["end"], s["sampled"]) for s in told] == [
        (s.start, s.end, s.sampled) for s in expected.segments
    ]


@settings(max_examples=40, deadline=None)
@given(told=st.lists(trajectories(), min_size=2, max_size=4))
def test_a_group_serialises_and_comes_back_byte_identical(told: list[Trajectory]) -> None:
    size = len(told)
    members = [
        scored(lease(sample=i, size=size), FACTS, one, verdict(float(i % 2)), MADE_AT_S)
        for i, one in enumerate(told)
    ]
    advantages = {i: float(i % 2) - 0.5 for i in range(size)}
    shuffled = [made.rows for made in reversed(members)]
    batch = finish_group(shuffled, advantages, Fate.DELIVERED, 5, size)
    validate(batch, full=True)
    framed = frame(batch)
    again, checksum = unframe(framed.data, SCHEMA)
    assert checksum == framed.checksum
    assert frame(again).data == framed.data
    assert again.drop_columns(["logprobs"]).equals(batch.drop_columns(["logprobs"]))


@settings(max_examples=40, deadline=None)
@given(told=trajectories())
def test_the_turns_of_an_episode_come_back_whole(told: Trajectory) -> None:
    made = scored(lease(attempt=2), FACTS, told, verdict(0.5), MADE_AT_S)
    again = record(made.turns, 0)
    assert (again.episode_id, again.attempt) == ("run/g0/0", 2)
    assert again.messages == tuple(Message(m.role, escape(m.content)) for m in told.messages)
    assert [call.output for call in again.tool_calls] == [escape(call.output) for call in told.tool_calls]
    assert [change.path for change in again.changes] == [escape(change.path) for change in told.changes]
    assert again.reward_parts == (RewardPart("calls", 0.5, 1.0, "3 of 3"),)
    assert again.created_at_s == MADE_AT_S


def test_a_failed_episode_has_no_reward_and_names_its_boundary() -> None:
    made = scored(lease(), FACTS, failed("pool_lost"), verdict(1.0), MADE_AT_S)
    validate_rows(made.rows, full=True)
    row = made.rows.to_pylist()[0]
    assert (row["status"], row["failure_boundary"], row["failure_cause"]) == (
        "failed",
        "infrastructure",
        "pool_lost",
    )
    assert row["reward"] is row["passed"] is row["stop_reason"] is row["protection"] is None
    assert (made.reward, made.passed) == (None, None)


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan, "1", True, None, 10**400])
def test_a_reward_that_is_no_finite_number_is_no_verdict(reward: object) -> None:
    made = scored(lease(), FACTS, trajectory(), replace(verdict(1.0), reward=reward), MADE_AT_S)  # type: ignore[arg-type]
    assert made.failure is not None
    assert (made.failure.boundary, made.failure.cause) == (Boundary.VERIFIER, "reward_not_finite")
    validate_rows(made.rows, full=True)


def test_an_episode_that_nobody_judged_has_failed() -> None:
    made = scored(lease(), FACTS, trajectory(), None, MADE_AT_S)
    assert made.failure is not None
    assert made.failure.cause == "no_verdict"


def test_every_branch_of_an_episode_carries_its_advantage() -> None:
    forked = scored(lease(size=2), FACTS, trajectory([branch(), branch()]), verdict(1.0), MADE_AT_S)
    plain = member(0.0, sample=1, size=2)
    batch = finish_group([forked.rows, plain.rows], {0: 1.0, 1: -1.0}, Fate.DELIVERED, 0, 2)
    validate(batch, full=True)
    assert batch["advantage"].to_pylist() == [1.0, 1.0, -1.0]
    assert batch["branch_index"].to_pylist() == [0, 1, 0]


def test_a_turn_reward_sits_on_the_last_sampled_token_of_its_turn() -> None:
    made = branch(((2, 2), (1, 3)))
    rewarded = replace(
        made,
        segments=tuple(replace(s, reward=0.5) if s.sampled and s.turn == 1 else s for s in made.segments),
    )
    rows = scored(lease(), FACTS, trajectory([rewarded]), verdict(1.0), MADE_AT_S).rows
    validate_rows(rows, full=True)
    expected = np.array([np.nan, np.nan, 0, 0, np.nan, 0, 0, 0.5], np.float32)
    np.testing.assert_array_equal(np.asarray(rows["token_rewards"][0].values), expected)


def test_a_group_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="without rows"):
        finish_group([], {}, Fate.CANCELLED, None, 0)


def test_the_rows_say_what_the_group_was_for() -> None:
    made, _ = group("g0", (1.0, 0.0))
    extras = json.loads(made.members[0].rows["extras"][0].as_py())
    assert extras == {"purpose": "train", "seed": 1000, "score": 1.0}
