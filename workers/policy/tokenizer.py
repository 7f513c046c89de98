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
    """A Hugging Face `tokenizer.json`."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            data = path.read_bytes()
            parsed = json.loads(data)
            self._reading, self._spelling = _loaded(data), _loaded(data)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no tokenizer in {str(folder)!r}: {error}",
                "policy.tokenizer names a folder with the model's tokenizer.json and chat template",
            ) from None
        except Exception as error:  # the library raises bare Exception on a file it can't read
            raise ConfigError(f"{path}: {error}", "give the model's own tokenizer.json") from None
        self._spelling.encode_special_tokens = True
        self._special = {
            int(token["id"]): str(token["content"])
            for token in parsed.get("added_tokens", [])
            if token.get("special") or token["content"].strip()
        }
        self._any_special = any_of(self._special.values())
        self._sha256 = hashlib.sha256(data).hexdigest()

    @property
    def sha256(self) -> str:
        return self._sha256

    async def encode(self, text: str, *, reads_special: bool) -> list[int]:
        if reads_special:
            return list(self._reading.encode(text, add_special_tokens=False).ids)
        return [number for piece in apart(text, self._any_special) for number in self._spelled(piece)]

    def _spelled(self, text: str) -> list[int]:
        """Ids without a special one, also where the tokenizer finds one in a text that only resembles it.

        Such a place is cut behind its first character; one character alone is left out.
        """
        ids: list[int] = []
        while text:
            encoded = self._spelling.encode(text, add_special_tokens=False)
            places = [at for at, number in enumerate(encoded.ids) if number in self._special]
            if not places:
                return [*ids, *encoded.ids]
            start, end = encoded.offsets[places[0]]
            head, text = text[: start + (end - start > 1)], text[start + 1 :]
            kept = self._spelling.encode(head, add_special_tokens=False).ids
            ids += [number for number in kept if number not in self._special]
        return ids


def _loaded(data: bytes) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
