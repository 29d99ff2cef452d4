"""Which points to test, in which order: the path of Learn-then-Test, read off selection questions.

A test stops at the first point that fails, so what is surely good comes first and what is cheap last. Any path is
valid that was fixed without the calibration questions (`ltt`); a good one decides how much is certified.

Reference: Laufer-Goldshtein, Fisch, Barzilay & Jaakkola, Efficiently controlling multiple risks with Pareto testing
(2023). `design/single-answer.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cascade.checks import share_problems
from cascade.conformal.arrays import Floats, Ints
from cascade.conformal.served import PathPoint, Served
from cascade.errors import UsageError
from cascade.money import exact_dollars

# Selection thresholds that are looked at: more are thinned evenly. A hundred thousand take 0.1 s.
_MOST_KAPPAS = 100_000
# Of these so many are tried as a start where the cost has to be looked at too: 5 ms each for 100,000 questions.
_MOST_STARTS = 200
# Standard errors: what lies 3 above alpha is not worth a test, what lies 3 below the budget passes it nearly always.
_FAR = 3.0
# Points up to the one of the fewest losses: with 200 rows they raise what is certified from about half of the draws to
# four in five (`design/single-answer.md`).
_LEAD = 8


def order_path(
    selection: Served,
    *,
    alpha: float,
    abstain: bool = False,
    budget_nano_usd: int | None = None,
    most_points: int = 100,
) -> tuple[PathPoint, ...]:
    """Return a path to test, from what is surely good to what is cheap; its cost falls from point to point.

    1. It comes to the threshold with the fewest losses from dearer ones that lose no more but for one standard error:
       the fewest are so few by luck, too. With a budget it begins instead where both bounds are kept by the widest
       margin in standard errors; of what costs too much nothing can be certified.
    2. With `abstain` it begins in the middle of those, silent, and answers more and more until it answers everything.
    3. It goes on down the Pareto-efficient thresholds, those at which nothing cheaper loses as little, by rising loss
       and falling cost, until 3 standard errors above alpha.

    Args:
        selection: single answers of questions that are used for this alone: no calibration question may be among
            them, or the guarantee is void.
        alpha: the bound on the risk that will be asked for.
        abstain: whether the path may withhold answers.
        budget_nano_usd: the bound on the mean cost that will be asked for.
        most_points: the longest that the path may become, at least 3.

    Raises:
        UsageError: there is no question, or an argument cannot be.
    """
    _check(selection, alpha, budget_nano_usd, most_points)
    curve = _curve(selection)
    front = _pareto(curve)
    front = front.take(np.arange(_start(selection, front, alpha, budget_nano_usd, abstain), front.kappas.size))
    lead = front.kappas[:1] if budget_nano_usd is not None else _lead(curve, front, min(_LEAD, most_points // 4))
    opening: list[PathPoint] = []
    if abstain:
        lead = lead[lead.size // 2 :]
        opening = _talkative(selection, float(lead[0]), most_points // 2)
    reachable = front.losses <= selection.n * alpha + _FAR * math.sqrt(selection.n * alpha * (1 - alpha))
    cheaper = front.take(np.flatnonzero(reachable | (np.arange(reachable.size) == 0)))
    kept = _evenly(cheaper.losses, most_points - len(opening) - lead.size + 1)
    return (*opening, *(PathPoint(kappa) for kappa in [*lead[:-1].tolist(), *cheaper.kappas[kept].tolist()]))


@dataclass(frozen=True, slots=True)
class _Curve:
    """Thresholds by falling cost, with what they bring: float64 and int64 (K,)."""

    kappas: Floats
    losses: Ints
    cost_nano_usd: Ints

    def take(self, rows: Ints) -> _Curve:
        return _Curve(self.kappas[rows], self.losses[rows], self.cost_nano_usd[rows])


def _curve(selection: Served) -> _Curve:
    """Return every threshold at which something changes, ascending."""
    levels = np.unique(selection.level[selection.level > -np.inf])
    kappas = np.union1d(levels[_spread(levels.size, _MOST_KAPPAS)], [np.inf])
    counts = selection.counts(kappas, np.array([-np.inf]))
    return _Curve(kappas, counts.losses[:, 0], counts.cost_nano_usd)


def _pareto(curve: _Curve) -> _Curve:
    """Return the thresholds at which nothing cheaper loses as little, by rising loss; of equals the highest."""
    order = np.lexsort((-curve.kappas, curve.losses, curve.cost_nano_usd))
    fewest = np.minimum.accumulate(curve.losses[order])
    return curve.take(order[np.concatenate([[True], fewest[1:] < fewest[:-1]])][::-1])


def _start(selection: Served, front: _Curve, alpha: float, budget: int | None, abstain: bool) -> int:
    """Return where on the front the path starts: of equals the cheapest."""
    n = selection.n
    if budget is None:
        return 0
    tried = _evenly(front.losses, _MOST_STARTS)
    risk = (n * alpha - front.losses[tried]) / math.sqrt(n * alpha * (1 - alpha))
    price = np.array([_price_margin(selection, kappa, budget) for kappa in front.kappas[tried].tolist()])
    margin = np.minimum(risk, price)
    if abstain:  # silence mends the risk, and nothing mends the cost
        margin[price < min(_FAR, float(price.max()))] = -np.inf
    return int(tried[margin.size - 1 - np.argmax(margin[::-1])])


def _price_margin(selection: Served, kappa: float, budget: int) -> float:
    """Return by how many standard errors the mean cost lies below the budget."""
    cost = selection.at(PathPoint(kappa)).cost
    gap, error = budget - float(cost.mean()), float(cost.std()) / math.sqrt(cost.size)
    return gap / error if error else math.copysign(math.inf, gap)


def _lead(curve: _Curve, front: _Curve, most: int) -> Floats:
    """Return at most so many thresholds, dearest first, that lead to the front's first and end with it."""
    fewest, cost, kappa = int(front.losses[0]), int(front.cost_nano_usd[0]), float(front.kappas[0])
    near = curve.take(np.flatnonzero(curve.cost_nano_usd > cost))
    near = near.take(np.flatnonzero(near.losses <= fewest + math.sqrt(max(fewest, 1))))  # a count's own error
    wanted = np.linspace(int(near.cost_nano_usd[0]), cost, max(most, 1))[:-1] if near.kappas.size else np.empty(0)
    rows = [int(np.abs(near.cost_nano_usd - each).argmin()) for each in wanted]
    return np.append(near.kappas[np.unique(np.array(rows, dtype=np.int64))], kappa)


