"""How many judgements a certificate needs, by the share of questions that is drawn."""

from __future__ import annotations

from typing import NamedTuple

from cascade.conformal.binomial import upper_bound
from cascade.conformal.labels import most_labelled_losses, sampled
from cascade.conformal.split import needed_n
from cascade.guarantees.base import Guarantee
from cascade.review.path import Along
from cascade.review.reviews import Reviews
from cascade.review.room import Room

RATES = (1.0, 0.5, 0.2)


class Plan(NamedTuple):
    """What drawing at a rate takes.

    Attributes:
        rate: the share of the questions that is drawn.
        requests: questions that certify, one of each group: as many judgements as labelling everything takes.
        differing: judgements on all outputs that differ, of the questions drawn, on average over draws.
        along_path: the most that the path of a policy's thresholds asks for, on average; None without a policy.
        most_lost: so many losses among the questions drawn still prove the promise; None where none do.
        least: so many questions a certificate needs, where nothing is lost.
    """

    rate: float
    requests: int
    differing: float
    along_path: float | None
    most_lost: int | None
    least: int


def plans(requests: int, differing: int, along: Along | None, wanted: Guarantee) -> list[Plan]:
    """Return what each rate takes.

    Args:
        requests: questions of the log that can certify.
        differing: outputs that differ from the reference's, in the whole log.
        along: the path of a policy's thresholds, drawn at rate 1.
        wanted: what is to be certified.
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
    """What judgements show of the share of requests that lose something, and what more of them would show.

    Attributes:
        requests: questions that can certify.
        drawn: how many of the questions with a differing output were drawn.
        lost: drawn questions with an output that is a loss.
        unsaid: drawn questions without a loss, of which an output lacks a judgement: they count as lost.
        bound: the share is at most this, with probability 1 − delta.
        more: (further judged questions, the bound if none of them is a loss, the bound if losses go on as so far;
            None where nothing was judged).
        delta: as above.
    """

    requests: int
    drawn: int
    lost: int
    unsaid: int
    bound: float
    more: tuple[tuple[int, float, float | None], ...]
    delta: float


_FURTHER = 10
"""As many further judgements are looked at, and all that are missing."""


def shown(room: Room, reviews: Reviews, delta: float = 0.1) -> Shown:
    """Return what reviews show of serving the outputs that differ, in place of the reference's.

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
