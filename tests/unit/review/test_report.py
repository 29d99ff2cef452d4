"""Counts and Cohen's kappa, against scikit-learn's."""

from __future__ import annotations

import random

import pytest

from cascade.review.report import agreements, cohens_kappa, tallies
from cascade.review.reviews import Judgement, Reviews, Terms

metrics = pytest.importorskip("sklearn.metrics")


def test_kappa_is_scikit_learns() -> None:
    draw = random.Random(3)
    for _ in range(50):
        pairs = [(draw.choice("abcd"), draw.choice("abcd")) for _ in range(draw.randint(5, 60))]
        found = cohens_kappa(pairs)
        assert found == pytest.approx(metrics.cohen_kappa_score(*zip(*pairs, strict=True)))


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
    assert both.kappa == pytest.approx(metrics.cohen_kappa_score(ann[:4], bob[:4]))
    assert both.kappa_losses == 1.0
