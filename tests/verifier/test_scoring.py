"""Verdicts in real sandboxes: a solution that fails is a 0, a judge that fails is no verdict."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping

import pytest

from tests.verifier.making import task_of, tree
from workers.archive import Archive, Entry, EntryKind, pack
from workers.errors import TaskError, VerifierError
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.scorer import Scorer
from workers.task import Task
from workers.trajectory import Protection, Verdict
from workers.verifier import calls
from workers.verifier.protocol import Submission


@pytest.fixture
async def scorer() -> AsyncIterator[Scorer]:
    backend = BubblewrapBackend()
    await backend.start()
    yield Scorer(backend)
    await backend.close()


async def judged(scorer: Scorer, task: Task, state: Mapping[str, str | bytes] | Archive) -> Verdict:
    archive = state if isinstance(state, Archive) else tree(state)
    return await scorer.score(task, Submission(archive))


def doubles(*values: int, score: str = "all", timeout_s: float = 5.0, **more: object) -> Task:
    cases = [
        {"module": "solution", "function": "double", "args": [value], "want": 2 * value, **more}
        for value in values
    ]
    return task_of(
        "calls", {"score": score}, protected={"calls.json": json.dumps(cases)}, timeout_s=timeout_s
    )


def body(*lines: str) -> dict[str, str | bytes]:
    return {
        "solution.py": "import os, sys, time\ndef double(x):\n" + "".join(f"    {line}\n" for line in lines)
    }


async def test_a_right_solution_passes_with_the_protection_that_it_had(scorer: Scorer) -> None:
    verdict = await judged(scorer, doubles(1, 2, 3), body("return 2 * x"))
    assert (verdict.reward, verdict.score, verdict.passed) == (1.0, 1.0, True)
    assert verdict.protection is Protection.VALUES
    assert json.loads(verdict.parts[0].detail) == {"right": 3, "cases": 3, "failures": []}


@pytest.mark.parametrize(
    "lines",
    [
        ["return x"],
        ["os._exit(0)"],
        ["sys.exit(0)"],
        ["os.kill(os.getpid(), 9)"],
        ["os.kill(0, 9)"],
        ["os.kill(-1, 9)"],
        ["time.sleep(60)"],
        ["return bytearray(1 << 34)"],
        ["while True: os.fork()"],
        [
            "while True: [os.write(fd, b'y' * 4096) for fd in range(3, 16) if os.path.exists(f'/proc/self/fd/{fd}')]"
        ],
        ["return type('Yes', (list,), {'__eq__': lambda *a: True})()"],
        ["open('big', 'wb').write(b'x' * (1 << 30))"],
    ],
)
async def test_whatever_a_solution_does_to_itself_is_a_zero(scorer: Scorer, lines: list[str]) -> None:
    verdict = await judged(scorer, doubles(1, 2, timeout_s=3.0), body(*lines))
    assert (verdict.reward, verdict.passed) == (0.0, False)


async def test_a_fraction_counts_the_calls_after_a_process_that_died(scorer: Scorer) -> None:
    state = body("if x == 2: os._exit(0)", "return 2 * x")
    assert (await judged(scorer, doubles(1, 2, 3, 4, score="fraction"), state)).score == 0.75
    assert (await judged(scorer, doubles(1, 2, 3, 4), state)).score == 0.0


async def test_a_call_that_hangs_leaves_the_rest_without_time(scorer: Scorer) -> None:
    state = body("if x == 2: time.sleep(60)", "return 2 * x")
    verdict = await judged(scorer, doubles(1, 2, 3, score="fraction", timeout_s=2.0), state)
    assert verdict.score == pytest.approx(1 / 3)


async def test_many_large_answers_come_in_several_processes(scorer: Scorer) -> None:
    cases = [{"module": "solution", "function": "double", "args": [2], "want": "x" * 900_000}] * 9
    task = task_of("calls", {"cases": cases})
    assert (await judged(scorer, task, body("return 'x' * 900_000"))).score == 1.0


async def test_a_slow_call_fails_by_the_judges_own_clock(scorer: Scorer) -> None:
    frozen = body(
        "clock = time.monotonic", "time.sleep(1.5)", "time.monotonic = time.time = lambda: 0.0", "return 2"
    )
    assert (await judged(scorer, doubles(1, max_s=1.0), frozen)).score == 0.0
    assert (await judged(scorer, doubles(1, max_s=10.0), frozen)).score == 1.0


async def test_a_solution_that_replaces_its_module_by_a_folder_or_link_is_judged(scorer: Scorer) -> None:
    package = {
        "solution/__init__.py": "from .deep import double",
        "solution/deep.py": "double = lambda x: 2 * x",
    }
    assert (await judged(scorer, doubles(1), package)).score == 1.0
    link = pack(
        [
            Entry("solution.py", EntryKind.LINK, target="real.py"),
            Entry("real.py", EntryKind.FILE, data=b"double = lambda x: 2 * x\n"),
        ]
    )
    assert (await judged(scorer, doubles(1), link)).score == 1.0


async def test_a_runner_that_starts_nowhere_is_the_judges_failure(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PYTHON", ("no-such-python", "-c"))
    with pytest.raises(VerifierError) as raised:
        await judged(scorer, doubles(1), body("return 2 * x"))
    assert raised.value.cause == "judge_crashed"


def program(cases: list[dict[str, object]], timeout_s: float = 5.0, **options: object) -> Task:
    protected = {"cases.json": json.dumps(cases)}
    return task_of("stdio", {"command": ["python3", "main.py"], **options}, {}, protected, timeout_s)


ADD = "import sys\nprint(sum(map(int, sys.stdin.read().split())) + len(sys.argv) - 1)\n"


async def test_a_program_is_judged_by_what_it_prints(scorer: Scorer) -> None:
    task = program([{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "", "args": ["a"], "stdout": "1\n"}])
    assert (await judged(scorer, task, {"main.py": ADD})).passed
    assert not (await judged(scorer, task, {"main.py": "print(3)"})).passed
    assert not (await judged(scorer, task, {})).passed


@pytest.mark.parametrize(
    ("compare", "stdout", "printed", "is_right"),
    [
        ("exact", "a b\n", "a b\n", True),
        ("exact", "a b\n", "a b", False),
        ("trimmed", "a b\n", "a b  \r\n\n\n", True),
        ("trimmed", "a b\n", "a  b\n", False),
        ("tokens", "a b\n", "\n a\n\tb", True),
        ("tokens", "a b", "ab", False),
        ("numeric", "x 0.5 1000000", "x 0.5000001 1000000.5", True),
        ("numeric", "0.5", "0.51", False),
        ("numeric", "0.5", "nan", False),
        ("numeric", "0.5 1", "0.5", False),
    ],
)
async def test_outputs_are_compared_as_strictly_as_the_task_says(
    scorer: Scorer, compare: str, stdout: str, printed: str, is_right: bool
) -> None:
    task = program([{"stdout": stdout}], compare=compare)
    source = f"import sys; sys.stdout.buffer.write({printed.encode()!r})"
    assert (await judged(scorer, task, {"main.py": source})).passed is is_right


async def test_a_program_must_end_as_wanted(scorer: Scorer) -> None:
    crash = {"main.py": "print('ok', flush=True); raise SystemExit(3)"}
    assert not (await judged(scorer, program([{"stdout": "ok\n"}]), crash)).passed
    assert (await judged(scorer, program([{"stdout": "ok\n", "exit_code": 3}]), crash)).passed


@pytest.mark.parametrize(
    "source",
    [
        "import time; print(1, flush=True); time.sleep(60)",
        "while True: print('1' * 4096)",
        "import os\nprint(1, flush=True)\nos.kill(0, 9)",
    ],
)
async def test_a_program_that_hangs_floods_or_dies_is_a_zero(scorer: Scorer, source: str) -> None:
    assert not (await judged(scorer, program([{"stdout": "1\n"}], timeout_s=2.0), {"main.py": source})).passed


async def test_what_a_program_leaves_is_not_there_for_the_next_case(scorer: Scorer) -> None:
    source = (
        "import os\nplaces = ['left', '/tmp/left', os.path.expanduser('~/left')]\n"
        "print(sum(map(os.path.exists, places)))\n[open(place, 'w').close() for place in places]\n"
    )
    task = program([{"stdout": "0\n"}] * 3)
    assert (await judged(scorer, task, {"main.py": source})).passed


async def test_a_cases_files_lie_over_whatever_the_agent_left_there(scorer: Scorer) -> None:
    task = program([{"stdout": "right\n", "files": {"in/data.txt": "right\n"}}])
    source = b"print(open('in/data.txt').read(), end='')"
    for trap in (
        [Entry("in", EntryKind.LINK, target="elsewhere"), Entry("elsewhere", EntryKind.FOLDER, 0o755)],
        [Entry("in", EntryKind.FILE, data=b"wrong")],
        [Entry("in", EntryKind.FOLDER, 0o755), Entry("in/data.txt", EntryKind.LINK, target="../main.py")],
        [Entry("in", EntryKind.FOLDER, 0o555), Entry("in/data.txt", EntryKind.FOLDER, 0o755)],
    ):
        state = pack([Entry("main.py", EntryKind.FILE, data=source), *trap])
        assert (await judged(scorer, task, state)).passed


def script(text: str, timeout_s: float = 5.0, **options: object) -> Task:
    return task_of("script", options, {"a.txt": "start\n"}, {"test.sh": text, "gold.txt": "hi\n"}, timeout_s)


GRADE = (
    "#!/bin/bash\nif cmp -s a.txt /tests/gold.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
)


async def test_a_script_grades_the_state_against_protected_files(scorer: Scorer) -> None:
    verdict = await judged(scorer, script(GRADE), {"a.txt": "hi\n"})
    assert verdict.passed
    assert verdict.protection is Protection.SHARED
    assert not (await judged(scorer, script(GRADE), {"a.txt": "no\n"})).passed
    assert not (await judged(scorer, script(GRADE), {})).passed


async def test_a_script_reads_the_protected_files_and_not_what_the_agent_left(scorer: Scorer) -> None:
    text = (
        "#!/bin/bash\n(echo x > /tests/test.sh || touch /tests/new) 2>/dev/null\nls /tests | wc -l > /tmp/n\n"
        + ('if [ "$(cat /tmp/n)" = 2 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n')
    )
    assert (await judged(scorer, script(text), {"tests/test.sh": "echo 0", "tests/more": ""})).passed


async def test_a_script_has_a_clean_environment(scorer: Scorer) -> None:
    claim = '[ "$TZ$PYTHONHASHSEED" = UTC0 ] && [ "$PWD" = /workspace ]'
    text = f"#!/bin/bash\n{claim} && echo 1 > /logs/verifier/reward.txt\n"
    assert (await judged(scorer, script(text), {})).passed


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("set -e\nno_such_tool\necho 1 > /logs/verifier/reward.txt\n", "judge_crashed"),
        ("exit 0\n", "reward_missing"),
        ("sleep 60\n", "judge_timeout"),
        ("echo 1 > /logs/verifier/reward.txt; sleep 60\n", "judge_timeout"),
        ("echo 1 0 > /logs/verifier/reward.txt\n", "reward_malformed"),
        ("echo nan > /logs/verifier/reward.txt\n", "reward_malformed"),
        ("mkdir /logs/verifier/reward.txt\n", "reward_malformed"),
        ("head -c 100000 /dev/zero | tr '\\0' 1 > /logs/verifier/reward.txt\n", "reward_malformed"),
        ("echo 7 > /logs/verifier/reward.txt\n", "reward_out_of_range"),
        ("echo -1 > /logs/verifier/reward.txt\n", "reward_out_of_range"),
        ('echo \'{"a": 1, "a": 0}\' > /logs/verifier/reward.json\n', "reward_malformed"),
        ("kill -9 $$\n", "judge_crashed"),
    ],
)
async def test_a_script_without_a_sound_reward_gives_no_verdict(
    scorer: Scorer, text: str, cause: str
) -> None:
    with pytest.raises(VerifierError) as raised:
        await judged(scorer, script(text, timeout_s=2.0), {})
    assert raised.value.cause == cause


async def test_white_space_a_wider_range_and_named_parts_are_kept(scorer: Scorer) -> None:
    spaced = script("printf ' 1 \\n\\n' > /logs/verifier/reward.txt\n")
    assert (await judged(scorer, spaced, {})).reward == 1.0
    wide = script("echo 7 > /logs/verifier/reward.txt; exit 1\n", range=[0, 10])
    assert (await judged(scorer, wide, {})).reward == 7.0
    named = script('echo \'{"reward": 0.5, "style": 0.1}\' > /logs/verifier/reward.json\n')
    verdict = await judged(scorer, named, {})
    assert verdict.reward == 0.5
    assert {part.name: part.value for part in verdict.parts} == {"reward": 0.5, "style": 0.1}


async def test_a_state_that_passed_a_cap_scores_zero_and_says_so(scorer: Scorer) -> None:
    verdict = await scorer.score(doubles(1), Submission(state=None))
    assert (verdict.reward, verdict.passed) == (0.0, False)
    assert verdict.parts[0].name == "state_too_large"


async def test_the_threshold_of_the_task_decides_what_passes(scorer: Scorer) -> None:
    from dataclasses import replace

    state = body("return 2 * x if x < 3 else 0")
    task = doubles(1, 2, 3, 4, score="fraction")
    assert not (await judged(scorer, task, state)).passed
    assert (await judged(scorer, replace(task, pass_threshold=0.5), state)).passed


async def test_a_task_with_faults_is_never_scored(scorer: Scorer) -> None:
    with pytest.raises(TaskError):
        await judged(scorer, task_of("rubric", {}), {})
