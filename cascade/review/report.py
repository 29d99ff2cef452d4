"""Statistics of reviewers: counts, agreement of two reviewers, and Cohen's kappa."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from cascade.review.reviews import SKIPPED, Reviews

_T = TypeVar("_T", bound=Hashable)
VERDICTS = ("output", "reference", "equal", "both_bad")


class ReviewerTally(NamedTuple):
    """The counts of one reviewer.

    Attributes:
        reviewer: the reviewer's name.
        judged: pairs with a judgement.
        skipped: pairs that the reviewer skipped.
        verdicts: how often each was better: "output", "reference", "equal", "both_bad".
        lost: pairs in which serving the output is a loss.
        first_better, second_better: how often the output shown first, or second, was better, which reveals a bias.
    """

    reviewer: str
    judged: int
    skipped: int
    verdicts: dict[str, int]
    lost: int
    first_better: int
    second_better: int


class RaterAgreement(NamedTuple):
    """The agreement of two reviewers on the pairs that both judged.

    Attributes:
        reviewers: the two.
        pairs: how many both judged.
        equal: on how many of them the verdicts are the same.
        kappa: Cohen's kappa of the verdicts; None if undefined.
        equal_losses: the number of pairs on which both decide about a loss, and agree.
        kappa_losses: Cohen's kappa of the losses.
    """

    reviewers: tuple[str, str]
    pairs: int
    equal: int
    kappa: float | None
    equal_losses: int
    kappa_losses: float | None


def tallies(reviews: Reviews) -> list[ReviewerTally]:
    """Return the judgements of each reviewer."""
    counted = []
    for name in reviews.reviewers:
        every = reviews.by(name).values()
        verdicts = Counter(judgement.verdict for judgement in every)
        lost = sum(judgement.loses(reviews.terms.ask) is True for judgement in every)
        first = sum(judgement.verdict == judgement.first for judgement in every)
        sided, skipped = verdicts["output"] + verdicts["reference"], verdicts["skipped"]
        counts = {verdict: verdicts[verdict] for verdict in VERDICTS}  # type: ignore[index]
        counted.append(ReviewerTally(name, len(every) - skipped, skipped, counts, lost, first, sided - first))
    return counted


def agreements(reviews: Reviews) -> list[RaterAgreement]:
    """Return the agreement of each two reviewers."""
    return [_agreement(reviews, left, right) for left, right in combinations(reviews.reviewers, 2)]


def _agreement(reviews: Reviews, left: str, right: str) -> RaterAgreement:
    own, ask = [reviews.by(left), reviews.by(right)], reviews.terms.ask
    both = [tuple(judgements[pair] for judgements in own) for pair in own[0] if pair in own[1]]
    both = [(a, b) for a, b in both if SKIPPED not in {a.verdict, b.verdict}]
    verdicts = [(a.verdict, b.verdict) for a, b in both]
    losses = [(a.loses(ask), b.loses(ask)) for a, b in both]
    kappas = cohens_kappa(verdicts), cohens_kappa(losses)
    return RaterAgreement((left, right), len(both), _equal(verdicts), kappas[0], _equal(losses), kappas[1])


def _equal(pairs: Sequence[tuple[object, object]]) -> int:
    return sum(a == b for a, b in pairs)


def cohens_kappa(pairs: Sequence[tuple[_T, _T]]) -> float | None:
    """Return the agreement of two reviewers beyond chance: (seen − expected) / (1 − expected).

    None without a pair, or if both always give the same single verdict, which chance explains.

    Reference: Cohen, A coefficient of agreement for nominal scales (1960).

    >>> cohens_kappa([("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15)
    0.4
    >>> cohens_kappa([("yes", "yes")]) is None
    True
    """
    n = len(pairs)
    left, right = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    by_chance = sum(left[name] * right[name] for name in left)
    if n * n == by_chance or not n:
        return None
    return (_equal(pairs) * n - by_chance) / (n * n - by_chance)
