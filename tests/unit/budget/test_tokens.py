"""Estimates err high, with or without a vocabulary, and never need the network."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

from cascade.budget import tokens
from cascade.types import Message
from unit.made import request

TEXTS = ["Which river runs through Vienna?", "", "🙂" * 10, "日本語のテキスト", "x" * 500, "a b c d e", "<|endoftext|>"]


@pytest.fixture
def without_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_encoding", lambda: None)


@pytest.mark.usefixtures("without_vocabulary")
def test_without_a_vocabulary_three_bytes_make_a_token() -> None:
    assert [tokens.estimate_tokens(text) for text in ("", "a", "abc", "abcd", "é")] == [0, 1, 1, 2, 1]


@pytest.mark.parametrize("text", [*TEXTS, "\ud800"])
def test_any_text_can_be_estimated(text: str) -> None:
    assert tokens.estimate_tokens(text) >= bool(text)


@pytest.mark.usefixtures("without_vocabulary")
def test_a_lone_surrogate_can_be_estimated_without_a_vocabulary() -> None:
    assert tokens.estimate_tokens("\ud800") == 1


def test_the_estimate_is_above_the_vocabularys_own_count() -> None:
    encoding = tokens._encoding()
    if encoding is None:
        pytest.skip("litellm's vocabulary is not installed")
    for text in TEXTS:
        count = len(encoding.encode(text, disallowed_special=()))
        assert tokens.estimate_tokens(text) >= count * 1.15


def test_a_message_costs_its_frame_too() -> None:
    messages = (Message("system", "a"), Message("user", "b"))
    assert tokens.estimate_prompt(request(messages=messages)) == 2 * 8 + tokens.estimate_tokens(
        "a"
    ) + tokens.estimate_tokens("b")


def test_the_bound_is_a_token_a_byte_and_a_frame() -> None:
    assert tokens.bound_tokens(request(messages=(Message("user", "é" * 10),))) == 20 + 16
    assert tokens.bound_tokens(request(messages=(Message("user", ""), Message("user", "\ud800")))) == 1 + 32
    assert tokens.bound_tokens(request(messages=())) == 0


@pytest.mark.parametrize("text", [*TEXTS, "1 2 3 4 5 6 7 8 9 " * 50, "[1,2],[3,4]," * 50, "ᚠᛇᚻ᛫ᛒᛦᚦ" * 50])
def test_the_bound_is_never_below_the_vocabularys_own_count(text: str) -> None:
    encoding = tokens._encoding()
    if encoding is None:
        pytest.skip("litellm's vocabulary is not installed")
    count = len(encoding.encode(text, disallowed_special=()))
    assert tokens.bound_tokens(request(messages=(Message("user", text),))) >= count


@pytest.mark.parametrize("missing", ["litellm", "tiktoken"])
def test_without_a_package_there_is_no_vocabulary(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = util.find_spec
    monkeypatch.setattr(tokens.util, "find_spec", lambda name: None if name == missing else found(name))
    assert tokens._vocabulary_path() is None


def test_a_package_without_the_file_has_no_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(tokens.util, "find_spec", lambda _name: Spec)
    assert tokens._vocabulary_path() is None
    tokens._encoding.cache_clear()
    assert tokens._encoding() is None
    tokens._encoding.cache_clear()
