"""The space of all texts, which Gymnasium lacks: its own `Text` is a short string over a fixed alphabet."""

from __future__ import annotations

from collections.abc import Iterable

import gymnasium

_SAMPLE_CHARACTERS = 'abc 123 {}[]":,\n\t\\/äß日本🙂'
_SAMPLE_LENGTH = 24


class UnicodeText(gymnasium.Space[str]):
    """Any Python string. Samples are short: a mix of letters, JSON's marks, blanks and wide characters."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: object = None, probability: object = None) -> str:
        length = int(self.np_random.integers(0, _SAMPLE_LENGTH))
        chosen = self.np_random.integers(0, len(_SAMPLE_CHARACTERS), size=length)
        return "".join(_SAMPLE_CHARACTERS[int(index)] for index in chosen)

    def contains(self, x: object) -> bool:
        return isinstance(x, str)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        return list(sample_n)

    def from_jsonable(self, sample_n: list[str]) -> list[str]:
        return list(sample_n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText)

    def __hash__(self) -> int:
        return hash(UnicodeText)

    def __repr__(self) -> str:
        return "UnicodeText()"
