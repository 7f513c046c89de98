"""What many cases come to: one score, and the parts that say how it came about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum

from workers.trajectory import Protection, RewardPart, Verdict

SHOWN_FAILURES = 5


class Score(StrEnum):
    """`all`: 1 where every case is right, else 0; `fraction`: the share of cases that are right."""

    ALL = "all"
    FRACTION = "fraction"


def verdict_of(problems: Sequence[str], how: Score, protection: Protection) -> Verdict:
    """`problems` has one text a case, empty where it is right. `passed` is for the scorer to say."""
    right = sum(not problem for problem in problems)
    share = right / len(problems)
    score = share if how is Score.FRACTION else float(right == len(problems))
    failures = [{"case": index, "why": why} for index, why in enumerate(problems) if why]
    detail = {"right": right, "cases": len(problems), "failures": failures[:SHOWN_FAILURES]}
    part = RewardPart(name="cases", value=share, detail=json.dumps(detail))
    return Verdict(reward=score, score=score, passed=score >= 1.0, protection=protection, parts=(part,))


def single(name: str, score: float, protection: Protection, detail: str = "") -> Verdict:
    """The verdict of one check."""
    part = RewardPart(name=name, value=score, detail=detail)
    return Verdict(reward=score, score=score, passed=score >= 1.0, protection=protection, parts=(part,))
