"""The saving of a policy per request, after the cost of audits, and a lower bound on its mean, by betting.

A lower bound on a mean needs a bound on its values. It is taken from fitting rows, before a certifying row is seen: no
request costs more than four times the dearest of them. If a certifying row exceeds it, the look is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.conformal.monitor import mean_below_log_e_value, mean_below_p_value

SPARE = 4.0
"""No request costs more than this multiple of the dearest fitting request."""
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of n requests, in nano-USD.

    Attributes:
        guide: float64 (n,), the cost of the guide's call.
        others: float64 (n,), the cost of all calls but the guide's.
        served: float64 (n,), the cost of the calls that the policy makes.
        unknown: bool (n,), rows without an outcome, or with an unknown cost: they save nothing and cost as much as
            possible.
        asks_guide: bool (n,), whether the policy asks the guide.
    """

    guide: Floats
    others: Floats
    served: Floats
    unknown: Bools
    asks_guide: Bools

    def saving(self, audit: float, bounds: Bounds) -> Floats:
        """Return the saving of each request against the guide alone, the share `audit` run to the end: float64 (n,)."""
        spent = self.served + audit * (self.guide + self.others - self.served)
        return np.where(self.unknown, -bounds.others, self.guide - spent)

    def within(self, bounds: Bounds) -> bool:
        """Whether every request is within the bounds."""
        known = ~self.unknown
        return bool((self.guide[known] <= bounds.guide).all() and (self.others[known] <= bounds.others).all())


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds on the cost of a request, in nano-USD: of the guide's call, and of all others together."""

    guide: float
    others: float

    @classmethod
    def of(cls, costs: Costs) -> Bounds:
        """Return the bounds from fitting rows."""
        known = ~costs.unknown
        return cls(SPARE * costs.guide[known].max(initial=0.0), SPARE * costs.others[known].max(initial=0.0))


def least_saving(savings: Floats, bounds: Bounds, level: float) -> float:
    """Return a lower bound on the mean saving, in nano-USD, that is too high with probability `level` at most.

    Args:
        savings: float64 (n,), independent requests, each from −bounds.others to bounds.guide.
        bounds: fixed before these were seen.
        level: the probability.

    >>> bounds = Bounds(40.0, 4.0)
    >>> least_saving(np.array([6.0, 7.0, -1.0, 8.0] * 100), bounds, 0.05) > 3
    True
    """
    if not savings.size:
        return -bounds.others
    paid, upper = bounds.guide - savings, bounds.guide + bounds.others
    low, high = 0.0, upper  # the mean of `paid` is below `high` for certain
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if mean_below_p_value(paid, middle, upper) <= level:
            high = middle
        else:
            low = middle
    return bounds.guide - high


def rows_for_saving(savings: Floats, bounds: Bounds, level: float) -> float:
    """Return about how many requests like these prove a saving at a level; +∞ if they save nothing."""
    if not savings.size:
        return float("inf")
    upper = bounds.guide + bounds.others
    each = mean_below_log_e_value(bounds.guide - savings, bounds.guide, upper) / savings.size
    return float(np.log(1 / level) / each) if each > 0 else float("inf")
