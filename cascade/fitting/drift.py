"""Whether the requests of a log change over its time: a certificate speaks of requests like those that certified it.

The ranks of a number are correlated with the order of the rows (Spearman). Under exchangeable rows the statistic is
normal with standard deviation 1/√(n − 1), closely for n ≥ 20.

Reference: Spearman (1904); Kendall & Gibbons, Rank correlation methods (1990), 4.14.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cascade.table import Floats

NOTICE = 0.01
"""Below this p-value a fit says that the log changes over its time."""
_FEWEST = 20


class Drift(NamedTuple):
    """A trend over the rows of a log: the rank correlation with the order, −1..1, and its two-sided p-value."""

    correlation: float
    p_value: float

    @property
    def notable(self) -> bool:
        """Whether chance alone would show such a trend less than once in a hundred logs."""
        return self.p_value < NOTICE


def drift(values: Floats) -> Drift | None:
    """Return the trend of a number over rows in the order of time; None if too few are known, or none differ.

    >>> drift(np.arange(30.0)).notable, drift(np.tile([0.0, 1.0], 15)).notable, drift(np.zeros(30)) is None
    (True, False, True)
    """
    recorded = values[~np.isnan(values)]
    if recorded.size < _FEWEST or recorded.min() == recorded.max():
        return None
    position, counts = np.unique(recorded, return_inverse=True, return_counts=True)[1:]
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[position]
    time = np.arange(1.0, recorded.size + 1)
    correlation = float(np.corrcoef(ranks, time)[0, 1])
    z = abs(correlation) * math.sqrt(recorded.size - 1)
    return Drift(correlation, math.erfc(z / math.sqrt(2)))
