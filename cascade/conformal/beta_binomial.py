"""How many of m fresh questions a split-conformal threshold misses: the law by which a promise can be held to account.

Without ties, the share of fresh questions that the k-th smallest of n critical values misses is Beta(k, n + 1 − k)
over calibrations, so that of m fresh questions

    Pr[misses = j] = C(m, j) · B(j + k, m − j + n + 1 − k) / B(k, n + 1 − k)

a Beta-binomial law. With ties the misses are fewer in distribution. So a number of misses that is improbably high under
it speaks against the promise, luck of the calibration included.

Reference: Vovk, Conditional validity of inductive conformal predictors (2012); Angelopoulos & Bates (2021), 3.2.
"""

from __future__ import annotations

import math

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.errors import UsageError

# Rounding of a running sum of m logarithms of ratios, relative to each, with room to spare.
_ROUNDING = 16 * 2.0**-53


def miss_log_pmf(m: int, n: int, k: int) -> Floats:
    """Return the logarithms of Pr[misses = j] for j = 0..m, float64 (m + 1,).

    Args:
        m: fresh questions.
        n: calibration questions.
        k: the rank of the threshold among them, 1..n.

    Raises:
        UsageError: there is no such law.

    >>> np.exp(miss_log_pmf(2, 3, 1)).round(3).tolist()
    [0.6, 0.3, 0.1]
    """
    if not 1 <= k <= n or m < 0:
        raise UsageError(f"There is no rank {k} among {n} questions, or {m} is no number of questions.")
    below = n + 1 - k
    i = np.arange(m, dtype=np.float64)
    first = float(np.log1p(-k / (n + 1 + i)).sum())
    ratio = np.log((m - i) * (k + i)) - np.log((i + 1) * (below + m - i - 1))
    return np.asarray(first + np.concatenate([np.zeros(1), np.cumsum(ratio)]), dtype=np.float64)


def misses_p_value(misses: int, m: int, n: int, k: int) -> float:
    """Return Pr[at least so many of m fresh questions are missed], rounded up.

    Guarantee: if the calibration and the fresh questions are exchangeable, the probability that this is at most p, over
    both, is at most p, whatever the ties.

    Args:
        misses: of the fresh questions.
        m: fresh questions.
        n: calibration questions.
        k: the rank of the threshold; 0 for none, which misses nothing.

    Raises:
        UsageError: there is no such law.

    >>> round(misses_p_value(2, 2, 3, 1), 6), misses_p_value(1, 2, 3, 0)
    (0.1, 0.0)
    """
    if not 0 <= misses <= m:
        raise UsageError(f"misses must lie in 0..{m}, not {misses}.")
    if k == 0 or misses == 0:
        return 0.0 if misses else 1.0
    logs = miss_log_pmf(m, n, k)[misses:]
    highest = float(logs.max())
    slack = 1 + _ROUNDING * (m + 1) * (1 + abs(highest))
    return min(1.0, math.exp(highest) * float(np.exp(logs - highest).sum()) * slack)
