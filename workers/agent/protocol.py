"""What an agent is: it acts in an environment until the episode ends, and writes down what happened."""

from __future__ import annotations

from typing import Protocol

from workers.agent.context import Context
from workers.environment import Environment
from workers.trajectory import StopReason


class Agent(Protocol):
    """Plays episodes. One agent may play many at once in one event loop."""

    async def play(self, environment: Environment, context: Context, seed: int) -> StopReason:
        """Play an environment that was just reset, to its end.

        Raises BoundaryError; `context` then holds what happened until there.
        """
        ...
