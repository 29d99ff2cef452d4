"""Learn-then-Test: thresholds for the one answer that is served, certified by tests along a path.

The error of a served answer is not monotone in kappa, so calibration by an order statistic is not valid. Instead a path
of points is fixed beforehand (`order_path`), and at each point the hypothesis "its risk is above alpha" is tested on
calibration questions. Testing goes from the front and stops at the first point that fails. The points before it are
certified, all at once, with probability 1 − delta.

The path must be fixed before anybody reads the calibration questions: `order_path` reads selection questions, which
are set apart. Each p-value holds for independent questions from one distribution.

Reference: Angelopoulos, Bates, Candès, Jordan & Lei, Learn then test (2021); Laufer-Goldshtein, Fisch, Barzilay &
Jaakkola, Efficiently controlling multiple risks with Pareto testing (2023). `design/single-answer.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from cascade.checks import refuse, share_problems
from cascade.conformal.arrays import Floats, Ints
from cascade.conformal.binomial import miss_log_pmf, most_losses
from cascade.conformal.served import PathPoint, Served, ServedPath
from cascade.conformal.split import needed_n
from cascade.errors import UsageError

# --- Which points to test, in which order: the path of Learn-then-Test, computed from selection questions ---
# Testing stops at the first point that fails, so the safest points come first and the cheapest last. Any path that was
# fixed without the calibration questions is valid (`ltt`); a better path certifies cheaper points.
#
# Reference: Laufer-Goldshtein, Fisch, Barzilay & Jaakkola, Efficiently controlling multiple risks with Pareto testing
# (2023). `design/single-answer.md`.

# The most selection thresholds that are considered: more are thinned evenly. A hundred thousand take 0.1 s.
_MOST_KAPPAS = 100_000
# In standard errors. A point 3 above alpha is not worth a test.
_FAR = 3.0
# The most points up to the one with the fewest losses: with 200 rows they raise the share of runs that certify a point
# from about a half to four fifths (`design/single-answer.md`).
_LEAD = 8


def order_path(
    selection: Served,
    *,
    alpha: float,
    abstain: bool = False,
    most_points: int = 100,
) -> tuple[PathPoint, ...]:
    """Return a path to test, from safe to cheap; its cost falls from point to point.

    1. The path begins with more expensive thresholds whose losses are within one standard error of the fewest, because
       the fewest losses are partly luck, and reaches the threshold with the fewest losses.
    2. With `abstain` it begins in the middle of those thresholds. It answers nothing at first, then more and more,
       until it answers everything.
    3. It continues along the Pareto-efficient thresholds (no cheaper threshold loses as little), by rising loss and
       falling cost, up to 3 standard errors above alpha.

    Args:
        selection: single answers of questions that are used for nothing else: no calibration question may be among
            them, or the guarantee is void.
        alpha: the bound on the risk that will be tested.
        abstain: whether the path may withhold answers.
        most_points: the longest that the path may be, at least 3.

    Raises:
        UsageError: there is no question, or an argument is out of range.
    """
    _check(selection, alpha, most_points)
    curve = _curve(selection)
    front = _pareto(curve)
    lead = _lead(curve, front, min(_LEAD, most_points // 4))
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
    """K thresholds by falling cost, with their losses and costs: float64 and int64 (K,)."""

    kappas: Floats
    losses: Ints
    cost_nano_usd: Ints

    def take(self, rows: Ints) -> _Curve:
        return _Curve(self.kappas[rows], self.losses[rows], self.cost_nano_usd[rows])


def _curve(selection: Served) -> _Curve:
    """Return the thresholds at which a decision changes, ascending; an even choice of them if they are very many."""
    levels = np.unique(selection.level[selection.level > -np.inf])
    kappas = np.union1d(levels[_spread(levels.size, _MOST_KAPPAS)], [np.inf])
    counts = selection.counts(kappas, np.array([-np.inf]))
    return _Curve(kappas, counts.losses[:, 0], counts.cost_nano_usd)


def _pareto(curve: _Curve) -> _Curve:
    """Return the Pareto-efficient thresholds (none cheaper loses as little), by rising loss, the highest of equals."""
    order = np.lexsort((-curve.kappas, curve.losses, curve.cost_nano_usd))
    fewest = np.minimum.accumulate(curve.losses[order])
    return curve.take(order[np.concatenate([[True], fewest[1:] < fewest[:-1]])][::-1])


def _lead(curve: _Curve, front: _Curve, most: int) -> Floats:
    """Return at most `most` thresholds, the most expensive first; the last of them is the first of the front."""
    fewest, cost, kappa = int(front.losses[0]), int(front.cost_nano_usd[0]), float(front.kappas[0])
    near = curve.take(np.flatnonzero(curve.cost_nano_usd > cost))
    near = near.take(np.flatnonzero(near.losses <= fewest + math.sqrt(max(fewest, 1))))  # a count's own error
    wanted = np.linspace(int(near.cost_nano_usd[0]), cost, max(most, 1))[:-1] if near.kappas.size else np.empty(0)
    rows = [int(np.abs(near.cost_nano_usd - each).argmin()) for each in wanted]
    return np.append(near.kappas[np.unique(np.array(rows, dtype=np.int64))], kappa)


def _talkative(selection: Served, kappa: float, most: int) -> list[PathPoint]:
    """Return points at one threshold: the first answers nothing; the others answer more, in about equal steps."""
    sure = selection.sure[np.arange(selection.n), selection.state(kappa)]
    known = np.sort(sure[np.isfinite(sure) & ~(selection.cut >= kappa)])[::-1]
    bars = np.unique(known[_spread(known.size, most - 1)])[::-1]
    return [PathPoint(kappa, math.inf), *(PathPoint(kappa, bar) for bar in bars.tolist())]


def _spread(size: int, most: int) -> Ints:
    """Return the indices of at most `most` of `size` items, evenly spread, including both ends."""
    return np.unique(np.linspace(0, size - 1, min(size, max(most, 1))).round().astype(np.int64))


def _evenly(losses: Ints, most: int) -> Ints:
    """Return at most `most` places on a front, with losses that rise about evenly, including the first and the last."""
    if losses.size <= most:
        return np.arange(losses.size)
    wanted = np.linspace(losses[0], losses[-1], most)
    return np.unique(np.searchsorted(losses, wanted + 0.5, side="right") - 1)


def _check(selection: Served, alpha: float, most_points: int) -> None:
    problems = share_problems(alpha=alpha)
    if not selection.n:
        problems.append("a path needs selection questions")
    if most_points < 3:
        problems.append(f"most_points must be at least 3, not {most_points}")
    refuse(problems)


# --- Forecast how many questions would be enough to certify a promise. The forecast is advice, not part of a promise.
# At the point that is tested first, c of n questions were lost. With a uniform prior the risk there has the
# distribution Beta(c + 1, n − c + 1). N fresh questions certify the point if at most `most_losses(N)` of them are lost,
# and the number lost is beta-binomial. The forecast is an N at which the probability of that is high, with the
# probability. It changes gradually as a log grows: one more loss does not turn "N questions would be enough" into "no
# number would be enough".
#
# Reference: Gelman et al., Bayesian data analysis (2013), 2.4, the predictive law; `design/single-answer.md`.

HARDLY = 0.1
"""Below this chance no number of questions is advised."""
_WORTH = 0.8  # the share of the highest possible chance to aim for: a higher share would take far more questions
_MOST_FORECAST = 200_000
_GROWTH = 1.1  # from one number of questions that is tried to the next

_MOST_QUESTIONS = 10**7
_MOST_ROWS = 10**6  # the most questions for which repeated costs are tested: two seconds


class Forecast(NamedTuple):
    """How many questions to try, and the chance that they certify.

    Attributes:
        questions: how many calibration questions, more than the log has; None if hardly any number would be enough.
        chance: the probability that this many fresh questions certify; if `questions` is None, the highest
            probability over all numbers.
    """

    questions: int | None
    chance: float


def certify_chance(losses: int, n: int, many: int, alpha: float, delta: float) -> float:
    """Return the probability that fresh questions certify a point, estimated from the questions at hand.

    `losses` of the n questions at hand are lost at the point; there will be `many` fresh ones.

    >>> round(certify_chance(3, 60, 500, 0.1, 0.1), 2), round(certify_chance(8, 60, 500, 0.1, 0.1), 2)
    (0.73, 0.07)
    """
    most = most_losses(many, alpha, delta)
    if most is None:
        return 0.0
    return min(1.0, float(np.exp(miss_log_pmf(many, n + 1, losses + 1)[: most + 1]).sum()))


def forecast(losses: int, n: int, alpha: float, delta: float) -> Forecast:
    """Return how many fresh questions are likely to certify, estimated from n questions of which some are lost.

    It is the least number that reaches four fifths of the highest chance. The numbers tried are above n, each a tenth
    larger than the one before, up to 200,000 or twice n.

    >>> forecast(2, 60, 0.1, 0.1).questions, round(forecast(2, 60, 0.1, 0.1).chance, 2)
    (152, 0.77)
    >>> forecast(30, 60, 0.1, 0.1).questions is None
    True
    """
    tried = [(many, certify_chance(losses, n, many, alpha, delta)) for many in _numbers(n, alpha, delta)]
    highest = max(chance for _, chance in tried)
    if highest < HARDLY:
        return Forecast(None, highest)
    return next(Forecast(many, chance) for many, chance in tried if chance >= _WORTH * highest)


def chance_said(chance: float) -> str:
    """Return a chance in words, rounded to the precision of such a forecast.

    >>> chance_said(0.774), chance_said(0.031), chance_said(0.999)
    ('about 75 %', 'below 5 %', 'above 95 %')
    """
    if chance < 0.05 or chance > 0.95:
        return "below 5 %" if chance < 0.05 else "above 95 %"
    return f"about {5 * round(20 * chance)} %"


def would_do(chance: float | None) -> str:
    """Return a verb phrase for a number of questions: it would be enough, with the forecast's probability."""
    return "would be enough" if chance is None else f"would be enough with a probability of {chance_said(chance)}"


