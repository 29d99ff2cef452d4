"""How many questions would do, if they turned out like those at hand: a forecast for the user, no part of a promise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cascade.conformal.arrays import Ints
from cascade.conformal.betting import mean_below_p_value

_MOST_QUESTIONS = 10**7
_MOST_ROWS = 10**6  # where costs have to be laid out: two seconds


def first_where(size: int, holds: Callable[[int], bool]) -> int:
    """Return the first index from which on a condition holds, `size` if at none: it once true stays true.

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

    If what is enough is not monotone, it is one that is enough and whose predecessor is not, or `least`.

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
    """Return how many questions with the same costs would certify a budget with delta, a multiple of what there are.

    Args:
        costs: int64 (n,), nano-USD, n ≥ 1.
        budget_nano_usd: the bound on the mean cost.
        most_nano_usd: what no question costs more than.
        delta: the probability that the promise may be broken.

    Returns:
        None where no number would do, or more than about a million.
    """
    if int(costs.sum()) >= budget_nano_usd * costs.size:
        return None

    def enough(times: int) -> bool:
        return mean_below_p_value(np.tile(costs, times), budget_nano_usd, most_nano_usd) <= delta

    times = least_enough(enough, most=1 + _MOST_ROWS // costs.size)
    return None if times is None else times * costs.size
