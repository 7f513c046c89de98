from pathlib import Path

from workers.environment import Environment
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.scorer import Scorer
from workers.taskset import load

sandboxes = BubblewrapBackend()
environment = Environment(load(Path("tasks")).tasks[0], sandboxes, scorer=Scorer(sandboxes))
observation, info = environment.reset(seed=1)
environment.step('{"name": "write_file", "arguments": {"path": "answer.txt", "content": "42"}}')
observation, reward, terminated, truncated, info = environment.step('{"name": "submit"}')
environment.close()
print(reward, terminated)
