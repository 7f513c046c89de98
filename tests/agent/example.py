import asyncio
from pathlib import Path

from workers.agent.loop import ModelAgent
from workers.agent.plain import Plain
from workers.play import play, running
from workers.policy.factory import make_policy
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.scorer import Scorer
from workers.taskset import load


async def main():
    task, sandboxes, policy = load(Path("tasks")).tasks[0], BubblewrapBackend(), make_policy()
    async with running(sandboxes, policy):
        return await play(task, ModelAgent(policy, Plain()), sandboxes, Scorer(sandboxes))


print(asyncio.run(main()).verdict)
