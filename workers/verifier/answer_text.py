"""Reads a final answer out of text, and never runs any of it.

The thinking part of a message does not count. What is boxed (`\\boxed{…}`) is the answer, the last box if
there are several, and none if that one is not closed; without a box it is the last number of the text. Who
lists candidates answers nothing: boxes side by side, three numbers or more in a row, or two joined by "or". An
equals sign ends a row: `6 * 7 = 42` answers 42.
Every step is linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal, InvalidOperation

MAX_NUMBER_CHARS = 400
MAX_EXPONENT = 9999

_MINUS = str.maketrans({"\u2212": "-", "\u2012": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-"})
_RAISED = ("<super>", "<sub>", "<fraction>", "<circle>")
_BREAKS = re.compile(r"[\s()\[\]{}<>:;\"'`*$|~≈\\]+")
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(rf"([+-]?)({_PLAIN})(?:[eE]([+-]?\d{{1,4}}))?", re.ASCII)
_JOINERS = frozenset({"and", "&", ","})
_HEDGES = frozenset({"or", "/"})
_LATEX_SPACES = (r"\,", r"\;", r"\:", r"\!", r"\ ")


def without_thinking(text: str) -> str:
    """What follows the last end of thinking; an unfinished thought hides all after it."""
    after = text.rpartition("</think>")[2]
    return after.partition("<think>")[0]


def normalised(text: str) -> str:
    """Compatibility forms, case, white space and invisible characters made equal; nothing else is dropped."""
    return " ".join(_compatible(text).casefold().split())


def number_in(text: str) -> Decimal | None:
    """The number that a text answers with, or None."""
    text = _compatible(text)
    boxes = _boxes(text)
    if "\\boxed{" in text[boxes[-1][1] if boxes else 0 :]:
        return None
    if not boxes:
        return _last_number(text)
    if len(boxes) > 1 and not any(char.isalnum() for char in text[boxes[-2][1] : boxes[-1][0]]):
        return None
    start, end = boxes[-1]
    return _only_number(text[text.index("{", start) + 1 : end - 1])


def _compatible(text: str) -> str:
    """NFKC, but for superscripts and the like, which would make 4\u00b2 the number 42; one kind of minus sign;
    no invisible formatting characters."""
    visible = "".join(char for char in text if unicodedata.category(char) != "Cf")
    apart = {char for char in set(visible) if unicodedata.decomposition(char).startswith(_RAISED)}
    if not apart:
        return unicodedata.normalize("NFKC", visible).translate(_MINUS)
    pieces = re.split("([" + re.escape("".join(sorted(apart))) + "])", visible)
    return "".join(p if p in apart else unicodedata.normalize("NFKC", p) for p in pieces).translate(_MINUS)


def parse_number(token: str) -> Decimal | None:
    """A decimal number, with or without an exponent or thousands separators; or a quotient of two."""
    if len(token) > MAX_NUMBER_CHARS:
        return None
    above, slash, below = token.partition("/")
    if not slash:
        return _decimal(above)
    numerator, denominator = _decimal(above), _decimal(below)
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def _decimal(token: str) -> Decimal | None:
    match = _NUMBER.fullmatch(token)
    if match is None:
        return None
    sign, digits, exponent = match.groups()
    try:
        return Decimal(f"{sign}{digits.replace(',', '')}e{exponent or 0}")
    except InvalidOperation:
        return None


def _boxes(text: str) -> list[tuple[int, int]]:
    """Where each box begins and ends, outermost ones only, its braces balanced."""
    found: list[tuple[int, int]] = []
    position = 0
    while (start := text.find("\\boxed{", position)) >= 0:
        depth = 0
        for at in range(start + 6, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                found.append((start, at + 1))
                break
        else:
            break
        position = found[-1][1]
    return found


def _only_number(text: str) -> Decimal | None:
    """The number that is the whole of a box."""
    text = text.replace("{,}", ",")
    for space in _LATEX_SPACES:
        text = text.replace(space, "")
    return parse_number(_trimmed(text.strip().strip("$").replace(r"\%", "%")))


def _last_number(text: str) -> Decimal | None:
    """The last number of running text, unless it stands in a list of candidates."""
    run: list[Decimal] = []
    is_hedged = False
    pending_hedge = False
    last_run: tuple[list[Decimal], bool] = ([], False)
    for raw in _BREAKS.split(text.replace("{,}", ",").replace("=", " = ")):
        token = _trimmed(raw)
        value = parse_number(token) if token else None
        if value is not None:
            is_hedged = (is_hedged or pending_hedge) if run else False
            run.append(value)
            last_run = (run, is_hedged)
            pending_hedge = False
        elif token.casefold() in _HEDGES:
            pending_hedge = True
        elif token and token.casefold() not in _JOINERS:
            run, is_hedged, pending_hedge = [], False, False
    numbers, hedged = last_run
    if not numbers or hedged or len(numbers) > 2:
        return None
    return numbers[-1]


def _trimmed(token: str) -> str:
    """Without the punctuation around it; a leading point may belong to a number."""
    return token.lstrip(",!?€£¥#").rstrip(".,!?%°€£¥")
