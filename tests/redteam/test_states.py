"""Whatever an agent leaves behind is judged: it can't choose an episode without a verdict.

Each script leaves a right solution and then a trap for whoever carries, lays or reads the state. Some traps
break the solution and cost its agent the reward; none may end in an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.verifier.making import task_of
from workers.agent.script import ScriptAgent
from workers.play import play
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.scorer import Scorer
from workers.task import Script, Task

RIGHT = """
echo 'def double(x): return 2 * x' > solution.py
echo 'print(4)' > main.py
echo 4 > answer.txt
"""

TRAPS = {
    "names that are not UTF-8": r"touch $'\xff\xfe' $'new\nline' $'\x01' ' ' ' -rf' '~' 'a\b'",
    "a long name": "touch $(printf 'n%.0s' {1..255})",
    "a deep tree": "python3 -c \"import os\nfor n in range(900): os.mkdir('d'); os.chdir('d')\"",
    "a deep tree that still travels": "mkdir -p $(printf 'd/%.0s' {1..190})",
    "a path beyond the limit": "for n in {1..40}; do d=$(printf 'd%.0s' {1..200}); mkdir $d && cd $d; done",
    "many files": "mkdir many && cd many && seq 1 3000 | xargs touch",
    "a sparse giant": "truncate -s 100G giant",
    "a full disk": "head -c 200M /dev/zero > full",
    "a pipe for an answer": "rm answer.txt main.py solution.py; mkfifo answer.txt main.py solution.py",
    "a socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"",
    "links that loop": "ln -s loop loop; ln -s . self; ln -s / root; ln -s /proc/self/fd fd",
    "hard links": "for n in {1..100}; do ln answer.txt link$n; done",
    "a locked workspace": "chmod 000 .",
    "locked files and folders": "mkdir locked && touch locked/x && chmod 000 locked answer.txt solution.py main.py",
    "odd modes": "chmod 7777 answer.txt; mkdir -m 7777 odd",
    "the workspace emptied": "rm -rf ./* ./.[!.]*",
    "the workspace removed": "cd / && rm -rf /workspace; mkdir -p /workspace",
    "a folder of the task made a file": "rm -rf data && echo x > data",
    "a folder of the task made a link": "rm -rf data && ln -s /etc data",
    "a file of the task made a folder": "rm -f data/a.txt && mkdir -p data/a.txt/b",
    "the task's folder replaced by its like": "rm -rf data && mkdir data && echo new > data/a.txt",
    "names of the overlay's own": "touch .wh.data .wh..wh..opq; mkdir -p .wh..wh..opq.d",
    "attributes": "setfattr -n user.overlay.opaque -v y data; setfattr -n user.overlay.whiteout -v y answer.txt",
    "the workspace as it was": "rm solution.py main.py answer.txt",
    "processes that go on": "setsid sh -c 'while :; do date > clock; done' > /dev/null 2>&1 &",
    "a packed start of Python": "touch sitecustomize.py json.py; mkdir encodings; touch encodings/__init__.py",
    "times from far away": "touch -d @0 answer.txt; touch -d '2200-01-01' main.py; touch -d @-1 solution.py",
}

WORKSPACE: dict[str, str | bytes] = {"data/a.txt": "a\n", "data/b.txt": "b\n"}
CALL = {"module": "solution", "function": "double", "args": [2], "want": 4}
SCRIPT = (
    'if [ "$(cat answer.txt 2>/dev/null)" = 4 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
)
TASKS = {
    "calls": task_of("calls", {"cases": [CALL]}, WORKSPACE),
    "stdio": task_of("stdio", {"command": ["python3", "main.py"], "cases": [{"stdout": "4\n"}]}, WORKSPACE),
    "match": task_of("match", {"file": "answer.txt", "gold": 4, "how": "numeric"}, WORKSPACE),
    "script": task_of("script", {}, WORKSPACE, {"test.sh": SCRIPT}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend()
    await backend.start()
    yield backend
    await backend.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS.keys())
async def test_a_state_with_a_trap_is_judged_by_every_kind(sandboxes: BubblewrapBackend, trap: str) -> None:
    for kind, task in TASKS.items():
        played = await play(
            task, ScriptAgent(Script("trap", f"{RIGHT}\n{trap}\n")), sandboxes, Scorer(sandboxes)
        )
        assert played.trajectory.failure is None, (kind, played.trajectory.failure)
        assert played.verdict is not None
        assert played.verdict.score in (0.0, 1.0)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
async def test_without_a_trap_the_same_solution_passes(sandboxes: BubblewrapBackend, task: Task) -> None:
    played = await play(task, ScriptAgent(Script("right", RIGHT)), sandboxes, Scorer(sandboxes))
    assert played.verdict is not None
    assert played.verdict.passed
