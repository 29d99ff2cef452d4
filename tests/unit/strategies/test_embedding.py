"""The sentence model: what it gives, and what is said where it is not here."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from cascade.errors import MissingExtraError, ModelFileError
from cascade.providers import weights
from cascade.strategies.embedding import MODEL, MOST_TOKENS, WIDTH, SentenceModel, sentence_model


def real() -> SentenceModel:
    pytest.importorskip("onnxruntime", reason="the extra embed is not installed")
    if not all(one.here for one in weights.with_others([MODEL])):
        pytest.skip(f"its weights are not on this machine: cascade models pull {MODEL}")
    return sentence_model()


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[embed\]"):
        SentenceModel()


def test_without_the_weights_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra embed is not installed")
    held = {name: replace(one, bytes=1) for name, one in weights.registry().items()}
    monkeypatch.setattr(weights, "registry", lambda: held)
    with pytest.raises(ModelFileError, match="cascade models pull minilm"):
        SentenceModel()


def test_its_weights_are_pinned() -> None:
    model, words = weights.with_others([MODEL])
    assert (model.path.suffix, words.path.name) == (".onnx", "minilm-tokenizer.json")
    assert {len(model.sha256), len(words.sha256)} == {64}


def test_what_is_alike_lies_near() -> None:
    embed = real()
    river, stream, sums = (
        embed(one)
        for one in ("Which river runs through Vienna?", "What stream crosses Vienna?", "What is 17 times 23?")
    )
    assert river.shape == (WIDTH,)
    assert river.dtype == np.float64
    assert np.isclose((river**2).sum(), 1.0)
    assert river @ stream > 0.6
    assert river @ sums < 0.3


def test_the_same_text_gives_the_same_bits_and_only_the_start_of_a_long_one_is_read() -> None:
    embed = real()
    assert embed("What is 17 times 23?").tobytes() == embed("What is 17 times 23?").tobytes()
    long = "river " * (MOST_TOKENS + 50)
    assert embed(long).tobytes() == embed(long + "and a mountain").tobytes()
    assert np.isfinite(embed("")).all()


def test_it_is_named_by_its_weights() -> None:
    assert real().name == f"{MODEL}:{weights.known(MODEL).sha256[:16]}"
