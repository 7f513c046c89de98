"""The columns of the stream, and the rules that every batch keeps."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.errors import SchemaError, StreamError
from orchestrator.rows import finish_group, scored
from orchestrator.rules import faults, row_faults, validate, validate_rows
from orchestrator.schema import EPISODE_SCHEMA, GROUP_COLUMNS, SCHEMA, VERSION
from orchestrator.types import Fate
from tests.stream.making import FACTS, MADE_AT_S, branch, group, lease, member, trajectory, verdict
from workers.trajectory import Branch, LogprobsMode, Segment, StopReason

NULLABLE = {
    *("group_seq", "failure_boundary", "failure_cause", "passed", "stop_reason", "protection", "advantages"),
    *(
        "token_rewards",
        "messages",
        "tools",
        "sampling_params",
        "label",
        "error",
        "extras",
        "reward",
        "advantage",
    ),
}


def batch(rewards: tuple[float | None, ...] = (1.0, 0.0, None, 1.0)) -> pa.RecordBatch:
    made, decision = group("g0", rewards)
    rows = [scored.rows for scored in made.members]
    return finish_group(rows, decision.advantages, decision.fate, 7, made.valid_count)


def with_column(rows: pa.RecordBatch, name: str, values: list[object]) -> pa.RecordBatch:
    field = rows.schema.field(name)
    plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    column = pa.array(values, plain)
    column = column.dictionary_encode() if pa.types.is_dictionary(field.type) else column
    columns = [column if other == name else rows[other] for other in rows.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def test_the_schema_carries_its_version_and_says_what_is_never_null() -> None:
    assert SCHEMA.metadata == {b"schema": VERSION.encode()}
    assert {field.name for field in SCHEMA if field.nullable} == NULLABLE
    assert set(SCHEMA.names) - set(EPISODE_SCHEMA.names) == set(GROUP_COLUMNS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("token_ids", pa.large_list(pa.int32())),
        ("loss_mask", pa.large_list(pa.uint8())),
        ("logprobs", pa.large_list(pa.float32())),
        ("group_seq", pa.int64()),
        ("group_size", pa.int16()),
        ("prompt_len", pa.int32()),
        ("reward", pa.float64()),
        ("advantage", pa.float32()),
        ("metrics", pa.map_(pa.string(), pa.float64())),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("status", pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_a_column_has_the_type_that_trainers_rely_on(name: str, kind: pa.DataType) -> None:
    assert SCHEMA.field(name).type == kind


def test_a_complete_group_keeps_every_rule() -> None:
    assert faults(batch(), full=True) == ()


def test_rows_keep_their_rules_before_their_group_is_complete() -> None:
    validate_rows(member(1.0).rows, full=True)
    with pytest.raises(SchemaError, match="columns must be the schema's"):
        validate(member(1.0).rows)


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("prompt_len", [4, 5, 0, 5], "row 0: prompt_len must be where the first sampled segment starts (5)"),
        ("reward", [None, 0.0, None, 1.0], "row 0: reward must be null iff failed"),
        ("reward", [1.0, 0.0, 0.0, 1.0], "row 2: reward must be null iff failed"),
        ("reward", [float("inf"), 0.0, None, 1.0], "row 0: reward must be finite"),
        ("passed", [True, None, None, True], "row 1: passed must be null iff failed"),
        ("failure_cause", ["x", None, "pool_lost", None], "row 0: failure_cause must be set iff failed"),
        ("status", ["fine", "ok", "failed", "ok"], "row 0: status must be ok or failed"),
        ("group_id", ["g0", "g1", "g0", "g0"], "batch: group_id must be one for the whole group"),
        ("task_id", ["a", "b", "a", "a"], "batch: task_id must be one for the whole group"),
        ("fate", ["stale"] * 4, "batch: group_seq must be set iff the fate is delivered"),
        ("fate", ["lost"] * 4, "batch: fate must be one of"),
        ("group_seq", [None] * 4, "batch: group_seq must be set iff the fate is delivered"),
        ("group_seq", [7, 7, 8, 7], "batch: group_seq must be one for the whole group"),
        ("valid_count", [4] * 4, "batch: valid_count must be the number of members with a verdict (3)"),
        ("advantage", [0.5, -1.0, 0.5, 0.5], "row 2: advantage must be null where there is no verdict"),
        ("advantage", [float("nan"), -1.0, None, 0.5], "row 0: advantage must be finite"),
        ("advantage", [0.5, None, None, 0.5], "batch: advantage must be set for every member with a verdict"),
        ("sample_index", [1, 0, 2, 3], "batch: members must come in the order of sample_index"),
        ("sample_index", [0, 1, 2, 4], "row 3: sample_index must be in [0, group_size)"),
        ("branch_count", [2, 1, 1, 1], "member 0: branch_count must be 1"),
        ("branch_index", [1, 0, 0, 0], "row 0: branch_index must be in [0, branch_count)"),
        ("policy_version_min", [4, 3, 0, 3], "row 0: policy_version_min must not pass policy_version_max"),
        ("truncated", [True, False, False, False], "row 0: terminated and truncated exclude each other"),
        (
            "logprobs_mode",
            ["cooked", "raw", "raw", "raw"],
            "row 0: logprobs_mode must be raw, processed or none",
        ),
        ("logprobs_mode", ["none", "raw", "raw", "raw"], "row 0: token_ids must be empty where"),
        ("task_digest", ["t", None, "t", "t"], "row 1: task_digest must not be null"),
    ],
)
def test_a_broken_rule_is_told_with_its_row(name: str, values: list[object], rule: str) -> None:
    found = faults(with_column(batch(), name, values))
    assert any(fault.startswith(rule) for fault in found), found


def spoilt(change: Callable[[dict[str, np.ndarray], list[Segment]], None]) -> pa.RecordBatch:
    made = branch()
    arrays = {"token_ids": made.token_ids, "loss_mask": made.loss_mask, "logprobs": made.logprobs}
    segments = list(made.segments)
    change(arrays, segments)
    told = trajectory([replace(made, **arrays, segments=tuple(segments))])
    return scored(lease(), FACTS, told, verdict(1.0), MADE_AT_S).rows


def gap(_: dict[str, np.ndarray], segments: list[Segment]) -> None:
    del segments[1]


def short_tail(_: dict[str, np.ndarray], segments: list[Segment]) -> None:
    del segments[-1]


def unmasked(arrays: dict[str, np.ndarray], _: list[Segment]) -> None:
    arrays["loss_mask"][-1] = 0


def over_masked(arrays: dict[str, np.ndarray], _: list[Segment]) -> None:
    arrays["loss_mask"][0] = 1


def known_prompt(arrays: dict[str, np.ndarray], _: list[Segment]) -> None:
    arrays["logprobs"][0] = -1


def unknown_sample(arrays: dict[str, np.ndarray], _: list[Segment]) -> None:
    arrays["logprobs"][-1] = np.nan


def impossible_sample(arrays: dict[str, np.ndarray], _: list[Segment]) -> None:
    arrays["logprobs"][-1] = -np.inf


def uneven(arrays: dict[str, np.ndarray], _: list[Segment]) -> None:
    arrays["logprobs"] = arrays["logprobs"][:-1]


def negative(arrays: dict[str, np.ndarray], _: list[Segment]) -> None:
    arrays["token_ids"][0] = -1


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (gap, "row 0: segments must tile"),
        (short_tail, "row 0: segments must tile"),
        (unmasked, "row 0: loss_mask must be 1 exactly in sampled segments"),
        (over_masked, "row 0: loss_mask must be 1 exactly in sampled segments"),
        (known_prompt, "row 0: logprobs must be NaN exactly where not sampled"),
        (unknown_sample, "row 0: logprobs must be NaN exactly where not sampled"),
        (impossible_sample, "row 0: logprobs must be finite where sampled"),
        (uneven, "row 0: logprobs must be as long as token_ids"),
        (negative, "row 0: token_ids must not be negative"),
    ],
)
def test_a_broken_token_rule_is_told_with_its_row(
    change: Callable[[dict[str, np.ndarray], list[Segment]], None], rule: str
) -> None:
    found = row_faults(spoilt(change), full=True)
    assert any(fault.startswith(rule) for fault in found), found


def test_an_episode_that_is_ok_has_a_completion() -> None:
    prompt, nothing = np.arange(5, dtype=np.int32), np.full(5, np.nan, np.float32)
    silent = Branch(prompt, 5, np.zeros(5, np.uint8), nothing, (Segment(0, 5, 0, "user", False),))
    found = row_faults(scored(lease(), FACTS, trajectory([silent]), verdict(0.0), MADE_AT_S).rows)
    assert any("completion must not be empty" in fault for fault in found)


def test_an_episode_without_tokens_is_whole_where_the_mode_says_none() -> None:
    told = replace(trajectory(), branches=(), logprobs_mode=LogprobsMode.NONE, tokenizer_sha256="")
    rows = scored(lease(), FACTS, told, verdict(1.0), MADE_AT_S).rows
    validate_rows(rows, full=True)
    assert rows["token_ids"].to_pylist() == [[]]


def test_a_truncated_episode_may_be_masked_out_whole() -> None:
    masked = replace(branch(), loss_mask=np.zeros(14, np.uint8))
    for stop, is_allowed in ((StopReason.MAX_TOKENS, True), (StopReason.SUBMITTED, False)):
        rows = scored(lease(), FACTS, trajectory([masked], stop), verdict(0.0), MADE_AT_S).rows
        assert (row_faults(rows, full=True) == ()) is is_allowed


def test_an_empty_batch_and_wrong_columns_are_refused() -> None:
    assert faults(batch().slice(0, 0)) == ("batch: must have a row",)
    with pytest.raises(SchemaError, match="advantage"):
        validate(batch().drop_columns(["advantage"]))


def test_a_delivered_group_needs_two_different_rewards() -> None:
    equal = [member(1.0, sample=sample).rows for sample in range(4)]
    made = finish_group(equal, dict.fromkeys(range(4), 0.0), Fate.DELIVERED, 0, 4)
    assert faults(made) == ("batch: a delivered group must have two different rewards",)


@pytest.mark.parametrize("error", [SchemaError(("row 0: a",)), StreamError("full", "free space")])
def test_the_errors_of_the_stream_survive_pickling(error: StreamError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
