"""What a verifier script wrote is a reward only where it is one beyond doubt."""

from __future__ import annotations

import pytest

from workers.verifier.reward_file import from_json, from_text


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1.0), (" 1 \n\n", 1.0), ("0.25\r\n", 0.25), ("-1e-3", -0.001), (".5", 0.5)]
)
def test_one_number_is_a_reward(text: str, value: float) -> None:
    assert from_text(text.encode()).value == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 0", "1\n0", "nan", "inf", "1e999", "0x1", "1_0", "pass", "１", "1\0", "\ufeff1"],
)
def test_anything_else_is_not(text: str) -> None:
    with pytest.raises(ValueError):
        from_text(text.encode())


@pytest.mark.parametrize(
    ("text", "value", "names"),
    [
        ("1", 1.0, []),
        ("0.5\n", 0.5, []),
        ('{"reward": 1, "style": 0.2}', 1.0, ["reward", "style"]),
        ('{"score": 0.25}', 0.25, ["score"]),
        ('{"a": 0, "b": 1}', 0.5, ["a", "b"]),
    ],
)
def test_named_parts_are_kept_and_make_one_reward(text: str, value: float, names: list[str]) -> None:
    reward = from_json(text.encode())
    assert reward.value == value
    assert [part.name for part in reward.parts] == names


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "null", "true", '"1"', "NaN", "1e999", '{"a": "1"}', '{"a": true}', '{"a": 1, "a": 0}'],
)
def test_anything_else_in_json_is_not(text: str) -> None:
    with pytest.raises(ValueError):
        from_json(text.encode())
