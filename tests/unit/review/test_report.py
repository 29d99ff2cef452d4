"""Counts and Cohen's kappa, against its formula on the table of counts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from cascade.review.report import agreements, cohens_kappa, tallies
from cascade.review.reviews import Judgement, Reviews, Terms


def kappa(pairs: Sequence[tuple[str, str]]) -> float:
    names = sorted({name for pair in pairs for name in pair})
    table = np.array([[pairs.count((row, column)) for column in names] for row in names]) / len(pairs)
    expected = float(table.sum(1) @ table.sum(0))
    return (float(np.trace(table)) - expected) / (1 - expected)


def test_kappa_is_the_agreement_beyond_chance() -> None:
    draw = random.Random(3)
    for _ in range(50):
        pairs = [(draw.choice("abcd"), draw.choice("abcd")) for _ in range(draw.randint(5, 60))]
        assert cohens_kappa(pairs) == pytest.approx(kappa(pairs))


def judgement(number: int, reviewer: str, verdict: str) -> Judgement:
    return Judgement(str(number), "a", "b", "output", verdict, None, None, reviewer, "")  # type: ignore[arg-type]


def test_counts_and_agreement_of_two() -> None:
    ann = ["output", "reference", "equal", "both_bad", "reference", "skipped"]
    bob = ["output", "reference", "both_bad", "both_bad", "skipped", "equal"]
    said = [judgement(n, name, v) for name, all_of in (("ann", ann), ("bob", bob)) for n, v in enumerate(all_of)]
    reviews = Reviews(Terms("preference", "auto"), tuple(said))
    first = tallies(reviews)[0]
    assert (first.judged, first.skipped, first.lost, first.first_better, first.second_better) == (5, 1, 2, 1, 2)
    (both,) = agreements(reviews)
    assert (both.pairs, both.equal, both.equal_losses) == (4, 3, 4)
    assert both.kappa == pytest.approx(kappa(list(zip(ann[:4], bob[:4], strict=True))))
    assert both.kappa_losses == 1.0
