"""The solution's slot: the image, the workspace that the task gave, the final state over it, nothing else.

Nothing protected is ever in its spec. It has no network, whatever the agent had.
"""

from __future__ import annotations

from dataclasses import replace

from workers.archive import Archive
from workers.sandbox.protocol import ExecResult, SandboxSpec
from workers.task import Task

LEAST_TIMEOUT_S = 0.05
"""With less time left nothing is started any more."""

CLEAN_ENV = (
    ("LANG", "C.UTF-8"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONHASHSEED", "0"),
    ("PYTHONPYCACHEPREFIX", "/nonexistent"),
    ("TZ", "UTC"),
)
"""Made equal for every judgement. A state keeps no times, so compiled files in it can't be told from stale
ones: Python is told to look for them elsewhere."""


def solution_spec(task: Task, state: Archive | None, *over: Archive) -> SandboxSpec:
    """`over` is laid over the state. A layer that comes twice counts where it lies highest: below it shows
    nothing, and an overlay takes no folder twice."""
    public = task.public
    asked = (public.workspace, *(() if state is None else (state,)), *over)
    highest = {layer.digest: at for at, layer in enumerate(asked)}
    layers = tuple(layer for at, layer in enumerate(asked) if highest[layer.digest] == at)
    return SandboxSpec(
        image=public.image,
        workspace_path=public.workspace_path,
        layers=layers,
        limits=replace(public.limits, allow_internet=False),
    )


def why_it_ended(result: ExecResult) -> str:
    if result.timed_out:
        return "ran out of time"
    if result.oom_killed:
        return "ran out of memory"
    if result.output_killed:
        return "wrote too much"
    if result.signal is not None:
        return f"ended by signal {result.signal}"
    return f"ended with status {result.exit_code}"
