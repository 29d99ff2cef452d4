"""The certifier: it follows a path from its first point and stops before the first that the requests do not prove.

With a confidence 1 − δ, a point passes if so few of n requests are lost that, at a loss rate of `risk` or more, as few
would have probability δ at most (exact binomial test). The points were ordered without these requests, so all that pass
before the first failure hold at once: Pr[any breaks] ≤ δ. Graded losses are tested at half the level: toss a coin for
each loss, with the loss as the probability of heads. The number of heads is binomial. Given the losses, its median is
at most any whole number that their sum does not exceed (Jogdeo & Samuels, 1968). So losses pass at most twice as often.

On average over calibrations, a point passes if (losses + 1) / (n + 1) ≤ risk (conformal risk control; for coverage this
is split conformal prediction). The losses must not fall as the threshold rises.

References: Angelopoulos et al., Learn then test (2021); Angelopoulos et al., Conformal risk control (2022); Vovk,
Gammerman & Shafer (2005); Laufer-Goldshtein et al., Efficiently controlling multiple risks with Pareto testing (2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cascade.conformal.binomial import lower_tail, most_losses
from cascade.conformal.path import UNITS, Path, Walks, along, loss_jumps, strict_to_lenient
from cascade.conformal.promise import Kind, Promise
from cascade.errors import UsageError
from cascade.table import Floats, Ints


@dataclass(frozen=True, slots=True)
class Certified:
    """The last threshold of a path that is proven, and its figures on the requests that prove it.

    Attributes:
        kappa: the threshold, which may lie between two scores of these requests (`midway` in `certify`).
        n: the number of requests that prove it.
        losses: how many of them are lost at this threshold.
        level: the probability, over calibrations, at which it was tested; None: on average.
    """

    kappa: float
    n: int
    losses: Fraction
    level: float | None


def certify(path: Path, promise: Promise, level: float | None = None, *, midway: bool = True) -> Certified | None:
    """Return the last threshold before the first that fails; None if not even the first passes.

    Args:
        path: totals on requests that neither chose the policy nor ordered the points.
        promise: what is promised.
        level: the part of the promise's δ that this test may use, by default all; ignored for a promise on average.
        midway: whether to set the threshold between two scores, so that a score rounded differently while serving
            leads to the same decision. Only a path of every threshold allows it: between the points of another path
            lie decisions that were not tested.
    """
    level = promise.delta if level is None else level
    units = most_units(path.n, promise, level)
    passes = path.loss <= units
    count = int(np.argmin(np.append(passes, False)))
    if not count:
        return None
    at = count - 1
    kappa = _between(path.kappas, at) if midway and path.every else float(path.kappas[at])
    losses = Fraction(int(path.loss[at]), UNITS)
    return Certified(kappa, path.n, losses, None if promise.confidence is None else level)


def most_units(n: int, promise: Promise, level: float | None) -> int:
    """Return the most losses, in units, at which a point passes; negative if none does."""
    if promise.confidence is None:
        return math.floor(Fraction(repr(promise.risk)) * (n + 1) * UNITS) - UNITS
    assert level is not None  # noqa: S101 - a confidence has a level
    losses = most_losses(n, promise.tested_risk, level / _times(promise))
    return -1 if losses is None else losses * UNITS


def _times(promise: Promise) -> int:
    """Return how many times as probable as a binomial's a sum of losses this small may be."""
    return 2 if promise.rules.graded else 1


def _between(kappas: Floats, at: int) -> float:
    """Return a threshold that decides as `kappas[at]` does, halfway to the next stricter one.

    Between −∞ and a score there is no middle: the threshold stays at the score.
    """
    kappa, stricter = float(kappas[at]), float(kappas[at - 1]) if at else -math.inf
    middle = stricter + (kappa - stricter) / 2
    return middle if math.isfinite(middle) and stricter < middle < kappa else kappa


def spent(n: int, promise: Promise, level: float) -> float:
    """Return how much probability the test at a level uses up: at most the level, since losses are whole.

    Another test may use the rest. The result depends only on n, the promise and the level.

    >>> round(spent(200, Promise("regret", 0.1, 0.9), 0.1), 6)
    0.092946
    """
    losses = most_losses(n, promise.tested_risk, level / _times(promise))
    return 0.0 if losses is None else _times(promise) * lower_tail(losses, n, promise.tested_risk)


