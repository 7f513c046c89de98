"""Episodes as rows of the stream's schema.

A row is a branch. Token columns go from numpy to Arrow whole, never a Python object a token. All text is
escaped here, at the source. A reward that is no finite number is no verdict: the episode has failed at the
verifier. A group's own columns are set once, when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.advantages import is_valid
from orchestrator.schema import EPISODE_SCHEMA, SCHEMA, canonical
from orchestrator.text import escape
from orchestrator.trajectories import call_facts, part_facts, turns
from orchestrator.types import Fate, Lease, Scored
from workers.errors import Boundary
from workers.trajectory import Branch, Failure, LogprobsMode, Segment, Trajectory, Verdict

_NO_TOKENS = Branch(np.zeros(0, np.int32), 0, np.zeros(0, np.uint8), np.zeros(0, np.float32), ())


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What the rows say of their task. `label` is for trainers that want one; never the hidden answer."""

    task_set: str
    split: str
    task_digest: str
    verifier_digest: str
    image_digest: str
    harness_version: str
    label: str | None = None


def scored(
    lease: Lease, facts: TaskFacts, trajectory: Trajectory, verdict: Verdict | None, created_at_s: float
) -> Scored:
    """The scored episode: its rows and its turns. `created_at_s` is seconds since the epoch.

    A member that never came back is scored with an empty trajectory that holds only its failure.
    """
    trajectory = replace(trajectory, failure=trajectory.failure or _fault_of(verdict))
    if trajectory.failure:
        verdict = None
    return Scored(
        lease=lease,
        reward=verdict.reward if verdict else None,
        passed=verdict.passed if verdict else None,
        failure=trajectory.failure,
        rows=_rows(lease, facts, trajectory, verdict, created_at_s),
        turns=turns(lease, trajectory, verdict, created_at_s),
    )