def _numbers(n: int, alpha: float, delta: float) -> Iterator[int]:
    many = max(needed_n(alpha, delta), n + 1)
    last = max(_MOST_FORECAST, 2 * many)
    while many <= last:
        yield many
        many = math.ceil(_GROWTH * many)


def first_where(size: int, holds: Callable[[int], bool]) -> int:
    """Return the first index at which a condition holds, `size` if at none. Once true, it must stay true.

    >>> first_where(10, lambda k: k * k > 20)
    5
    """
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def least_enough(enough: Callable[[int], bool], least: int = 1, most: int = _MOST_QUESTIONS) -> int | None:
    """Return the least number in least..most that is enough, by doubling and halving; None if `most` is not.

    If `enough` is not monotone, the result is a number that is enough and whose predecessor is not, or `least`.

    >>> least_enough(lambda n: n * n > 2000), least_enough(lambda n: n > 7, least=9), least_enough(lambda n: n > 20**9)
    (45, 9, None)
    """
    low, high = least - 1, least  # no number tried up to low was enough
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    return low + 1 + first_where(high - low - 1, lambda k: enough(low + 1 + k))


# --- ltt ---

__all__ = ["PathResult", "certified_points", "fixed_sequence", "learn_then_test", "order_path"]


@dataclass(frozen=True, slots=True, eq=False)
class PathResult:
    """The result of testing a path.

    Attributes:
        calibration: the outcomes of the calibration questions at each point of the path.
        certified: how many points from the front are certified, all of them at once.
        alpha: the certified bound on the risk.
        delta: the probability over calibration sets that any certified point breaks its promise.
    """

    calibration: ServedPath = field(repr=False)
    certified: int
    alpha: float
    delta: float

    @property
    def n(self) -> int:
        """Calibration questions."""
        return self.calibration.n

    @property
    def index(self) -> int | None:
        """The index of the last certified point of the path; None if not even the first is certified."""
        return self.certified - 1 if self.certified else None

    @property
    def point(self) -> PathPoint | None:
        """The last certified point, the cheapest by the path's order; None if not even the first is certified."""
        return None if self.index is None else self.calibration.path[self.index]

    @property
    def losses(self) -> int:
        """The number of calibration questions lost at the point, or at the first point if none is certified."""
        return int(self.calibration.losses[self.index or 0])

    @property
    def abstained(self) -> int:
        """The number of calibration questions not answered at the point, or at the first point if none is certified."""
        return int(self.calibration.abstained[self.index or 0])

    @property
    def cost_nano_usd(self) -> int:
        """The total recorded cost of the calibration questions at the point, or at the first if none is certified."""
        return int(self.calibration.cost_nano_usd[self.index or 0])

    @property
    def silent(self) -> bool:
        """Whether the certified point abstains on all calibration questions, and keeps its promise only in this way."""
        return self.point is not None and self.abstained == self.n

    @property
    def forecast(self) -> Forecast | None:
        """How many questions are likely to certify the first point that answers, estimated from these questions.

        None if a point that answers is certified. Each call computes it anew, in a tenth of a second.
        """
        along = self.calibration
        answering = np.flatnonzero(along.abstained < self.n)
        first = int(answering[0]) if answering.size else 0
        if self.certified > first:
            return None
        return forecast(int(along.losses[first]), self.n, self.alpha, self.delta)

    @property
    def needed_n(self) -> int | None:
        """The forecast number of questions; None if a point is certified, or if hardly any number would be enough."""
        return None if (found := self.forecast) is None else found.questions


