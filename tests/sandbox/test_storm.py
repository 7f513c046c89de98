"""A few rounds of the storm; `storm.py` plays as many as are wanted."""

from __future__ import annotations

import random

import pytest

from sandbox.storm import play_round


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_left_after_a_kill_at_any_moment(seed: int) -> None:
    assert play_round(seed, random.Random(seed)) == []
