"""Turns texts into ids, with special tokens either read or spelled out.

The second way is for whatever came from outside: no id of a special token ever comes of it, whatever the text
spells. Special is every token that the vocabulary sets apart: control tokens, and added ones such as
`<tool_call>`, but not added runs of blanks, which are plain text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import tokenizers

from workers.errors import ConfigError


class Tokenizer(Protocol):
    @property
    def sha256(self) -> str: ...

    async def encode(self, text: str, *, reads_special: bool) -> list[int]:
        """The ids of `text`, nothing put before or behind them."""
        ...


def apart(text: str, spelling: re.Pattern[str]) -> list[str]:
    """Cut the text behind the first character of every spelling, so that no piece spells a special token."""
    pieces, start = [], 0
    while (found := spelling.search(text, start)) is not None:
        pieces.append(text[start : found.start() + 1])
        start = found.start() + 1
    return [*pieces, text[start:]] if start < len(text) else pieces


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the first of any of the texts; none where there are none."""
    return re.compile("|".join(re.escape(text) for text in texts if text) or r"(?!)")


class FolderTokenizer:
    """A Hugging Face `tokenizer.json`. Two readings of one file: with its added tokens and without."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            data = path.read_bytes()
            parsed = json.loads(data)
            self._reading = tokenizers.Tokenizer.from_str(data.decode())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no tokenizer in {str(folder)!r}: {error}",
                "policy.tokenizer names a folder with the model's tokenizer.json and chat template",
            ) from None
        except Exception as error:  # the library raises bare Exception on a file it can't read
            raise ConfigError(f"{path}: {error}", "give the model's own tokenizer.json") from None
        self._special = {
            token["id"]: token["content"]
            for token in parsed.get("added_tokens", [])
            if token.get("special") or token["content"].strip()
        }
        self._spellings = any_of(self._special.values())
        self._spelling = self._without_special(parsed)
        for each in (self._reading, self._spelling):
            each.no_truncation()
            each.no_padding()
        self._sha256 = hashlib.sha256(data).hexdigest()

    @property
    def sha256(self) -> str:
        return self._sha256

    @property
    def special_tokens(self) -> dict[int, str]:
        return dict(self._special)

    async def encode(self, text: str, *, reads_special: bool) -> list[int]:
        if reads_special:
            return list(self._reading.encode(text, add_special_tokens=False).ids)
        ids = self._spelled(text)
        if self._special.keys().isdisjoint(ids):
            return ids
        # The model's own vocabulary can hold a special token's text as a piece: cut the spelling apart.
        return [part for piece in apart(text, self._spellings) for part in self._spelled(piece)]

    def _spelled(self, text: str) -> list[int]:
        return list(self._spelling.encode(text, add_special_tokens=False).ids)

    def _without_special(self, parsed: dict[str, object]) -> tokenizers.Tokenizer:
        added = parsed.get("added_tokens")
        kept = (
            [token for token in added if token["id"] not in self._special] if isinstance(added, list) else []
        )
        return tokenizers.Tokenizer.from_str(
            json.dumps({**parsed, "added_tokens": kept, "post_processor": None})
        )