# --- the order of points ---
# If a walk to the end may lose, the points are ordered by means of other requests. Testing stops at the first failure,
# so the safest come first and the cheapest last. Any order fixed without the certifying requests is valid; a better one
# certifies cheaper points.

MOST_POINTS = 100
_MOST_THRESHOLDS = 100_000
_FAR = 3.0
"""In standard errors: a point further than this above the risk is not worth a test."""
_LEAD = 8
"""The most points up to the one with the fewest losses. Its losses are partly luck, so more runs certify with these."""


def points_of(walks: Walks, promise: Promise) -> Floats:
    """Return the thresholds to test, from safe to cheap, float64 (P,); the cost falls from one to the next.

    1. More expensive thresholds whose losses are within one standard error of the fewest, then the one with the fewest.
    2. The Pareto front of cost and losses, up to 3 standard errors above the risk.

    Args:
        walks: requests that are used for nothing else.
        promise: what is promised.

    Raises:
        UsageError: there is no request, or the kind of promise defines its own `jumps`.
    """
    if type(promise.rules).jumps is not Kind.jumps:
        raise UsageError(
            f"{promise.kind} has its own `jumps`, which is for promises about a set: say in `at_stop` "
            "what a walk loses that ends after each node, or set `of_set`."
        )
    n, risk = walks.log.n, promise.risk
    if not n:
        raise UsageError("No request is left on which the points of the path could be ordered: log more requests.")
    kappa = _thresholds(walks)
    losses = loss_jumps(walks, promise.rules.at_stop(walks)).total(kappa) / UNITS
    cost = walks.cost.total(kappa)
    front = _front(kappa, losses, cost)
    lead = _lead(losses, cost, int(front[0]))
    reachable = losses[front] <= n * risk + _FAR * math.sqrt(n * risk * (1 - risk))
    front = front[reachable | (np.arange(front.size) == 0)]
    spaced = evenly(losses[front], MOST_POINTS - lead.size + 1)
    return np.asarray(kappa[np.concatenate([lead[:-1], front[spaced]])], dtype=np.float64)


def path_of(walks: Walks, promise: Promise, points: Floats | None) -> Path:
    """Return the path to test: along points, or from the strictest threshold to the most lenient."""
    if points is None:
        return strict_to_lenient(walks, promise.rules.jumps(walks))
    return along(walks, promise.rules.at_stop(walks), points)


def _thresholds(walks: Walks) -> Floats:
    """Return the thresholds at which the served answer changes, ascending to +∞; evenly thinned if very many."""
    ends = np.where(walks.log.open_end, walks.reach, -np.inf)
    levels = np.unique(np.concatenate([walks.keep.ravel(), ends.ravel()]))
    levels = levels[levels > -np.inf]
    return np.union1d(levels[_spread(levels.size, _MOST_THRESHOLDS)], [np.inf])


def _front(kappa: Floats, losses: Floats, cost: Ints) -> Ints:
    """Return the Pareto front of cost and losses, by ascending losses; of equal thresholds, the highest."""
    by_cost = np.lexsort((-kappa, losses, cost))
    fewest = np.minimum.accumulate(losses[by_cost])
    return np.asarray(by_cost[np.concatenate([[True], fewest[1:] < fewest[:-1]])][::-1], dtype=np.int64)


def _lead(losses: Floats, cost: Ints, first: int) -> Ints:
    """Return at most `_LEAD` thresholds, the most expensive first; the last is the first of the front."""
    fewest = float(losses[first])
    near = np.flatnonzero((cost > cost[first]) & (losses <= fewest + math.sqrt(max(fewest, 1.0))))
    targets = np.linspace(int(cost[near[0]]), int(cost[first]), _LEAD)[:-1] if near.size else np.empty(0)
    chosen = [int(np.abs(cost[near] - target).argmin()) for target in targets]
    return np.append(near[np.unique(np.array(chosen, dtype=np.int64))], first)


def _spread(size: int, limit: int) -> Ints:
    """Return the indices of at most `limit` of `size` items, evenly spread, including both ends."""
    return np.unique(np.linspace(0, size - 1, min(size, max(limit, 1))).round().astype(np.int64))


def evenly(losses: Floats, limit: int) -> Ints:
    """Return at most `limit` indices whose losses rise about evenly, including the first and the last."""
    if losses.size <= limit:
        return np.arange(losses.size)
    targets = np.linspace(losses[0], losses[-1], limit)
    return np.unique(np.append(0, np.searchsorted(losses, targets + 0.5, side="right") - 1))
