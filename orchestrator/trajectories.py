"""What was said and done in full, and what it changed: one row an attempt, for people and for search.

The rows of an episode's failed attempts are kept too; its name (`episode_id`) and `attempt` name a row. They
lie beside the stream, which never reads them, and are written without waiting for the disk: after a power
cut the last ones may be missing, after a kill none.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from orchestrator.text import escape
from orchestrator.types import Lease
from workers.errors import Boundary
from workers.trajectory import (
    Change,
    ChangeKind,
    Failure,
    Message,
    RewardPart,
    ToolCall,
    Trajectory,
    Verdict,
)

TRAJECTORIES = "trajectories"

_CALL = pa.struct(
    [
        pa.field("turn", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("arguments", pa.string()),
        pa.field("ok", pa.bool_()),
        pa.field("error", pa.string()),
        pa.field("exit_code", pa.int32()),
        pa.field("latency_s", pa.float64()),
        pa.field("output_bytes", pa.int64()),
        pa.field("output", pa.string()),
    ]
)
_CHANGE = pa.struct(
    [
        pa.field("path", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("mode", pa.int32()),
        pa.field("text", pa.string()),
    ]
)
_MESSAGE = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])
_PART = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("weight", pa.float64()),
        pa.field("detail", pa.string()),
    ]
)

TRAJECTORY_SCHEMA = pa.schema(
    [
        pa.field("episode_id", pa.string(), nullable=False),
        pa.field("attempt", pa.int16(), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("sample_index", pa.int16(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("purpose", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("stop_reason", pa.string()),
        pa.field("failure_boundary", pa.string()),
        pa.field("failure_cause", pa.string()),
        pa.field("error", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("passed", pa.bool_()),
        pa.field("num_turns", pa.int32(), nullable=False),
        pa.field("messages", pa.list_(_MESSAGE), nullable=False),
        pa.field("tool_calls", pa.list_(_CALL), nullable=False),
        pa.field("changes", pa.list_(_CHANGE), nullable=False),
        pa.field("reward_parts", pa.list_(_PART), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ],
    metadata={"schema": "rollcage.trajectory.v1"},
)


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One attempt at an episode, turn by turn. `reward` and `passed` are None where `failure` is set."""

    episode_id: str
    attempt: int
    group_id: str
    task_id: str
    purpose: str
    seed: int
    status: str
    stop_reason: str | None
    failure: Failure | None
    reward: float | None
    passed: bool | None
    num_turns: int
    messages: tuple[Message, ...]
    tool_calls: tuple[ToolCall, ...]
    changes: tuple[Change, ...]
    reward_parts: tuple[RewardPart, ...]
    created_at_s: float


def turns(
    lease: Lease, trajectory: Trajectory, verdict: Verdict | None, created_at_s: float
) -> pa.RecordBatch:
    """The row of one attempt. `verdict` must be None where the trajectory has failed."""
    failure = trajectory.failure
    row = {
        "episode_id": escape(lease.episode_id),
        "attempt": lease.attempt,
        "group_id": escape(lease.group_id),
        "sample_index": lease.sample_index,
        "task_id": escape(lease.task_id),
        "purpose": lease.purpose.value,
        "seed": lease.seed,
        "status": trajectory.status.value,
        "stop_reason": None if failure or trajectory.stop_reason is None else trajectory.stop_reason.value,
        "failure_boundary": failure.boundary.value if failure else None,
        "failure_cause": escape(failure.cause) if failure else None,
        "error": escape(failure.detail) if failure else None,
        "reward": verdict.reward if verdict else None,
        "passed": verdict.passed if verdict else None,
        "num_turns": trajectory.num_turns,
        "messages": [
            {"role": message.role, "content": escape(message.content)} for message in trajectory.messages
        ],
        "tool_calls": [{**call_facts(call), "output": escape(call.output)} for call in trajectory.tool_calls],
        "changes": [_change_facts(change) for change in trajectory.changes],
        "reward_parts": part_facts(verdict),
        "created_at": round(created_at_s * 1e6),
    }
    return pa.RecordBatch.from_pylist([row], schema=TRAJECTORY_SCHEMA)


def call_facts(call: ToolCall) -> dict[str, object]:
    """A tool call's columns, without its output."""
    return {
        "turn": call.turn,
        "name": escape(call.name),
        "arguments": escape(call.arguments),
        "ok": call.ok,
        "error": None if call.error is None else escape(call.error),
        "exit_code": call.exit_code,
        "latency_s": call.latency_s,
        "output_bytes": call.output_bytes,
    }


def part_facts(verdict: Verdict | None) -> list[dict[str, object]]:
    """The columns of a verdict's reward parts, by name and weight."""
    return [
        {
            "name": escape(part.name),
            "value": part.value,
            "weight": part.weight,
            "detail": escape(part.detail),
        }
        for part in (verdict.parts if verdict else ())
    ]


def _change_facts(change: Change) -> dict[str, object]:
    return {
        "path": escape(change.path),
        "kind": change.kind.value,
        "size_bytes": change.size_bytes,
        "mode": change.mode,
        "text": escape(change.text),
    }


def record(rows: pa.RecordBatch, index: int) -> EpisodeRecord:
    """The attempt that one row of the trajectory schema holds."""
    facts = rows.slice(index, 1).to_pylist()[0]
    boundary, cause, detail = (facts.pop(name) for name in ("failure_boundary", "failure_cause", "error"))
    created_at, _ = facts.pop("created_at"), facts.pop("sample_index")
    facts |= {
        "failure": Failure(Boundary(boundary), cause, detail) if boundary else None,
        "messages": tuple(Message(**message) for message in facts["messages"]),
        "tool_calls": tuple(ToolCall(**call) for call in facts["tool_calls"]),
        "changes": tuple(
            Change(**{**change, "kind": ChangeKind(change["kind"])}) for change in facts["changes"]
        ),
        "reward_parts": tuple(RewardPart(**part) for part in facts["reward_parts"]),
        "created_at_s": created_at.timestamp(),
    }
    return EpisodeRecord(**facts)
