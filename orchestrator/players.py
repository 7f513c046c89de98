"""Who plays an episode: one policy for all of them, or each task's own scripts.

Both look alike to a pool. Scripts are of the protected half of a task (solutions, attacks): they reach a pool
only when the run is asked to play them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from orchestrator.types import Lease
from workers.agent.loop import ModelAgent
from workers.agent.plain import Plain
from workers.agent.protocol import Agent
from workers.agent.react import React
from workers.agent.script import ScriptAgent
from workers.errors import ConfigError, Fault, InfrastructureError, TaskError
from workers.policy.config import check_sampling
from workers.policy.protocol import Policy, Sampling
from workers.task import Script, Task

Scripts = Mapping[str, tuple[Script, ...]]

MAX_SCRIPT_BYTES = 1 << 20


class Players(Protocol):
    """Gives each lease its agent."""

    async def start(self) -> None: ...

    def agent(self, lease: Lease) -> Agent: ...

    async def version(self) -> int:
        """The policy version in force."""
        ...

    async def close(self) -> None: ...


class ModelPlayers:
    """One policy in one scaffold plays everything."""

    def __init__(self, policy: Policy, agent: ModelAgent) -> None:
        self._policy, self._agent = policy, agent

    async def start(self) -> None:
        """Also refuses to sample in a way that would make recorded log-probabilities lie."""
        await self._policy.start()
        if self._policy.renderer is not None:
            check_sampling(self._agent.sampling, self._policy.logprobs_mode)

    def agent(self, lease: Lease) -> Agent:
        return self._agent

    async def version(self) -> int:
        """Raises InfrastructureError when the policy's own server has died: the pool is then made anew."""
        if self._policy.has_died:
            raise InfrastructureError("policy_server_died", "the local model's server ended by itself")
        return await self._policy.version()

    async def close(self) -> None:
        await self._policy.close()


class ScriptPlayers:
    """The scripts of a task in turn: member i of a group plays script i modulo their number."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    async def start(self) -> None:
        return None

    def agent(self, lease: Lease) -> Agent:
        scripts = self._scripts[lease.task_id]
        return ScriptAgent(scripts[lease.sample_index % len(scripts)])

    async def version(self) -> int:
        return 0

    async def close(self) -> None:
        return None


def read_scripts(chosen: str, tasks: Sequence[Task]) -> Scripts:
    """What `policy.script` names: a file or a folder of `*.sh` for every task, or each task's own.

    A task's own are `solution`, `attacks`, `honest`, or one of them as `attacks/NAME`; `noop` does nothing.
    Raises ConfigError or TaskError where there is nothing to play.
    """
    if chosen == "noop":
        return {task.task_id: (Script("noop", ""),) for task in tasks}
    path = Path(chosen)
    if path.exists():
        files = sorted(path.glob("*.sh")) if path.is_dir() else [path]
        scripts = tuple(_read(file) for file in files)
        if not scripts:
            raise ConfigError(
                f"policy.script = {chosen}: no *.sh in it", "give a script or a folder of scripts"
            )
        return {task.task_id: scripts for task in tasks}
    kind, _, name = chosen.partition("/")
    if kind not in ("solution", "attacks", "honest"):
        raise ConfigError(
            f"policy.script = {chosen or '(empty)'}: no such file",
            "give a shell script, a folder of them, or: solution, attacks, attacks/NAME, honest, honest/NAME, noop",
        )
    found = {task.task_id: _own(task, kind, name) for task in tasks}
    if missing := [task_id for task_id, scripts in found.items() if not scripts]:
        raise TaskError(
            tuple(
                Fault(task_id, f"{kind}/", "policy.script", chosen, "the task has no such script", "add it")
                for task_id in missing
            )
        )
    return found


def make_agent(policy: Policy, scaffold: str, sampling: Sampling, is_small: bool) -> ModelAgent:
    """The policy in its scaffold; `auto` takes the plain one for a model too small to call tools."""
    is_plain = scaffold == "plain" or (scaffold == "auto" and is_small)
    return ModelAgent(policy, Plain() if is_plain else React(), sampling)


def _own(task: Task, kind: str, name: str) -> tuple[Script, ...]:
    match kind:
        case "solution":
            return (task.solution,) if task.solution else ()
        case "attacks":
            scripts = task.attacks
        case _:
            scripts = task.honest
    return tuple(script for script in scripts if not name or script.name in (name, f"{name}.sh"))


def _read(file: Path) -> Script:
    try:
        if file.stat().st_size > MAX_SCRIPT_BYTES:
            raise ConfigError(f"policy.script = {file}: larger than {MAX_SCRIPT_BYTES} bytes", "shorten it")
        return Script(file.name, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"policy.script = {file}: can't be read: {error}", "give a UTF-8 shell script"
        ) from error
