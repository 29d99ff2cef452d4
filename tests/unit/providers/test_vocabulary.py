"""A local model's special tokens are read from its file, and no data holds one of them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.errors import ModelFileError
from cascade.providers.weights import Vocabulary, read_vocabulary


def packed(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(tokens: list[str], kinds: list[int], *, version: int = 3) -> bytes:
    """Return the head of a model file."""
    words = b"".join(packed(token) for token in tokens)
    entries = [
        packed("general.name") + struct.pack("<I", 8) + packed("made"),
        packed("made.layers") + struct.pack("<II", 4, 12),
        packed("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + words,
        packed("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds),
    ]
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(entries)) + b"".join(entries)


def test_control_tokens_and_added_ones_are_special_and_tags_are_not(tmp_path: Path) -> None:
    tokens = {"a": 1, "<|end|>": 3, "<unk>": 2, "<tool_call>": 4, "<table>": 4, "    ": 4, "<0x0A>": 6, "[PAD]": 3}
    path = tmp_path / "made.gguf"
    path.write_bytes(gguf(list(tokens), list(tokens.values())))
    assert read_vocabulary(path).special == {"<|end|>", "<unk>", "<tool_call>", "[PAD]"}


@pytest.mark.parametrize("damage", ["no", "short", "length", "version"])
def test_a_damaged_file_is_one_error(tmp_path: Path, damage: str) -> None:
    whole = gguf(["a", "<|end|>"], [1, 3])
    made = {
        "no": b"PK\x03\x04" + whole[4:],
        "short": whole[:-3],
        "length": whole[:24] + struct.pack("<Q", 1 << 60) + whole[32:],
        "version": gguf(["a"], [1], version=1),
    }[damage]
    path = tmp_path / "made.gguf"
    path.write_bytes(made)
    with pytest.raises(ModelFileError, match="list of tokens"):
        read_vocabulary(path)


TOKENS = ("<|im_end|>", "<|im_start|>", "<|", "|>", "<filename>", "< ", "<<", "EOT")


@given(st.lists(st.sampled_from(TOKENS) | st.text(max_size=3), max_size=12).map("".join))
def test_no_text_holds_a_special_token(text: str) -> None:
    harmless = Vocabulary.of(TOKENS).harmless(text)
    assert not [token for token in TOKENS if token in harmless]


@given(st.text())
def test_without_special_tokens_a_text_stays(text: str) -> None:
    assert Vocabulary.of(()).harmless(text) == text
    assert Vocabulary.of(["\ue000x"]).harmless(text) == text.replace("\ue000x", "\ue000 x")
