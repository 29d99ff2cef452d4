"""How many judgements a certificate needs, by the share of questions that is drawn."""

from __future__ import annotations

from typing import NamedTuple

from cascade.conformal.binomial import needed_n
from cascade.conformal.labels import most_labelled_losses, sampled
from cascade.guarantees.base import Guarantee
from cascade.review.path import Along

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
