"""Statistics of reviewers: counts, agreement of two reviewers, and Cohen's kappa."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from cascade.review.reviews import SKIPPED, Judgement, Reviews

_T = TypeVar("_T", bound=Hashable)


class Tally(NamedTuple):
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


class Agreement(NamedTuple):
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


def tallies(reviews: Reviews) -> list[Tally]:
    """Return the judgements of each reviewer."""
    return [_tally(name, list(reviews.by(name).values()), reviews.terms.ask) for name in reviews.reviewers]


def _tally(reviewer: str, every: Sequence[Judgement], ask: str) -> Tally:
    judged = [each for each in every if each.verdict != SKIPPED]
    sided = [each for each in judged if each.verdict in {"output", "reference"}]
    first = sum(each.verdict == each.first for each in sided)
    verdicts = {
        name: sum(each.verdict == name for each in judged) for name in ("output", "reference", "equal", "both_bad")
    }
    lost = sum(each.loses(ask) is True for each in judged)
    return Tally(reviewer, len(judged), len(every) - len(judged), verdicts, lost, first, len(sided) - first)


def agreements(reviews: Reviews) -> list[Agreement]:
    """Return the agreement of each two reviewers."""
    return [_agreement(reviews, *names) for names in combinations(reviews.reviewers, 2)]


def _agreement(reviews: Reviews, *names: str) -> Agreement:
    left, right = ({pair: each for pair, each in reviews.by(name).items() if each.verdict != SKIPPED} for name in names)
    both, ask = [(left[pair], right[pair]) for pair in left if pair in right], reviews.terms.ask
    verdicts = [(a.verdict, b.verdict) for a, b in both]
    losses = [(a.loses(ask), b.loses(ask)) for a, b in both]
    kappas = cohens_kappa(verdicts), cohens_kappa(losses)
    return Agreement((names[0], names[1]), len(both), _same(verdicts), kappas[0], _same(losses), kappas[1])


def _same(pairs: Sequence[tuple[object, object]]) -> int:
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
    return (_same(pairs) * n - by_chance) / (n * n - by_chance)
