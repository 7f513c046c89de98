"""What every batch of the stream keeps, beyond its types. Each fault names its row and the rule.

The quick check costs little per row; `full` walks the tokens too. Rows before their group is complete keep
all rules but the group's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orchestrator.errors import SchemaError
from orchestrator.schema import EPISODE_SCHEMA, SCHEMA
from orchestrator.types import Fate

_TOKEN_LISTS = ("loss_mask", "logprobs", "advantages", "token_rewards")
_IDENTITY = ("run_id", "group_id", "task_id", "group_size", "task_digest", "verifier_digest", "image_digest")
_EPISODE_FACTS = ("episode_id", "attempt", "branch_count", "status", "reward", "passed", "tokenizer_sha256")


def validate(batch: pa.RecordBatch, full: bool = False) -> None:
    """Raise SchemaError unless `batch` is one complete group that keeps every rule."""
    found = faults(batch, full)
    if found:
        raise SchemaError(found)


def validate_rows(rows: pa.RecordBatch, full: bool = False) -> None:
    """Raise SchemaError unless `rows` are whole episodes whose group's columns are not set yet."""
    found = row_faults(rows, full)
    if found:
        raise SchemaError(found)


def faults(batch: pa.RecordBatch, full: bool = False) -> tuple[str, ...]:
    """Every rule that a complete group breaks."""
    return tuple(_shape(batch, SCHEMA)) or (*_rows(batch, full), *_group(batch, full))


def row_faults(rows: pa.RecordBatch, full: bool = False) -> tuple[str, ...]:
    """Every rule that episodes break before their group is complete."""
    return tuple(_shape(rows, EPISODE_SCHEMA)) or tuple(_rows(rows, full))


def _shape(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[str]:
    if not batch.schema.equals(schema, check_metadata=True):
        names = set(batch.schema.names) ^ set(schema.names)
        wrong = [f.name for f in schema if f.name in batch.schema.names and batch.schema.field(f.name) != f]
        yield f"batch: columns must be the schema's, with its metadata (differ: {sorted(names) + wrong})"
        return
    if batch.num_rows == 0:
        yield "batch: must have a row"
    for field, column in zip(schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            yield f"row {_first(pc.is_null(column))}: {field.name} must not be null"
        elif pa.types.is_large_list(field.type) and column.flatten().null_count:
            yield f"batch: {field.name} must not hold a null token"


def _first(mask: pa.BooleanArray) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])


def _rows(batch: pa.RecordBatch, full: bool) -> Iterator[str]:
    n = pc.list_value_length(batch["token_ids"])
    for name in _TOKEN_LISTS:
        if name in batch.schema.names:
            differs = pc.fill_null(pc.not_equal(pc.list_value_length(batch[name]), n), False)
            yield from _where(differs, f"{name} must be as long as token_ids")
    failed = pc.equal(batch["status"].dictionary_decode(), "failed")
    yield from _where(
        pc.invert(pc.is_in(batch["status"].dictionary_decode(), pa.array(["ok", "failed"]))),
        "status must be ok or failed",
    )
    for name in ("reward", "passed", "stop_reason", "protection"):
        yield from _where(pc.not_equal(pc.is_null(batch[name]), failed), f"{name} must be null iff failed")
    for name in ("failure_boundary", "failure_cause"):
        yield from _where(pc.equal(pc.is_null(batch[name]), failed), f"{name} must be set iff failed")
    yield from _where(pc.fill_null(pc.invert(pc.is_finite(batch["reward"])), False), "reward must be finite")
    both = pc.and_(batch["terminated"], batch["truncated"])
    yield from _where(both, "terminated and truncated exclude each other")
    backwards = pc.greater(batch["policy_version_min"], batch["policy_version_max"])
    yield from _where(backwards, "policy_version_min must not pass policy_version_max")
    for name, bound in (("sample_index", "group_size"), ("branch_index", "branch_count")):
        inside = pc.and_(pc.less(batch[name], batch[bound]), pc.greater_equal(batch[name], 0))
        yield from _where(pc.invert(inside), f"{name} must be in [0, {bound})")
    for row in range(batch.num_rows):
        for fault in _tokens(batch, row, full):
            yield f"row {row}: {fault}"


def _where(is_broken: pa.BooleanArray, rule: str) -> Iterator[str]:
    for row in np.flatnonzero(np.asarray(is_broken)):
        yield f"row {row}: {rule}"