def _talkative(selection: Served, kappa: float, most: int) -> list[PathPoint]:
    """Return points at one threshold from silent on, each answering about as many more of the selection questions."""
    sure = selection.sure[np.arange(selection.n), selection.state(kappa)]
    known = np.sort(sure[np.isfinite(sure) & ~(selection.cut >= kappa)])[::-1]
    bars = np.unique(known[_spread(known.size, most - 1)])[::-1]
    return [PathPoint(kappa, math.inf), *(PathPoint(kappa, bar) for bar in bars.tolist())]


def _spread(size: int, most: int) -> Ints:
    """Return the places of at most `most` of `size` things, evenly spread, both ends among them."""
    return np.unique(np.linspace(0, size - 1, min(size, max(most, 1))).round().astype(np.int64))


def _evenly(losses: Ints, most: int) -> Ints:
    """Return at most so many places on a front, their losses rising about evenly, the first and the last among them."""
    if losses.size <= most:
        return np.arange(losses.size)
    wanted = np.linspace(losses[0], losses[-1], most)
    return np.unique(np.searchsorted(losses, wanted + 0.5, side="right") - 1)


def _check(selection: Served, alpha: float, budget: int | None, most_points: int) -> None:
    """Refuse what cannot be, all of it at once."""
    problems = share_problems(alpha=alpha)
    if not selection.n:
        problems.append("a path needs selection questions")
    if budget is not None and budget <= 0:
        problems.append(f"the budget must be above 0 USD, not {exact_dollars(budget)}")
    if most_points < 3:
        problems.append(f"most_points must be at least 3, not {most_points}")
    if problems:
        raise UsageError("; ".join(problems) + ".")