def finish_group(
    rows: Sequence[pa.RecordBatch],
    advantages: Mapping[int, float | None],
    fate: Fate,
    group_seq: int | None,
    valid_count: int,
) -> pa.RecordBatch:
    """The one batch of a complete group: its members' rows, by sample index, with the group's columns set.

    `advantages` maps a sample index to its advantage; every branch of an episode carries it. The per-token
    column stays null: the one number holds for every sampled token. Raises ValueError without rows.
    """
    if not rows:
        raise ValueError("a group without rows can't be stored")
    table = pa.Table.from_batches(rows, schema=EPISODE_SCHEMA)
    table = table.sort_by([("sample_index", "ascending"), ("branch_index", "ascending")])
    episodes = table.combine_chunks().unify_dictionaries().to_batches()[0]
    n = episodes.num_rows
    samples = episodes["sample_index"].to_pylist()
    group = {
        "group_seq": pa.array([group_seq] * n, pa.int64()),
        "fate": pa.array([fate.value] * n, pa.string()).dictionary_encode(),
        "valid_count": pa.array([valid_count] * n, pa.int16()),
        "advantages": pa.nulls(n, SCHEMA.field("advantages").type),
        "advantage": pa.array([advantages.get(sample) for sample in samples], pa.float32()),
    }
    columns = [group[name] if name in group else episodes[name] for name in SCHEMA.names]
    return canonical(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def _fault_of(verdict: Verdict | None) -> Failure | None:
    if verdict is None:
        return Failure(Boundary.VERIFIER, "no_verdict")
    if not is_valid(verdict.reward):
        return Failure(Boundary.VERIFIER, "reward_not_finite", f"the verifier answered {verdict.reward!r}")
    return None


def _rows(
    lease: Lease, facts: TaskFacts, trajectory: Trajectory, verdict: Verdict | None, created_at_s: float
) -> pa.RecordBatch:
    branches = trajectory.branches or (_NO_TOKENS,)
    if trajectory.logprobs_mode is LogprobsMode.NONE:
        branches = (_NO_TOKENS,)
    n = len(branches)
    shared = (
        _identity(lease, facts) | _outcome(trajectory, verdict) | _record(lease, facts, trajectory, verdict)
    )
    shared["created_at"] = round(created_at_s * 1e6)
    columns = {name: pa.array([value] * n, _plain(name)) for name, value in shared.items()}
    columns |= _tokens(branches)
    columns |= {
        "branch_index": pa.array(range(n), pa.int16()),
        "branch_count": pa.array([n] * n, pa.int16()),
    }
    arrays = [
        columns[field.name].dictionary_encode() if pa.types.is_dictionary(field.type) else columns[field.name]
        for field in EPISODE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EPISODE_SCHEMA)


def _plain(name: str) -> pa.DataType:
    kind = EPISODE_SCHEMA.field(name).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _identity(lease: Lease, facts: TaskFacts) -> dict[str, object]:
    return {
        "run_id": escape(lease.run_id),
        "task_id": escape(lease.task_id),
        "group_id": escape(lease.group_id),
        "episode_id": escape(lease.episode_id),
        "task_digest": facts.task_digest,
        "verifier_digest": facts.verifier_digest,
        "image_digest": facts.image_digest,
        "harness_version": facts.harness_version,
        "task_set": escape(facts.task_set),
        "split": facts.split,
        "group_size": lease.group_size,
        "sample_index": lease.sample_index,
        "attempt": lease.attempt,
        "dispatch_version": lease.dispatch_version,
    }


def _outcome(trajectory: Trajectory, verdict: Verdict | None) -> dict[str, object]:
    failure, stop = trajectory.failure, trajectory.stop_reason
    has_stopped = failure is None and stop is not None
    return {
        "status": trajectory.status.value,
        "failure_boundary": failure.boundary.value if failure else None,
        "failure_cause": escape(failure.cause) if failure else None,
        "error": escape(failure.detail) if failure and failure.detail else None,
        "stop_reason": stop.value if stop and has_stopped else None,
        "terminated": bool(stop and has_stopped and stop.is_terminated),
        "truncated": bool(stop and has_stopped and not stop.is_terminated),
        "reward": float(verdict.reward) if verdict else None,
        "passed": verdict.passed if verdict else None,
        "protection": verdict.protection.value if verdict else None,
        "reward_parts": part_facts(verdict),
    }


def _record(
    lease: Lease, facts: TaskFacts, trajectory: Trajectory, verdict: Verdict | None
) -> dict[str, object]:
    messages = [{"role": message.role, "content": escape(message.content)} for message in trajectory.messages]
    extras: dict[str, object] = {"purpose": lease.purpose.value, "seed": lease.seed}
    if verdict:
        extras["score"] = verdict.score
    return {
        "num_turns": trajectory.num_turns,
        "logprobs_mode": trajectory.logprobs_mode.value,
        "tokenizer_sha256": trajectory.tokenizer_sha256,
        "policy_version_min": trajectory.policy_version_min,
        "policy_version_max": trajectory.policy_version_max,
        "messages": json.dumps(messages, ensure_ascii=False),
        "tools": escape(trajectory.tools),
        "sampling_params": escape(trajectory.sampling_params),
        "label": None if facts.label is None else escape(facts.label),
        "extras": json.dumps(extras),
        "reset_digest": trajectory.reset_digest,
        "state_digest": trajectory.state_digest,
        "tool_calls": [call_facts(call) for call in trajectory.tool_calls],
        "metrics": [(escape(name), float(value)) for name, value in trajectory.metrics.items()],
    }


def _tokens(branches: Sequence[Branch]) -> dict[str, pa.Array]:
    has_rewards = any(segment.reward is not None for branch in branches for segment in branch.segments)
    rewards = [_token_rewards(branch) for branch in branches] if has_rewards else None
    kind = EPISODE_SCHEMA.field("token_rewards").type
    return {
        "token_ids": _lists([branch.token_ids for branch in branches], np.int32),
        "loss_mask": _lists([branch.loss_mask for branch in branches], np.uint8),
        "logprobs": _lists([branch.logprobs for branch in branches], np.float32),
        "token_rewards": _lists(rewards, np.float32) if rewards else pa.nulls(len(branches), kind),
        "prompt_len": pa.array([branch.prompt_len for branch in branches], pa.int32()),
        "segments": pa.array(
            [[_segment(segment) for segment in branch.segments] for branch in branches], _plain("segments")
        ),
    }


def _lists(
    arrays: Sequence[NDArray[np.generic]], kind: type[np.int32] | type[np.uint8] | type[np.float32]
) -> pa.LargeListArray:
    offsets = np.cumsum([0, *(len(array) for array in arrays)], dtype=np.int64)
    values = np.concatenate([np.asarray(array, kind) for array in arrays])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))


def _token_rewards(branch: Branch) -> NDArray[np.float32]:
    """A turn's reward sits on its last sampled token; the other sampled tokens hold 0, the rest NaN."""
    rewards = np.full(len(branch.token_ids), np.nan, np.float32)
    for segment in branch.segments:
        if segment.sampled:
            rewards[segment.start : segment.end] = 0
            rewards[segment.end - 1] = segment.reward or 0
    return rewards


def _segment(segment: Segment) -> dict[str, object]:
    return {
        "start": segment.start,
        "end": segment.end,
        "turn": segment.turn,
        "role": segment.role,
        "sampled": segment.sampled,
        "policy_version": segment.policy_version,
        "request_id": segment.request_id,
        "finish_reason": segment.finish_reason,
        "reward": segment.reward,
        "t_start": segment.t_start,
        "t_end": segment.t_end,
    }
