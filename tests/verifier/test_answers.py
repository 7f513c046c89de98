"""Final answers: what counts as the answer of a text, and what a trick is worth."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.verifier.making import task_of
from workers.archive import Entry, EntryKind, pack
from workers.trajectory import Message
from workers.verifier import registry
from workers.verifier.match import Match
from workers.verifier.protocol import Submission
from workers.verifier.state_file import read_state_file

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "answers.jsonl").read_text("utf-8").splitlines()
]


def matcher(gold: object, how: str, **options: object) -> Match:
    verifier = registry.build(task_of("match", {"source": "message", "gold": gold, "how": how, **options}))
    assert isinstance(verifier, Match)
    return verifier


async def reward_of_message(verifier: Match, text: str) -> float:
    from workers.sandbox.fake import FakeBackend

    submission = Submission(pack(()), messages=(Message("assistant", text), Message("tool", "42")))
    return (await verifier.verify(submission, FakeBackend())).reward


@pytest.mark.parametrize("row", [row for row in ROWS if row["how"] != "math"], ids=lambda row: row["id"])
def test_an_answer_gets_the_reward_that_it_deserves(row: dict[str, str]) -> None:
    from workers.verifier.answer_text import without_thinking

    verifier = matcher(row["gold"], row["how"])
    assert float(verifier.is_right(without_thinking(row["answer"]))) == row["expected_reward"], row["why"]


@pytest.mark.parametrize("row", [row for row in ROWS if row["how"] == "math"], ids=lambda row: row["id"])
def test_mathematical_answers_are_refused_with_a_remedy(row: dict[str, str]) -> None:
    [fault] = registry.faults(task_of("match", {"source": "message", "gold": row["gold"], "how": "math"}))
    assert "not available in this version" in fault.problem
    assert fault.remedy


@pytest.mark.parametrize(
    ("gold", "answer", "is_right"),
    [
        ("9", "The answer is 1 2 3 4 5 6 7 8 9", False),
        ("8", r"\boxed{5} \boxed{6} \boxed{7} \boxed{8}", False),
        ("4", "3 or 4", False),
        ("4", "It is 3. No, wait: it is 4.", True),
        ("4", r"\boxed{4", False),
        ("4", r"\boxed{3 + 1}", False),
        ("0.5", r"\boxed{1/2}", True),
        ("4", "3/4", False),
        ("1234.5", "about 1,234.50 dollars", True),
        ("1234", "1,2,3,4", False),
        ("10", "10.", True),
        ("10", "x=10", True),
        ("10", "v10", False),
        ("10", "1-3-10", False),
        ("50", "50%", True),
        ("1", "1e999999999999", False),
        ("12345678901234567890", "12345678901234567891", False),
        ("0.001", "0.0010000000001", True),
        ("5", "{1,1-3-10 " + "x" * 200_000, False),
        ("5", "5 " * 100_000, False),
        ("5", r"\boxed{" * 20_000, False),
        ("7", "", False),
        ("7", "inf", False),
    ],
)
def test_numbers_are_read_without_guessing(gold: str, answer: str, is_right: bool) -> None:
    started_s = time.monotonic()
    assert matcher(gold, "numeric").is_right(answer) is is_right
    assert time.monotonic() - started_s < 5


def test_a_tolerance_is_relative_to_the_gold() -> None:
    verifier = matcher("200", "numeric", tol=0.01)
    assert verifier.is_right("202")
    assert not verifier.is_right("202.5")
    assert not matcher("0", "numeric", tol=0.5).is_right("0.001")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>4</think>5", 1.0),
        ("4</think>5", 1.0),
        ("<think>5", 0.0),
        ("<think>4</think>5<think>6", 1.0),
    ],
)
async def test_only_what_follows_the_thinking_counts(text: str, reward: float) -> None:
    assert await reward_of_message(matcher(5, "numeric"), text) == reward


@pytest.mark.parametrize(("text", "reward"), [("6 * 7 = 42", 1.0), ("6*7=42.", 1.0), ("42 = 6 * 7", 0.0)])
async def test_what_follows_an_equals_sign_is_the_answer(text: str, reward: float) -> None:
    assert await reward_of_message(matcher(42, "numeric"), text) == reward


async def test_a_submission_without_a_message_has_no_answer() -> None:
    from workers.sandbox.fake import FakeBackend

    verdict = await matcher("x", "exact").verify(Submission(pack(())), FakeBackend())
    assert verdict.reward == 0.0


def file(path: str, data: bytes = b"yes\n") -> Entry:
    return Entry(path, EntryKind.FILE, data=data)


def folder(path: str, is_opaque: bool = False) -> Entry:
    return Entry(path, EntryKind.FOLDER, 0o755, is_opaque=is_opaque)


@pytest.mark.parametrize(
    ("lower", "upper", "found"),
    [
        ([file("a")], [], b"yes\n"),
        ([file("a", b"no")], [file("a")], b"yes\n"),
        ([file("a")], [Entry("a", EntryKind.WHITEOUT)], None),
        ([file("a")], [Entry("a", EntryKind.LINK, target="b"), file("b")], None),
        ([file("a")], [folder("a")], None),
        ([], [], None),
    ],
)
def test_a_file_of_the_state_is_what_an_overlay_would_show(
    lower: list[Entry], upper: list[Entry], found: bytes | None
) -> None:
    assert read_state_file((pack(lower), pack(upper)), "a") == found


@pytest.mark.parametrize(
    ("upper", "found"),
    [
        ([folder("out")], b"yes\n"),
        ([folder("out", is_opaque=True)], None),
        ([Entry("out", EntryKind.WHITEOUT)], None),
        ([Entry("out", EntryKind.LINK, target="elsewhere")], None),
        ([file("out")], None),
    ],
)
def test_a_folder_of_the_state_hides_what_an_overlay_would_hide(
    upper: list[Entry], found: bytes | None
) -> None:
    lower = pack([folder("out"), file("out/a")])
    assert read_state_file((lower, pack(upper)), "out/a") == found
