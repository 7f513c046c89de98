"""Reads what a GGUF model file says of its tokenizer: which tokens are special, and what names it exactly."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from workers.errors import ConfigError

_MAGIC = b"GGUF"
_PREFIX = "tokenizer."
_LARGEST_TEXT_BYTES = 16 << 20
_LARGEST_ARRAY = 16 << 20
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """`special` maps ids to texts: control tokens, and user-defined ones that are more than blanks."""

    sha256: str
    special: tuple[tuple[int, str], ...]
    vocabulary_size: int


def read_tokenizer(path: Path) -> GgufTokenizer:
    """Raises ConfigError where the file is no GGUF model."""
    try:
        with path.open("rb") as file:
            values, digest = _metadata(file)
    except (OSError, struct.error, ValueError, OverflowError, MemoryError) as error:
        raise ConfigError(
            f"{str(path)!r} is no readable GGUF model: {error}", "policy.gguf names a GGUF file"
        ) from None
    tokens, types = values.get("tokenizer.ggml.tokens"), values.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(types, list):
        raise ConfigError(f"{str(path)!r} holds no tokenizer", "give a GGUF file of a language model")
    special = tuple(
        (number, str(token))
        for number, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == TokenType.CONTROL or (kind == TokenType.USER_DEFINED and str(token).strip())
    )
    return GgufTokenizer(digest, special, len(tokens))


def _metadata(file: BinaryIO) -> tuple[dict[str, Value], str]:
    """All key-value pairs, and the sha256 over the bytes of those of the tokenizer, in the file's order."""
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    _version, _tensors, pairs = struct.unpack("<IQQ", file.read(20))
    values: dict[str, Value] = {}
    digest = hashlib.sha256()
    for _ in range(min(pairs, _LARGEST_ARRAY)):
        start = file.tell()
        key = _text(file)
        values[key] = _value(file, _number(file, "I"))
        if key.startswith(_PREFIX):
            end = file.tell()
            file.seek(start)
            digest.update(file.read(end - start))
    return values, digest.hexdigest()


def _value(file: BinaryIO, kind: int) -> Value:
    if kind != _ARRAY:
        return _scalar(file, kind)
    item_kind, count = _number(file, "I"), _number(file, "Q")
    if count > _LARGEST_ARRAY:
        raise ValueError("an array is too long")
    if item_kind in _SCALARS:
        form = f"<{count}{_SCALARS[item_kind]}"
        return list(struct.unpack(form, file.read(struct.calcsize(form))))
    return [_scalar(file, item_kind) for _ in range(count)]


def _scalar(file: BinaryIO, kind: int) -> Scalar:
    if kind == _TEXT:
        return _text(file)
    if kind not in _SCALARS:
        raise ValueError(f"unknown type {kind}")
    form = f"<{_SCALARS[kind]}"
    value: Scalar = struct.unpack(form, file.read(struct.calcsize(form)))[0]
    return value


def _text(file: BinaryIO) -> str:
    length = _number(file, "Q")
    if length > _LARGEST_TEXT_BYTES:
        raise ValueError("a text is too long")
    return file.read(length).decode("utf-8", "replace")


def _number(file: BinaryIO, form: str) -> int:
    size = struct.calcsize(f"<{form}")
    number: int = struct.unpack(f"<{form}", file.read(size))[0]
    return number