def fixed_sequence(p_values: Iterable[float], delta: float) -> int:
    """Return how many hypotheses, from the front, are rejected: all before the first p-value above delta.

    Guarantee: if each p-value is valid for its hypothesis, the probability of rejecting any true hypothesis is at most
    delta, for any number of hypotheses and any dependence between them. The order must be fixed beforehand. Later
    p-values are not read.

    Raises:
        UsageError: delta does not lie between 0 and 1, or a p-value that is read does not lie in 0..1.

    Reference: Maurer, Hothorn & Lehmacher (1995); Bauer (1991).

    >>> fixed_sequence([0.01, 0.04, 0.2, 0.001], 0.05)
    2
    """
    refuse(share_problems(delta=delta))
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
) -> PathResult:
    """Certify as many points of a path as calibration questions allow, and choose the last of them.

    Args:
        calibration: the outcomes of calibration questions along a path that was fixed without them.
        alpha: the bound on the risk, the probability of a loss.
        delta: the probability that the promise may be broken, over calibration sets.

    Guarantee:
        If the questions are independent draws from the distribution that is served, then with probability at least
        1 − delta every certified point has a risk of at most alpha.

    Raises:
        UsageError: alpha or delta lies outside 0..1, or there is no question.

    Reference: Angelopoulos et al. (2021).
    """
    _check_asked(calibration, alpha, delta)
    front = certified_points(calibration.losses, calibration.n, alpha, delta)
    return PathResult(calibration, front, alpha, delta)


def _p_value(value: float) -> float:
    for problem in share_problems(ends=True, p=value):
        raise UsageError(f"A p-value must be a probability: {problem}.")
    return value


def _check_asked(calibration: ServedPath, alpha: float, delta: float) -> None:
    problems = share_problems(alpha=alpha, delta=delta)
    if not calibration.n:
        problems.append("there is no calibration question")
    refuse(problems)
