"""Forecast how many questions would be enough to certify a promise. The forecast is advice, not part of a promise.

At the point that is tested first, c of n questions were lost. With a uniform prior the risk there has the distribution
Beta(c + 1, n − c + 1). N fresh questions certify the point if at most `most_losses(N)` of them are lost, and the number
lost is beta-binomial. The forecast is an N at which the probability of that is high, with the probability. It changes
gradually as a log grows: one more loss does not turn "N questions would do" into "no number would".

Reference: Gelman et al., Bayesian data analysis (2013), 2.4, the predictive law; `design/single-answer.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Ints
from cascade.conformal.beta_binomial import miss_log_pmf
from cascade.conformal.betting import mean_below_p_value
from cascade.conformal.binomial import most_losses, needed_n

HARDLY = 0.1
"""Below this chance no number of questions is advised."""
_WORTH = 0.8  # the share of the highest possible chance to aim for: the rest would take far more questions
_MOST_FORECAST = 200_000
_GROWTH = 1.1  # from one number of questions that is tried to the next

_MOST_QUESTIONS = 10**7
_MOST_ROWS = 10**6  # where costs have to be laid out: two seconds


class Forecast(NamedTuple):
    """How many questions to try.

    Attributes:
        questions: how many calibration questions, more than the log has; None where hardly any number would do.
        chance: the probability that this many fresh questions certify; where `questions` is None, the highest
            probability over all numbers.
    """

    questions: int | None
    chance: float


def certify_chance(losses: int, n: int, many: int, alpha: float, delta: float) -> float:
    """Return the probability that fresh questions certify a point, estimated from the questions at hand.

    Args:
        losses: questions at hand that are lost at the point.
        n: questions at hand.
        many: fresh questions.
        alpha: the bound on the risk.
        delta: the probability that the promise may be broken.

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
    """Return the least number in least..most that is enough, by doubling and halving; None where `most` is not.

    If `enough` is not monotone, the result is a number that is enough and whose predecessor is not, or `least`.

    >>> least_enough(lambda n: n * n > 2000), least_enough(lambda n: n > 7, least=9), least_enough(lambda n: n > 20**9)
    (45, 9, None)
    """
    low, high = least - 1, least  # nothing up to low was found to be enough
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    return low + 1 + first_where(high - low - 1, lambda k: enough(low + 1 + k))


def needed_for_cost(costs: Ints, budget_nano_usd: int, most_nano_usd: int, delta: float) -> int | None:
    """Return how many questions with the same costs would certify a budget with delta, as a multiple of those given.

    Args:
        costs: int64 (n,), nano-USD, n ≥ 1.
        budget_nano_usd: the bound on the mean cost.
        most_nano_usd: what no question costs more than.
        delta: the probability that the promise may be broken.

    Returns:
        The number; None where no number would do, or only more than about a million.
    """
    if int(costs.sum()) >= budget_nano_usd * costs.size:
        return None

    def enough(times: int) -> bool:
        return mean_below_p_value(np.tile(costs, times), budget_nano_usd, most_nano_usd) <= delta

    times = least_enough(enough, most=1 + _MOST_ROWS // costs.size)
    return None if times is None else times * costs.size
