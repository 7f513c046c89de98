"""Plays a shell script as the agent: a solution, an attack, an honest variant, or nothing at all."""

from __future__ import annotations

from dataclasses import dataclass

from workers.agent.context import Context
from workers.environment import Environment
from workers.task import Script
from workers.trajectory import Message, StopReason


@dataclass(frozen=True, slots=True)
class ScriptAgent:
    """Runs `script` once in the workspace, then submits. An empty script does nothing."""

    script: Script

    async def play(self, environment: Environment, context: Context, seed: int) -> StopReason:
        context.open((Message("user", environment.task.instruction),), None)
        observation, *_ = await environment.arun_script(self.script)
        context.messages += [Message("assistant", self.script.body), Message("tool", observation)]
        context.turns += 1
        assert environment.stop_reason is not None
        return environment.stop_reason
