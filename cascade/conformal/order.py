"""The order in which points are tested where a walk to the end may lose: learned on requests that certify nothing.

Testing stops at the first failure, so the safest points come first and the cheapest last. Every order is valid that was
fixed without the certifying requests; a better one certifies cheaper points.

Reference: Laufer-Goldshtein, Fisch, Barzilay & Jaakkola, Efficiently controlling multiple risks with Pareto testing
(2023).
"""

from __future__ import annotations

import math

import numpy as np

from cascade.conformal.path import UNITS, Point, Walks, loss_jumps
from cascade.errors import UsageError
from cascade.table import Floats, Ints

MOST_POINTS = 100
_MOST_THRESHOLDS = 100_000
_FAR = 3.0
"""In standard errors: a point so far above the risk is not worth a test."""
_LEAD = 8
"""Points up to the one with the fewest losses, which are partly luck: they raise the share of runs that certify."""


def order(walks: Walks, at_stop: Floats, risk: float, *, abstain: bool = False) -> tuple[Point, ...]:
    """Return the points to test, from safe to cheap; the cost falls from point to point.

    1. More expensive thresholds whose losses are within one standard error of the fewest, then the one with the fewest.
    2. With `abstain`, at the first threshold nothing is served, then more and more, until everything is.
    3. The thresholds than which none is cheaper and loses as little, up to 3 standard errors above the risk.

    Args:
        walks: requests that are used for nothing else.
        at_stop: float64 (n, T), the loss of a walk that ends after each node.
        risk: the rate that will be tested.
        abstain: whether answers may be withheld.
    """
    n = walks.log.n
    if not n:
        raise UsageError("The points of a path are ordered on requests, and there is none.")
    kappa = _thresholds(walks)
    losses = loss_jumps(walks, at_stop).total(kappa) / UNITS
    cost = walks.cost.total(kappa)
    front = _front(kappa, losses, cost)
    lead = _lead(losses, cost, int(front[0]))
    opening: list[Point] = []
    if abstain:
        lead = lead[lead.size // 2 :]
        opening = _opening(walks, float(kappa[lead[0]]))
    reachable = losses[front] <= n * risk + _FAR * math.sqrt(n * risk * (1 - risk))
    front = front[reachable | (np.arange(front.size) == 0)]
    spaced = _evenly(losses[front], MOST_POINTS - len(opening) - lead.size + 1)
    return (*opening, *(Point(float(kappa[at])) for at in [*lead[:-1].tolist(), *front[spaced].tolist()]))


def _thresholds(walks: Walks) -> Floats:
    """Return the thresholds at which what is served changes, rising to +∞; an even choice if they are very many."""
    ends = np.where(walks.log.open_end, walks.reach, -np.inf)
    levels = np.unique(np.concatenate([walks.keep.ravel(), ends.ravel()]))
    levels = levels[levels > -np.inf]
    return np.union1d(levels[_spread(levels.size, _MOST_THRESHOLDS)], [np.inf])


def _front(kappa: Floats, losses: Floats, cost: Ints) -> Ints:
    """Return the thresholds than which none is cheaper and loses as little, by rising loss, the highest of equals."""
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


def _opening(walks: Walks, kappa: float) -> list[Point]:
    """Return points at one threshold: the first serves nothing, the others more, in about equal steps."""
    rows, stop = np.arange(walks.log.n), walks.stop(kappa)
    sure = np.where(walks.log.open_end[rows, stop], np.nan, walks.sure[rows, stop])
    finite = np.sort(sure[np.isfinite(sure)])[::-1]
    bars = np.unique(finite[_spread(finite.size, MOST_POINTS // 2 - 1)])[::-1]
    return [Point(kappa, math.inf), *(Point(kappa, bar) for bar in bars.tolist())]


def _spread(size: int, limit: int) -> Ints:
    """Return the indices of at most `limit` of `size` items, evenly spread, both ends among them."""
    return np.unique(np.linspace(0, size - 1, min(size, max(limit, 1))).round().astype(np.int64))


def _evenly(losses: Floats, limit: int) -> Ints:
    """Return at most `limit` places with losses that rise about evenly, the first and the last among them."""
    if losses.size <= limit:
        return np.arange(losses.size)
    targets = np.linspace(losses[0], losses[-1], limit)
    return np.unique(np.searchsorted(losses, targets + 0.5, side="right") - 1)
