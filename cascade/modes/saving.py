"""What a policy saves on a request, net of audits, and how little that can be: bets against "nothing is saved".

A mean has no lower bound without a bound on its values. It is taken from rows that may fit, before a certifying row is
seen: no request costs more than four times what the dearest of them did. A certifying row above that refutes the bound,
and the look is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.conformal.monitor import mean_below_log_e_value, mean_below_p_value

SPARE = 4.0
"""Times the dearest request seen that no request costs more than."""
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Costs:
    """What n requests cost, in nano-USD.

    Attributes:
        guide: float64 (n,), of the guide's call.
        others: float64 (n,), of all calls but the guide's.
        served: float64 (n,), of the calls that the policy makes.
        unknown: bool (n,), rows without an outcome, or with an unknown cost: they save nothing and cost as much as can
            be.
    """

    guide: Floats
    others: Floats
    served: Floats
    unknown: Bools

    def saving(self, audit: float, bounds: Bounds) -> Floats:
        """Return what each request saves against the guide alone, with a share of all run to the end: float64 (n,)."""
        spent = self.served + audit * (self.guide + self.others - self.served)
        return np.where(self.unknown, -bounds.others, self.guide - spent)

    def within(self, bounds: Bounds) -> bool:
        """Whether no request is dearer than the bounds."""
        known = ~self.unknown
        return bool((self.guide[known] <= bounds.guide).all() and (self.others[known] <= bounds.others).all())


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no request costs more than, in nano-USD: the guide's call, and all others together."""

    guide: float
    others: float

    @classmethod
    def of(cls, costs: Costs) -> Bounds:
        """Return the bounds that rows give which may fit."""
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
    """Return about how many requests like these prove a saving at a level; +∞ where they save nothing."""
    if not savings.size:
        return float("inf")
    upper = bounds.guide + bounds.others
    each = mean_below_log_e_value(bounds.guide - savings, bounds.guide, upper) / savings.size
    return float(np.log(1 / level) / each) if each > 0 else float("inf")
