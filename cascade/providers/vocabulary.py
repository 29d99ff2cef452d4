"""Find the special tokens of a local model in its file, and break them up in text that is data.

A GGUF file lists its tokens and the kind of each. The engine finds special tokens in any text, also inside a message.
So a blank breaks up each of them before the engine reads the text.

Source: the GGUF specification, version 3, in the repository ggml-org/ggml.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cascade.errors import ModelFileError
from cascade.safety import open_regular

_TOKENS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_BYTES = 1 << 28
"""256 MiB: no list of tokens is that long; a larger count means that the file is damaged."""
_HTML = re.compile(
    r"</?(?:a|b|blockquote|br|caption|code|div|em|h[1-6]|i|li|ol|p|pre|s|span|strong|sub|sup|table|tbody|td|tfoot|th|thead"
    r"|tr|u|ul)>"
)
"""Tags that are tokens of some tokenizers, and that ordinary text contains."""
_PASSES = 8


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The texts of a tokenizer's special tokens."""

    special: frozenset[str]
    _found: re.Pattern[str] | None

    @classmethod
    def of(cls, special: Iterable[str]) -> Vocabulary:
        """Return the vocabulary with these special tokens."""
        texts = frozenset(special)
        longest_first = sorted(texts, key=lambda text: (-len(text), text))
        return cls(texts, re.compile("|".join(map(re.escape, longest_first))) if texts else None)

    def harmless(self, text: str) -> str:
        """Return a text with a blank inside each special token, and a text without special tokens unchanged.

        >>> Vocabulary.of(["<|im_end|>"]).harmless("Paris<|im_end|>")
        'Paris< |im_end|>'
        """
        if self._found is None:
            return text
        for _ in range(_PASSES):
            if not self._found.search(text):
                return text
            text = self._found.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        while self._found.search(text):  # tokens that contain each other's pieces
            text = self._found.sub("", text)
        return text


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a model file's special tokens: control tokens, the unknown token, and added tokens that are not HTML tags.

    Raises:
        ModelFileError: the file is not in GGUF form, or is damaged.
    """
    try:
        with open_regular(path) as file:
            tokens, kinds = _lists(file)
    except (OSError, struct.error, UnicodeDecodeError, ValueError, KeyError, MemoryError) as error:
        raise ModelFileError(f"{path}: its list of tokens could not be read: {str(error) or 'damaged'}.") from None
    return Vocabulary.of(text for text, kind in zip(tokens, kinds, strict=False) if _is_special(text, kind))


def _is_special(text: str, kind: int) -> bool:
    if kind not in {_UNKNOWN, _CONTROL, _USER_DEFINED} or len(text) < 2 or not any(map(str.isalnum, text)):
        return False
    return kind != _USER_DEFINED or (text[0] in "<[|" and not _HTML.fullmatch(text))


def _lists(file: BinaryIO) -> tuple[list[str], list[int]]:
    """Return the tokens and their kinds; empty lists if the file has no tokenizer."""
    if _taken(file, 4) != b"GGUF":
        raise ValueError("it is not a GGUF file")
    version, _tensors, entries = struct.unpack("<IQQ", _taken(file, 20))
    if version < 2:
        raise ValueError(f"GGUF version {version} is too old")
    found: dict[str, list[Any]] = {}
    for _ in range(entries):
        name = _string(file)
        value = _value(file, struct.unpack("<I", _taken(file, 4))[0])
        if name in {_TOKENS, _KINDS}:
            found[name] = value
        if len(found) == 2:
            break
    return found.get(_TOKENS, []), found.get(_KINDS, [])


def _value(file: BinaryIO, kind: int) -> list[Any]:
    if kind == _STRING:
        return [_string(file)]
    if kind != _ARRAY:
        return [struct.unpack(f"<{_NUMBERS[kind]}", _taken(file, struct.calcsize(f"<{_NUMBERS[kind]}")))[0]]
    inner, many = struct.unpack("<IQ", _taken(file, 12))
    if inner == _STRING:
        return [_string(file) for _ in range(many)]
    if inner == _ARRAY:
        return [_value(file, inner) for _ in range(many)]
    layout = f"<{_checked(many)}{_NUMBERS[inner]}"
    return list(struct.unpack(layout, _taken(file, struct.calcsize(layout))))


def _string(file: BinaryIO) -> str:
    return _taken(file, struct.unpack("<Q", _taken(file, 8))[0]).decode("utf-8", "replace")


def _checked(count: int) -> int:
    if count > _MOST_BYTES:
        raise ValueError("a length in it is invalid")
    return count


def _taken(file: BinaryIO, size: int) -> bytes:
    data = file.read(_checked(size))
    if len(data) < size:
        raise ValueError("it is cut short")
    return data
