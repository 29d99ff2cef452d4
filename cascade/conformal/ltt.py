"""Learn-then-Test: thresholds for the one answer that is served, certified by tests along a path.

The error of a served answer is not monotone in kappa, so no order statistic will do. Instead a path of points is fixed
beforehand (`paths`), and each is tested on calibration questions: "its risk is above alpha". Testing goes from the
front and stops at the first point that fails. The points before it are certified, all at once, with probability
1 − delta.

The path must not come from the calibration questions, nor may they be looked at before it is fixed: `order_path` reads
selection questions, which are set apart. Each p-value holds for independent questions from one distribution.

Reference: Angelopoulos, Bates, Candès, Jordan & Lei, Learn then test (2021); Laufer-Goldshtein, Fisch, Barzilay &
Jaakkola, Efficiently controlling multiple risks with Pareto testing (2023). `design/single-answer.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from cascade.checks import share_problems
from cascade.conformal.arrays import Ints
from cascade.conformal.betting import mean_below_p_value
from cascade.conformal.binomial import most_losses
from cascade.conformal.needed import Forecast, forecast, needed_for_cost
from cascade.conformal.paths import order_path
from cascade.conformal.served import PathPoint, Served, ServedPath
from cascade.errors import UsageError
from cascade.money import exact_dollars

__all__ = ["PathResult", "certified_points", "fixed_sequence", "learn_then_test", "order_path"]


@dataclass(frozen=True, slots=True, eq=False)
class PathResult:
    """What was certified on a path.

    Attributes:
        calibration: what the calibration questions bring along it.
        certified: how many points from the front are certified, all of them at once.
        alpha: the certified bound on the risk.
        delta: the probability over calibration sets that any certified point breaks its promise.
        budget_nano_usd: the certified bound on the mean cost of a question; None where none was asked for.
        most_nano_usd: what no question can cost more than; goes with a budget.
    """

    calibration: ServedPath = field(repr=False)
    certified: int
    alpha: float
    delta: float
    budget_nano_usd: int | None
    most_nano_usd: int | None

    @property
    def n(self) -> int:
        """Calibration questions."""
        return self.calibration.n

    @property
    def index(self) -> int | None:
        """The place of the last certified point on the path; None where not even the first is certified."""
        return self.certified - 1 if self.certified else None

    @property
    def point(self) -> PathPoint | None:
        """The last certified point, the cheapest by the path's order; None where not even the first is certified."""
        return None if self.index is None else self.calibration.path[self.index]

    @property
    def losses(self) -> int:
        """Calibration questions lost at the point; at the first where there is none."""
        return int(self.calibration.losses[self.index or 0])

    @property
    def abstained(self) -> int:
        """Calibration questions not answered at the point; at the first where there is none."""
        return int(self.calibration.abstained[self.index or 0])

    @property
    def cost_nano_usd(self) -> int:
        """What the calibration questions cost there in all, on record."""
        return int(self.calibration.cost_nano_usd[self.index or 0])

    @property
    def silent(self) -> bool:
        """Whether what is certified answers none of the calibration questions: the promise is kept by silence."""
        return self.point is not None and self.abstained == self.n

    @property
    def forecast(self) -> Forecast | None:
        """How many questions are likely to certify the first point that answers, judged by these (`needed`).

        With a budget, as many as both promises take, if their costs turn out like these; the chance is that of the
        risk. None where the point is certified. Computed on each call, in a tenth of a second.
        """
        along, budget, most = self.calibration, self.budget_nano_usd, self.most_nano_usd
        answering = np.flatnonzero(along.abstained < self.n)
        first = int(answering[0]) if answering.size else 0
        if self.certified > first:
            return None
        found = forecast(int(along.losses[first]), self.n, self.alpha, self.delta)
        if found.questions is None or budget is None or most is None or budget >= most:
            return found
        spent = needed_for_cost(_prices(along.served, along.path[first].kappa, most), budget, most, self.delta)
        return found._replace(questions=None if spent is None else max(found.questions, spent))

    @property
    def needed_n(self) -> int | None:
        """The number of the forecast; None where the point is certified, or hardly any number would be."""
        return None if (found := self.forecast) is None else found.questions


def fixed_sequence(p_values: Iterable[float], delta: float) -> int:
    """Return how many hypotheses, from the front, are rejected: all before the first p-value above delta.

    Guarantee: if each p-value is valid for its hypothesis, the probability of rejecting any true one is at most delta,
    however many there are and however they depend on each other; the order must be fixed beforehand. Later p-values
    are not read.

    Raises:
        UsageError: delta does not lie between 0 and 1, or a p-value that is read does not lie in 0..1.

    Reference: Maurer, Hothorn & Lehmacher (1995); Bauer (1991).

    >>> fixed_sequence([0.01, 0.04, 0.2, 0.001], 0.05)
    2
    """
    for problem in share_problems(delta=delta):
        raise UsageError(f"{problem}.")
    return sum(1 for _ in takewhile(lambda p: _p_value(p) <= delta, p_values))


