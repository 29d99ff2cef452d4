"""Evidence that a mean lies below a bound, for numbers that are bounded but need not be 0 or 1: costs, graded losses.

Bet against "the mean is at least the bound" on each number x with a stake λ: the capital is multiplied by
1 + λ(bound − x). Under that hypothesis no stake wins on average, so capital of 1/δ comes with probability δ at most
(Ville). The stakes are fixed beforehand and the capital is the mean over them, so that the order of the numbers does
not matter. For losses that are 0 or 1 the exact tails of `binomial` are sharper, for those that nearly are
`hoeffding_bentkus_p_value` (`design/risk.md`).

Reference: Waudby-Smith & Ramdas, Estimating means of bounded random variables by betting (2024); Bates et al.,
Distribution-free, risk-controlling prediction sets (2021); Angelopoulos et al., Learn then test (2021).
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from cascade.checks import share_problems
from cascade.conformal.arrays import Floats
from cascade.conformal.binomial import lower_tail
from cascade.errors import UsageError

# Shares of the largest stake that cannot go below nothing, 1/(upper − bound). The largest suits numbers that hardly
# vary, the smallest a hundred thousand that vary a lot. A grid twice as fine gains nothing (`design/risk.md`).
STAKES = tuple([0.5**j for j in range(7)])
# Rounding of one logarithm and its argument, in units of the machine's epsilon, with room to spare.
_LOG_ROUNDING = 8.0
_EPSILON = sys.float_info.epsilon


def mean_below_log_e_value(values: ArrayLike, bound: float, upper: float) -> float:
    """Return the logarithm of the e-value against "the mean is at least `bound`", never above the exact one.

    Args:
        values: (n,), independent draws from one distribution, each in 0..upper.
        bound: what the mean is compared with, in the values' unit.
        upper: what no value can exceed, known beforehand and not read off the values.

    Returns:
        log of (1/7)·Σ over stakes of Π(1 + λ(bound − x)); +∞ where the values refute the hypothesis for certain, 0 of
        no values.

    Guarantee:
        If E[x] ≥ bound, then E[e] ≤ 1, so Pr[e ≥ 1/δ] ≤ δ; at any stopping time too, since the stakes depend on
        nothing seen.

    Raises:
        UsageError: a value is no number or lies outside 0..upper, or the limits are no finite numbers.

    >>> round(mean_below_log_e_value([0.1] * 40, 0.2, 1.0), 2)
    2.93
    """
    x, counts = _distinct(values, bound, upper)
    if bound > upper or (bound == upper and bool((x < upper).any())):
        return math.inf
    if not x.size or bound == upper:
        return 0.0
    capital = [_log_capital(x, counts, bound, upper, stake) for stake in STAKES]
    highest = max(capital)
    if highest == -math.inf:
        return highest
    mean = math.fsum(math.exp(one - highest) for one in capital) / len(STAKES)
    return highest + math.log(mean) - _LOG_ROUNDING * _EPSILON * (1 + abs(highest))  # the last steps' own rounding


def mean_below_p_value(values: ArrayLike, bound: float, upper: float) -> float:
    """Return a p-value against "the mean is at least `bound`": min(1, 1/e), rounded up.

    Betting and not Hoeffding-Bentkus: costs vary less than their cap allows, and then it certifies a budget nearer to
    the mean (13 % above it instead of 35 % where a step is a twenty-fifth of the cap and n = 500; `design/risk.md`).

    Args, guarantee and errors: as `mean_below_log_e_value`; Pr[p ≤ δ] ≤ δ for every δ if E[x] ≥ bound.

    >>> mean_below_p_value([3, 4, 5] * 100, 6, 20) < 0.05, mean_below_p_value([3, 4, 5] * 100, 4, 20)
    (True, 1.0)
    """
    log_e = mean_below_log_e_value(values, bound, upper)
    if log_e <= 0:
        return 1.0
    if log_e == math.inf:
        return 0.0
    return min(1.0, math.nextafter(math.exp(-log_e) * (1 + 2 * _EPSILON), 1.0))


def hoeffding_bentkus_p_value(mean: float | Fraction, n: int, alpha: float) -> float:
    """Return a p-value against "the expected loss is at least alpha" from the mean of n losses in 0..1.

    min(exp(−n·KL(mean ∥ alpha)), e·Pr[Bin(n, alpha) ≤ ⌈n·mean⌉]), 1 at most. Both bound the tail of the same mean, so
    that the smaller one is valid. A mean that misses a count over n by rounding alone is read as that.

    Args:
        mean: of n independent losses; a Fraction is taken as it is.
        n: how many, at least 1.
        alpha: the bound on the expected loss, above 0 and below 1.

    Guarantee:
        If the expected loss is at least alpha, Pr[p ≤ δ] ≤ δ for every δ.

    Raises:
        UsageError: an argument lies outside its range.

    >>> round(hoeffding_bentkus_p_value(0.05, 200, 0.1), 4)
    0.0219
    """
    problems = [
        *([] if 0 <= mean <= 1 else [f"the mean loss must lie in 0..1, not {float(mean):g}"]),
        *([] if n >= 1 else [f"n must be at least 1, not {n}"]),
        *share_problems(alpha=alpha),
    ]
    if problems:
        raise UsageError("; ".join(problems) + ".")
    if mean >= alpha:
        return 1.0
    hoeffding = math.exp(-n * _divergence(float(mean), alpha))
    return min(1.0, hoeffding, math.e * lower_tail(_count_of(mean, n), n, alpha))


def _count_of(mean: float | Fraction, n: int) -> int:
    """Return ⌈n·mean⌉; a float that is a count over n but for rounding is that count."""
    if isinstance(mean, Fraction):
        return math.ceil(mean * n)
    nearest = round(n * mean)
    return nearest if abs(n * mean - nearest) <= 4 * _EPSILON * n * mean else math.ceil(n * mean)


def _divergence(mean: float, alpha: float) -> float:
    """Return KL(mean ∥ alpha) between two coins, in nats, for 0 ≤ mean < alpha < 1; rounded down, never below 0."""
    low = mean * math.log(mean / alpha) if mean else 0.0
    high = (1 - mean) * (math.log1p(-mean) - math.log1p(-alpha))
    return max(0.0, low + high - _LOG_ROUNDING * _EPSILON * (high - low))


def _distinct(values: ArrayLike, bound: float, upper: float) -> tuple[Floats, Floats]:
    """Return the checked values without repetition, rising, and how often each comes: the order is forgotten."""
    found = np.asarray(values, dtype=np.float64)
    problems = []
    if found.ndim != 1:
        problems.append(f"the values must stand in one row, not in the shape {found.shape}")
    if not math.isfinite(bound):
        problems.append(f"the bound must be a finite number, not {bound}")
    if not (math.isfinite(upper) and upper > 0):
        problems.append(f"upper must be a finite number above 0, not {upper}")
    elif not bool(((found >= 0) & (found <= upper)).all()):  # NaN is neither
        problems.append(f"every value must be a number in 0..{upper:g}")
    if problems:
        raise UsageError("; ".join(problems) + ".")
    x, counts = np.unique(found, return_counts=True)
    return x, counts.astype(np.float64)


def _log_capital(x: Floats, counts: Floats, bound: float, upper: float, stake: float) -> float:
    """Return log Π(1 + λ(bound − x)) with λ = stake/(upper − bound), less what rounding may have added."""
    if stake == 1:  # the factor is written so that nothing cancels where a value is close to upper
        if x[-1] >= upper:
            return -math.inf
        logs = np.log((upper - x) / (upper - bound))
    else:
        logs = np.log1p(stake * ((bound - x) / (upper - bound)))
    total = float((counts * logs).sum())
    return total - (_LOG_ROUNDING + x.size) * _EPSILON * float((counts * (1 + np.abs(logs))).sum())
