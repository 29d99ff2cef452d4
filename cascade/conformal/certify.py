"""The certifier: walk a path from its first point and stop before the first that the requests do not prove.

With a confidence 1 − δ, a point passes if so few of n requests are lost that a rate of `risk` or more would give so few
with probability δ at most (the exact binomial). The points were put in order without these requests, so all that pass
before the first failure hold at once: Pr[any breaks] ≤ δ. Graded losses are tested at half of the level: toss a coin
for each loss, with the loss as its probability. The coins' sum is binomial, and its median is at most a whole number
that the losses do not exceed (Jogdeo & Samuels, 1968). So the losses pass at most twice as often as the coins.

On average over calibrations, a point passes if (losses + 1) / (n + 1) ≤ risk (conformal risk control; for coverage this
is split conformal prediction). The losses must not fall as the threshold rises.

References: Angelopoulos et al., Learn then test (2021); Angelopoulos et al., Conformal risk control (2022); Vovk,
Gammerman & Shafer (2005).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cascade.conformal.binomial import lower_tail, most_losses
from cascade.conformal.path import UNITS, Path, Point
from cascade.conformal.promise import Promise


@dataclass(frozen=True, slots=True)
class Certified:
    """The last point of a path that is proven, and its figures on the requests that prove it.

    Attributes:
        point: the point; its threshold lies between two scores of these requests where the path is `midway`.
        n: the requests that prove it.
        losses: how many of them are lost there.
        silent: how many of them are served nothing.
        level: the probability, over calibrations, at which it was tested; None: on average.
    """

    point: Point
    n: int
    losses: Fraction
    silent: int
    level: float | None


def certify(path: Path, promise: Promise, level: float | None = None, *, midway: bool = True) -> Certified | None:
    """Return the last point before the first that fails; None if not even the first passes.

    Args:
        path: totals on requests that neither chose the policy nor ordered the points.
        promise: what is promised.
        level: the part of the promise's δ that this test may use, all of it by default; unused on average.
        midway: whether to set the threshold between two scores, so that a score that is rounded otherwise when it is
            served decides alike; only on a path of every threshold: between two others lie decisions that were not
            tested.

    Guarantee: see the module. A point at which nothing is served keeps any promise, in name alone: `silent` says so.
    """
    level = promise.delta if level is None else level
    units = most_units(path.n, promise, level)
    passes = path.loss <= units
    count = int(np.argmin(np.append(passes, False)))
    if not count:
        return None
    at = count - 1
    point = path.points[at]
    if midway and path.every:
        point = Point(_between(path.points, at), point.bar)
    return Certified(
        point,
        path.n,
        path.losses[at],
        int(path.silent[at]),
        None if promise.confidence is None else level,
    )


def most_units(n: int, promise: Promise, level: float | None) -> int:
    """Return the most losses, in units, at which a point passes; −1: none does."""
    if promise.confidence is None:
        return math.floor(Fraction(repr(promise.risk)) * (n + 1) * UNITS) - UNITS
    assert level is not None  # noqa: S101 - a confidence has a level
    losses = most_losses(n, promise.tested_risk, level / _times(promise))
    return -1 if losses is None else losses * UNITS


def _times(promise: Promise) -> int:
    """Return how many times as probable as a binomial's a sum of losses this small may be."""
    return 2 if promise.rules.graded else 1


def _between(points: Sequence[Point], at: int) -> float:
    """Return a threshold with the same decisions as a point's, half-way to the next stricter one.

    Between −∞ and a score there is no middle: the score's own threshold stays.
    """
    kappa = points[at].kappa
    stricter = points[at - 1].kappa if at and points[at - 1].bar == points[at].bar else -math.inf
    middle = stricter + (kappa - stricter) / 2
    return middle if math.isfinite(middle) and stricter < middle < kappa else kappa


def spent(n: int, promise: Promise, level: float) -> float:
    """Return the probability that the exact test at a level uses: at most the level, since losses are whole.

    A test that follows may use the rest. It depends on n, the promise and the level alone.

    >>> round(spent(200, Promise("regret", 0.1, 0.9), 0.1), 6)
    0.092946
    """
    losses = most_losses(n, promise.tested_risk, level / _times(promise))
    return 0.0 if losses is None else _times(promise) * lower_tail(losses, n, promise.tested_risk)