def certified_points(losses: Ints, n: int, alpha: float, delta: float) -> int:
    """Return how many points from the front have so few losses among n that their risk is proven to be below alpha.

    Guarantee: with independent questions and a path fixed beforehand, the probability that any of them has a risk
    above alpha is at most delta. The comparison is exact (`binomial.rejects`).

    >>> certified_points(np.array([3, 14, 15, 2]), 200, 0.1, 0.1)
    2
    """
    most = most_losses(n, alpha, delta)
    failing = np.flatnonzero(losses > (-1 if most is None else most))
    return int(failing[0]) if failing.size else int(losses.size)


def learn_then_test(
    calibration: ServedPath,
    *,
    alpha: float,
    delta: float,
    budget_nano_usd: int | None = None,
    most_nano_usd: int | None = None,
) -> PathResult:
    """Certify as many points of a path as calibration questions allow, and choose the last of them.

    Args:
        calibration: what calibration questions bring along a path that was fixed without them.
        alpha: the bound on the risk, the probability of a loss.
        delta: the probability that the promise may be broken, over calibration sets.
        budget_nano_usd: a bound on the mean cost of a question, promised together with the risk.
        most_nano_usd: what no question can cost more than; goes with a budget. Where a record ends too early, this is
            taken for its cost.

    Guarantee:
        If the questions are independent draws from the distribution that is served, then with probability 1 − delta
        or more every certified point has a risk of at most alpha and, with a budget, an expected cost of at most
        that. For a point that breaks either bound, the larger of the two p-values is above delta with probability
        1 − delta at least, because the p-value of the broken bound is; so no level is split between them.

    Raises:
        UsageError: alpha or delta lies outside 0..1, one of budget and cap is missing, there is no question, or a
            question costs more than the cap.

    Reference: Angelopoulos et al. (2021); Berger (1982), intersection-union tests, for the two at once.
    """
    _check_asked(calibration, alpha, delta, budget_nano_usd, most_nano_usd)
    front = certified_points(calibration.losses, calibration.n, alpha, delta)
    if budget_nano_usd is not None and most_nano_usd is not None:
        price = _price_p_value(calibration.served, budget_nano_usd, most_nano_usd)
        front = fixed_sequence((price(point.kappa) for point in calibration.path[:front]), delta)
    return PathResult(calibration, front, alpha, delta, budget_nano_usd, most_nano_usd)


def _price_p_value(served: Served, budget: int, most: int) -> Callable[[float], float]:
    """Return the p-value of "the expected cost is above the budget" at a threshold, each computed once."""
    known: dict[float, float] = {}

    def at(kappa: float) -> float:
        if kappa not in known:
            known[kappa] = 0.0 if budget >= most else mean_below_p_value(_prices(served, kappa, most), budget, most)
        return known[kappa]

    return at


def _prices(served: Served, kappa: float, most: int) -> Ints:
    """Return what each question costs, int64 (n,): the cap where the record ends too early."""
    found = served.at(PathPoint(kappa))
    return np.where(found.cut, most, found.cost)


def _p_value(value: float) -> float:
    for problem in share_problems(ends=True, p=value):
        raise UsageError(f"a p-value is none: {problem}.")
    return value


def _check_asked(calibration: ServedPath, alpha: float, delta: float, budget: int | None, most: int | None) -> None:
    """Refuse what cannot be tested, all of it at once."""
    problems = share_problems(alpha=alpha, delta=delta)
    if not calibration.n:
        problems.append("there is no calibration question")
    if (budget is None) != (most is None):
        problems.append("a budget goes with the most that a question can cost, and the latter with a budget")
    problems += [
        f"{name} must be above 0 USD, not {exact_dollars(value)}"
        for name, value in (("budget", budget), ("cap", most))
        if value is not None and value <= 0
    ]
    if calibration.n and most is not None:
        cost = calibration.served.at(min(calibration.path)).cost
        above = int(np.count_nonzero(cost > most))
        if above:
            problems.append(
                f"{above} questions cost more than the cap of {exact_dollars(most)}, "
                f"the dearest {exact_dollars(int(cost.max()))}; "
                "give a cap that is enforced"
            )
    if problems:
        raise UsageError("; ".join(problems) + ".")
