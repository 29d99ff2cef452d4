"""Texts that mean the same, by sentence vectors, and the threshold that judged pairs allow."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from cascade.calibration.similarity import similarity_threshold
from cascade.errors import NotCertifiedError, UsageError
from cascade.matching import get_comparator

VECTORS = {"a lot": (1.0, 0.0), "much": (0.96, 0.28), "little": (0.0, 2.0), "nothing": (-1.0, 0.0), "zero": (0.0, 0.0)}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a lot", "much", True),
        ("a lot", "little", False),
        ("a lot", "nothing", False),
        ("zero", "zero", True),
        ("zero", "a lot", False),
        ("", " ", True),
        ("", "a lot", False),
    ],
)
def test_the_cosine_decides(one: str, other: str, same: bool) -> None:
    comparator = get_comparator("embedding:threshold=0.95", embed=VECTORS.__getitem__)
    for verdict in (comparator.same(one, other), comparator.same(other, one)):
        assert verdict.correct is same
        assert verdict.score is not None
        assert 0.0 <= verdict.score <= 1.0


def test_a_threshold_and_a_sentence_model_are_needed() -> None:
    with pytest.raises(UsageError, match=r"embed.*\n.*threshold"):
        get_comparator("embedding")


def test_the_threshold_is_where_pairs_begin_to_differ_too_often() -> None:
    rng = random.Random(7)
    cosines = [rng.random() for _ in range(2_000)]
    same = [rng.random() < cosine for cosine in cosines]  # above t a share (1 - t) / 2 differs
    found = similarity_threshold(cosines, same, alpha=0.2)
    assert Fraction(60, 100) <= found <= Fraction(75, 100)


def test_the_promise_holds_as_often_as_it_says() -> None:
    rng = random.Random(1)
    broken = certified = 0
    for _ in range(100):
        cosines = [rng.random() for _ in range(300)]
        try:
            found = similarity_threshold(cosines, [rng.random() < one for one in cosines], alpha=0.2)
        except NotCertifiedError:
            continue
        certified, broken = certified + 1, broken + ((1 - float(found)) / 2 > 0.2)
    assert certified > 50
    assert broken <= 0.1 * 100 + 3 * (100 * 0.09) ** 0.5


def test_too_few_pairs_promise_nothing() -> None:
    with pytest.raises(NotCertifiedError, match="Judge at least 44 pairs"):
        similarity_threshold([0.9] * 20, [True] * 20, alpha=0.1)
    with pytest.raises(UsageError):
        similarity_threshold([0.9], [], alpha=0.1)
