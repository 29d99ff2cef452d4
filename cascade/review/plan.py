"""Computes how many judgements a certificate needs, by the drawn share of the questions."""

from __future__ import annotations

from typing import NamedTuple

from cascade.conformal.binomial import upper_bound
from cascade.conformal.labels import most_labelled_losses, sampled
from cascade.conformal.split import needed_n
from cascade.guarantees.base import Guarantee
from cascade.review.path import Along
from cascade.review.reviews import Reviews
from cascade.review.session import Room

RATES = (1.0, 0.5, 0.2)


class Plan(NamedTuple):
    """The number of judgements needed at a rate of the draw.

    Attributes:
        rate: the share of the questions that is drawn.
        requests: the number of questions that certify, one of each group, which is the number of labels without a
            review.
        differing: the number of differing outputs of drawn questions, on average over draws.
        along_path: the maximum number that the path of a policy's thresholds requests, on average; None without a
            policy.
        most_lost: the largest number of losses among drawn questions that proves the promise; None if not even 0 do.
        least: the least number of questions for a certificate, if nothing is lost.
    """

    rate: float
    requests: int
    differing: float
    along_path: float | None
    most_lost: int | None
    least: int


def plans(requests: int, differing: int, along: Along | None, wanted: Guarantee) -> list[Plan]:
    """Return the judgements that each rate takes.

    Args:
        requests: the number of questions of the log that can certify.
        differing: the number of outputs in the log that differ from the reference's.
        along: the path of a policy's thresholds, drawn at rate 1.
        wanted: the promise.
    """
    alpha, delta = wanted.alpha or 0.0, wanted.delta or 0.0
    n, longest = (requests, None) if along is None else (along.n, along.most_labels())
    return [
        Plan(
            rate,
            n,
            rate * differing,
            None if longest is None else rate * longest,
            most_labelled_losses(n, alpha, delta, rate),
            needed_n(sampled(alpha, rate), delta),
        )
        for rate in RATES
    ]


class Shown(NamedTuple):
    """Bounds on the share of requests that lose something, from the judgements so far and from further ones.

    Attributes:
        requests: the number of questions that can certify.
        drawn: the number of drawn questions with a differing output.
        lost: drawn questions with an output that is a loss.
        unsaid: drawn questions without a loss but with an unjudged output; they count as lost.
        bound: the share is at most this, with probability 1 − delta.
        more: (further judged questions, the bound if none of them is a loss, the bound if losses continue at the same
            rate; None if nothing was judged).
        delta: the probability that the bound is too low.
    """

    requests: int
    drawn: int
    lost: int
    unsaid: int
    bound: float
    more: tuple[tuple[int, float, float | None], ...]
    delta: float


_FURTHER = 10
"""The numbers of further judgements that are considered, besides all missing ones."""


def shown(room: Room, reviews: Reviews, delta: float = 0.1) -> Shown:
    """Return the bounds from reviews on the loss of serving the differing outputs instead of the reference's.

    The losses of the drawn questions, with those that lack a judgement, are counted among all that can certify. An
    upper confidence bound on that rate, divided by the rate of drawing, bounds the share of requests that lose.
    """
    losses = reviews.losses(room.terms.ask)
    questions: dict[str, list[bool | None]] = {}
    for pair in room.drawn:
        questions.setdefault(pair.question, []).append(losses.get(pair.id))
    lost = sum(any(said) for said in questions.values())
    unsaid = sum(not any(said) and None in said for said in questions.values())
    judged = len(questions) - unsaid
    n = max(room.requests, len(questions), 1)

    def bound(losses: float) -> float:
        return min(1.0, upper_bound(min(n, round(losses)), n, delta) / room.terms.rate)

    share = lost / judged if judged else None
    steps = sorted({one for one in (_FURTHER, unsaid) if 0 < one <= unsaid})
    likely = [None if share is None else bound(lost + unsaid - k + share * k) for k in steps]
    more = [(k, bound(lost + unsaid - k), then) for k, then in zip(steps, likely, strict=True)]
    return Shown(n, len(questions), lost, unsaid, bound(lost + unsaid), tuple(more), delta)
