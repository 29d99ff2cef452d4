"""What people's judgements say: the truth of a log, a bound on the loss, and how far reviewers agree.

An output is right if it equals the reference's, or if it was judged and found to lose nothing. An output that nobody
judged is unknown: it counts as lost, unless its request was not drawn. A known share of the requests is drawn, by a
hash that depends on no outcome, and the drawn losses are tested at the risk times this share. A missing judgement never
helps, so which pairs are judged may depend on earlier judgements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from cascade.conformal.binomial import upper_bound
from cascade.conformal.monitor import is_drawn
from cascade.conformal.promise import kind_of
from cascade.episodes.reading import Judgements
from cascade.errors import UsageError
from cascade.logs.columns import Row
from cascade.review.pairs import Compared, Pair, PairId
from cascade.review.reviews import ASKS, SKIPPED, Reviews, Terms

_T = TypeVar("_T", bound=Hashable)
VERDICTS = ("output", "reference", "equal", "both_bad")


def judgements(
    compared: Compared,
    reviews: Sequence[Reviews],
    kind: str,
    rate: float | None = None,
) -> Judgements:
    """Return what people judged, to read a log by it (`reading.reviewed`).

    Args:
        compared: the log.
        reviews: the judgements, all drawn with the same key. If reviewers differ, the output is a loss.
        kind: the kind of loss, "preference" or "regret".
        rate: the share of the requests whose judgements count; by default all that were drawn.

    Raises:
        UsageError: the reviews have another comparator or another draw, or did not ask for this kind of loss.
    """
    terms = _terms(compared, reviews, kind)
    share = terms.rate if rate is None else rate
    losses = dict[PairId, bool]()
    for file in reviews:
        for pair_id, lost in file.losses(kind).items():
            losses[pair_id] = losses.get(pair_id, False) or lost

    def loses(row: Row) -> bool | None:
        pair = compared.pair_of(row)
        if pair is None:  # without the reference's output nobody can judge
            return True
        return pair.lost(losses)

    return Judgements(kind, share, lambda name: is_drawn(terms.key, share, name), loses)


def _terms(compared: Compared, reviews: Sequence[Reviews], kind: str) -> Terms:
    """Return the terms of the reviews; refuse reviews that do not fit the request."""
    terms, every = reviews[0].terms, [file.terms for file in reviews]
    problems = []
    if any(begun.rate != terms.rate or (begun.key != terms.key and terms.rate < 1) for begun in every):
        problems.append("the files of reviews have different draws; give files of one draw")
    if any(begun.matcher != compared.comparator for begun in every):
        problems.append(f"the reviews compare outputs by {terms.matcher}, the log by {compared.comparator}: --matcher")
    rules = kind_of(kind)
    if rules is not None and "labels" in rules.needs and any(begun.ask == "preference" for begun in every):
        problems.append(f"{kind} needs right or wrong for both outputs, and the reviews asked only which is better")
    if kind not in ASKS:
        problems.append(f"reviews do not determine {kind}; ask for --promise {' or '.join(ASKS)}")
    if problems:
        raise UsageError(f"These reviews cannot be used: {'; '.join(problems)}.")
    return terms


# --- what the judgements show ---


class LossBound(NamedTuple):
    """A bound on the share of requests that lose something, from the judgements so far.

    Attributes:
        requests: the number of requests that can certify.
        drawn: the number of drawn requests with a differing output.
        lost: drawn requests with an output that is a loss.
        unjudged: drawn requests without a loss but with an unjudged output; they count as lost.
        bound: the share is at most this, with the confidence.
        confidence: the probability that the bound is not too low.
    """

    requests: int
    drawn: int
    lost: int
    unjudged: int
    bound: float
    confidence: float


def loss_bound(pairs: Sequence[Pair], requests: int, reviews: Reviews, confidence: float) -> LossBound:
    """Return the bound from reviews on the loss of serving the differing outputs instead of the reference's.

    The losses of the drawn requests, with those that lack a judgement, are counted among all that can certify. An
    upper confidence bound on that rate, divided by the rate of drawing, bounds the share of requests that lose.

    Args:
        pairs: the pairs of the drawn requests.
        requests: the number of requests that can certify.
        reviews: the judgements.
        confidence: the probability that the bound is not too low.
    """
    losses, by_request = reviews.losses(reviews.terms.ask), dict[str, list[bool | None]]()
    for pair in pairs:
        by_request.setdefault(pair.question, []).append(pair.lost(losses))
    lost = sum(any(verdicts) for verdicts in by_request.values())
    unjudged = sum(not any(verdicts) and None in verdicts for verdicts in by_request.values())
    n = max(requests, len(by_request), 1)
    bound = upper_bound(min(n, lost + unjudged), n, 1 - confidence) / reviews.terms.rate
    return LossBound(n, len(by_request), lost, unjudged, min(1.0, bound), confidence)


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
    """The agreement of two reviewers on the pairs that both judged: on how many verdicts, and Cohen's kappa of them.

    The kappa is None if it is undefined.
    """

    reviewers: tuple[str, str]
    pairs: int
    equal: int
    kappa: float | None


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
    every = []
    for left, right in combinations(reviews.reviewers, 2):
        first, second = reviews.by(left), reviews.by(right)
        verdicts = [(first[pair].verdict, second[pair].verdict) for pair in first if pair in second]
        both = [pair for pair in verdicts if SKIPPED not in pair]
        every.append(
            RaterAgreement((left, right), len(both), sum(first == second for first, second in both), cohens_kappa(both))
        )
    return every


def cohens_kappa(pairs: Sequence[tuple[_T, _T]]) -> float | None:
    """Return the agreement of two reviewers beyond chance: (seen − expected) / (1 − expected).

    None without a pair, or if both always give the same single verdict, which chance explains.

    Reference: Cohen, A coefficient of agreement for nominal scales (1960).

    >>> cohens_kappa([("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15)
    0.4
    >>> cohens_kappa([("yes", "yes")]) is None
    True
    """
    count = len(pairs)
    left, right = Counter(first for first, _ in pairs), Counter(second for _, second in pairs)
    by_chance = sum(left[name] * right[name] for name in left)
    if count * count == by_chance or not count:
        return None
    return (sum(first == second for first, second in pairs) * count - by_chance) / (count * count - by_chance)