def _tokens(batch: pa.RecordBatch, row: int, full: bool) -> Iterator[str]:
    n = len(batch["token_ids"][row].values)
    mode, status = batch["logprobs_mode"][row].as_py(), batch["status"][row].as_py()
    if mode not in ("raw", "processed", "none"):
        yield "logprobs_mode must be raw, processed or none"
    if mode == "none" and n:
        yield "token_ids must be empty where logprobs_mode is none"
    segments = batch["segments"][row].values
    starts, ends = (np.asarray(segments.field(name)) for name in ("start", "end"))
    is_sampled = np.asarray(segments.field("sampled"), dtype=bool)
    bounds = np.concatenate([[0], ends]) if len(ends) else np.zeros(1, dtype=np.int32)
    if not np.array_equal(starts, bounds[:-1]) or bounds[-1] != n or np.any(starts >= ends):
        yield "segments must tile [0, n) without gap, overlap or empty segment"
        return
    if status == "ok" and mode != "none" and not is_sampled.any():
        yield "completion must not be empty where status is ok and logprobs_mode is not none"
    leading = int(starts[np.argmax(is_sampled)]) if is_sampled.any() else n
    if batch["prompt_len"][row].as_py() != leading:
        yield f"prompt_len must be where the first sampled segment starts ({leading})"
    if full:
        yield from _each_token(batch, row, np.repeat(is_sampled, ends - starts))


def _each_token(batch: pa.RecordBatch, row: int, is_sampled: NDArray[np.bool_]) -> Iterator[str]:
    def values(name: str) -> NDArray[np.float32] | None:
        if name not in batch.schema.names or not batch[name][row].is_valid:
            return None
        found: NDArray[np.float32] = np.asarray(batch[name][row].values)
        return found if len(found) == len(is_sampled) else None

    mask = values("loss_mask")
    # An over-long episode may be masked out whole: its tokens stay, its loss goes.
    is_masked_out = batch["truncated"][row].as_py() and mask is not None and not mask.any()
    if mask is not None and not is_masked_out and not np.array_equal(mask, is_sampled.astype(np.uint8)):
        yield "loss_mask must be 1 exactly in sampled segments (or 0 throughout in a truncated episode)"
    ids = np.asarray(batch["token_ids"][row].values)
    if len(ids) and ids.min() < 0:
        yield "token_ids must not be negative"
    for name in ("logprobs", "advantages", "token_rewards"):
        array = values(name)
        if array is None:
            continue
        if not np.array_equal(np.isnan(array), ~is_sampled):
            yield f"{name} must be NaN exactly where not sampled"
        elif not np.all(np.isfinite(array[is_sampled])):
            yield f"{name} must be finite where sampled"


def _group(batch: pa.RecordBatch, full: bool) -> Iterator[str]:
    for name in (*_IDENTITY, "group_seq", "fate", "valid_count"):
        if len(pc.unique(batch[name])) != 1:
            yield f"batch: {name} must be one for the whole group"
    fate = batch["fate"][0].as_py()
    if fate not in tuple(Fate):
        yield f"batch: fate must be one of {', '.join(Fate)}"
    if (fate == Fate.DELIVERED) != batch["group_seq"][0].is_valid:
        yield "batch: group_seq must be set iff the fate is delivered"
    yield from _episodes(batch)
    yield from _advantages(batch, fate)


def _episodes(batch: pa.RecordBatch) -> Iterator[str]:
    """Each member once, its branches together and counted, and as many valid as stated."""
    samples = batch["sample_index"].to_pylist()
    if samples != sorted(samples):
        yield "batch: members must come in the order of sample_index"
    seen: dict[int, list[dict[str, object]]] = {}
    rows = batch.select([*_EPISODE_FACTS, "branch_index"]).to_pylist()
    for sample, row in zip(samples, rows, strict=True):
        seen.setdefault(sample, []).append(row)
    for sample, branches in seen.items():
        for name in _EPISODE_FACTS:
            if any(branch[name] != branches[0][name] for branch in branches):
                yield f"member {sample}: {name} must be one for all its branches"
        if [branch["branch_index"] for branch in branches] != list(range(len(branches))):
            yield f"member {sample}: branch_index must count up from 0"
        if branches[0]["branch_count"] != len(branches):
            yield f"member {sample}: branch_count must be {len(branches)}"
    valid = sum(branches[0]["status"] == "ok" for branches in seen.values())
    if batch["valid_count"][0].as_py() != valid:
        yield f"batch: valid_count must be the number of members with a verdict ({valid})"
    if batch["fate"][0].as_py() == Fate.DELIVERED and valid < 2:
        yield "batch: a delivered group must have two valid members"


def _advantages(batch: pa.RecordBatch, fate: str) -> Iterator[str]:
    advantage, reward = batch["advantage"], batch["reward"]
    lost = pc.and_(pc.is_valid(advantage), pc.is_null(reward))
    yield from _where(lost, "advantage must be null where there is no verdict")
    wild = pc.fill_null(pc.invert(pc.is_finite(advantage)), False)
    yield from _where(wild, "advantage must be finite")
    given = advantage.drop_null()
    if 0 < len(given) != len(reward.drop_null()):
        yield "batch: advantage must be set for every member with a verdict or for none"
    if fate == Fate.DELIVERED and len(pc.unique(reward.drop_null())) < 2:
        yield "batch: a delivered group must have two different rewards"
    if fate == Fate.ZERO_VARIANCE and pc.any(pc.not_equal(given, 0)).as_py():
        yield "batch: advantage must be 0 where all rewards are equal"
