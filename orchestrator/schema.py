"""The stream's contract: the columns of `rollcage.episode.v1`.

One record batch is one complete group; one row is one training sequence, a branch of an episode. A field that
is not nullable never holds a null. The rules that types can't say are in `orchestrator.rules` and are
checked by `validate`.
"""

from __future__ import annotations

import pyarrow as pa

VERSION = "rollcage.episode.v1"

# Set when the group is complete; an episode's rows travel without them until then.
GROUP_COLUMNS = ("group_seq", "fate", "valid_count", "advantages", "advantage")

_WORD = pa.dictionary(pa.int32(), pa.string())


def _must(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


SEGMENT = pa.struct(
    [
        _must("start", pa.int32()),
        _must("end", pa.int32()),
        _must("turn", pa.int32()),
        _must("role", pa.string()),
        _must("sampled", pa.bool_()),
        pa.field("policy_version", pa.int64()),
        pa.field("request_id", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("t_start", pa.float64()),
        pa.field("t_end", pa.float64()),
    ]
)

REWARD_PART = pa.struct(
    [
        _must("name", pa.string()),
        _must("value", pa.float64()),
        _must("weight", pa.float64()),
        pa.field("detail", pa.string()),
    ]
)

TOOL_CALL = pa.struct(
    [
        _must("turn", pa.int32()),
        _must("name", pa.string()),
        _must("arguments", pa.string()),
        _must("ok", pa.bool_()),
        pa.field("error", pa.string()),
        pa.field("exit_code", pa.int32()),
        _must("latency_s", pa.float64()),
        _must("output_bytes", pa.int64()),
    ]
)

SCHEMA = pa.schema(
    [
        *[_must(name, pa.string()) for name in ("run_id", "task_id", "group_id", "episode_id")],
        pa.field("group_seq", pa.int64()),
        _must("fate", _WORD),
        _must("task_digest", pa.string()),
        _must("verifier_digest", pa.string()),
        _must("image_digest", pa.string()),
        _must("harness_version", pa.string()),
        pa.field("failure_boundary", _WORD),
        pa.field("failure_cause", _WORD),
        pa.field("passed", pa.bool_()),
        _must("group_size", pa.int16()),
        _must("valid_count", pa.int16()),
        _must("sample_index", pa.int16()),
        _must("attempt", pa.int16()),
        _must("branch_index", pa.int16()),
        _must("branch_count", pa.int16()),
        _must("num_turns", pa.int16()),
        _must("task_set", _WORD),
        _must("split", _WORD),
        _must("status", _WORD),
        pa.field("stop_reason", _WORD),
        pa.field("protection", _WORD),
        _must("logprobs_mode", _WORD),
        _must("terminated", pa.bool_()),
        _must("truncated", pa.bool_()),
        _must("policy_version_min", pa.int64()),
        _must("policy_version_max", pa.int64()),
        _must("dispatch_version", pa.int64()),
        _must("token_ids", pa.large_list(pa.int32())),
        _must("prompt_len", pa.int32()),
        _must("loss_mask", pa.large_list(pa.uint8())),
        _must("logprobs", pa.large_list(pa.float32())),
        pa.field("advantages", pa.large_list(pa.float32())),
        pa.field("token_rewards", pa.large_list(pa.float32())),
        _must("segments", pa.list_(SEGMENT)),
        _must("tokenizer_sha256", pa.string()),
        *[pa.field(name, pa.string()) for name in ("messages", "tools", "sampling_params")],
        *[pa.field(name, pa.string()) for name in ("label", "error", "extras")],
        pa.field("reward", pa.float64()),
        pa.field("advantage", pa.float32()),
        _must("reward_parts", pa.list_(REWARD_PART)),
        _must("reset_digest", pa.string()),
        _must("state_digest", pa.string()),
        _must("tool_calls", pa.list_(TOOL_CALL)),
        _must("metrics", pa.map_(pa.string(), pa.float64())),
        _must("created_at", pa.timestamp("us", tz="UTC")),
    ],
    metadata={"schema": VERSION},
)

EPISODE_SCHEMA = pa.schema(
    [field for field in SCHEMA if field.name not in GROUP_COLUMNS], metadata=SCHEMA.metadata
)


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with every dictionary rebuilt in order of appearance.

    Two batches of equal rows serialise to equal bytes only then: a closed part shares its dictionaries among
    its groups, an open one does not.
    """
    columns = [
        column.dictionary_decode().dictionary_encode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
