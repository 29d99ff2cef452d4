"""Collect evidence from audited misses that a promise no longer holds; it may be read after each audit.

The evidence is an e-process: a number whose expectation is at most 1 while the miss rate is at most a bound, at any
stopping time. The probability that it ever exceeds 1/level is at most level (Ville's inequality). It bets that the rate
of misses rises above the bound: it is a mean over a few raised rates and over the number of audits before the rise.

The bound is alpha for a promise with delta. A promise on average over calibrations says nothing of one calibration,
whose miss rate follows a Beta(k, n + 1 − k) law, or is lower if critical values are tied: the bound is then the rate
that this law exceeds with probability `UNLUCKY`.

Reference: Ville (1939); Wasserman, Ramdas & Balakrishnan, Universal inference (2020); Shin, Ramdas & Rinaldo,
E-detectors (2023).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from cascade.checks import refuse, share_problems
from cascade.conformal.arrays import Floats
from cascade.conformal.binomial import upper_bound
from cascade.errors import UsageError

_ODDS = (1.5, 2.0, 3.0, 6.0)
"""The raised rates θ that the monitor bets on, in multiples of the bound's odds."""
UNLUCKY = 0.01
"""The share of calibrations on average whose miss rate is above the bound of their monitor."""
_LARGEST = 700.0  # e^709 is about the largest float


@dataclass(frozen=True, slots=True)
class Monitor:
    """Evidence against a promise. Values are frozen: `update` returns the next one. Make one with `start`.

    Guarantee: while audited questions are i.i.d. from the distribution of the calibration questions, the probability
    that the monitor ever alarms is at most `level` + delta, over calibration and audits together; for a promise on
    average, with or without ties, at most `level` + `UNLUCKY`. An alarm is final.

    Attributes:
        level: the probability of a false alarm that is accepted.
        alpha: the bound on the share of misses.
        audits: the number of audits counted.
        misses: how many of them were missed.
        alarmed_after: the number of audits at which it alarmed; None if it has not.
        risen: for each raised rate, the logarithm of its sum in the evidence over the points of change so far.
    """

    level: float
    alpha: float
    audits: int = 0
    misses: int = 0
    alarmed_after: int | None = None
    risen: tuple[float, ...] = field(default_factory=lambda: (-math.inf,) * len(_ODDS))

    @classmethod
    def start(
        cls, *, alpha: float, n: int = 0, k: int | None = None, delta: float | None = None, level: float = 0.05
    ) -> Monitor:
        """Return the monitor of a certificate, before its first audit.

        Args:
            alpha: the promised bound on the share of misses.
            n: the number of calibration questions behind the threshold.
            k: the rank of the threshold among their critical values. With 0 everything is kept, so no calibration can
                be unlucky; None if the promise is about the rate itself.
            delta: the certificate's delta; None for a promise on average over calibrations.
            level: the probability of a false alarm that is accepted.

        Raises:
            UsageError: lists every problem with the arguments.

        >>> watch = Monitor.start(alpha=0.1, n=200, k=20)
        >>> round(watch.alpha, 3), Monitor.start(alpha=0.1, n=200, k=15, delta=0.1).alpha
        (0.154, 0.1)
        >>> for number in range(40):
        ...     watch = watch.update(missed=number % 2 == 0)
        >>> watch.alarmed_after
        13
        """
        problems = list(_problems(alpha, n, k, level))
        if problems:
            raise UsageError("\n".join(problems))
        if delta is None and k:
            alpha = max(alpha, upper_bound(k - 1, n, UNLUCKY))
        return cls(level, alpha)

    @property
    def e_value(self) -> float:
        """The evidence now: its expectation is at most 1 while nothing has drifted, at any stopping time.

        It starts at 1. The monitor alarms when it reaches 1/level.
        """
        return math.exp(min(self._log_e_value, _LARGEST))

    @property
    def _log_e_value(self) -> float:
        later = -math.log(math.log2(self.audits + 2))  # the weight of all rises that are still to come
        return _log_mean(self.risen, later)

    @property
    def alarmed(self) -> bool:
        """Whether it has alarmed, now or before."""
        return self.alarmed_after is not None

    def update(self, missed: bool) -> Monitor:
        """Return the monitor after one more audit, in constant time; `missed`: whether the question was missed."""
        rise = math.log(_weight(self.audits))
        risen = tuple(
            _log_add(one, rise) + _log_rate(self.alpha, odds, missed) - _log_rate(self.alpha, 1.0, missed)
            for one, odds in zip(self.risen, _ODDS, strict=True)
        )
        after = replace(self, audits=self.audits + 1, misses=self.misses + bool(missed), risen=risen)
        if not self.alarmed and after._log_e_value >= -math.log(self.level):  # noqa: SLF001 - of its own class
            return replace(after, alarmed_after=after.audits)
        return after


def _problems(alpha: float, n: int, k: int | None, level: float) -> Iterator[str]:
    yield from (f"{problem}." for problem in share_problems(alpha=alpha, level=level))
    if k is not None and not 0 <= k <= n:
        yield f"The rank k lies in 0..n; these are n = {n}, k = {k}."


def _weight(before: int) -> float:
    """Return the weight of a rise after a number of audits."""
    return 1 / math.log2(before + 2) - 1 / math.log2(before + 3)


def _log_rate(alpha: float, odds: float, missed: bool) -> float:
    """Return the logarithm of the probability of x at the rate whose odds are `odds` times those of alpha."""
    covered = math.log1p(-alpha) - math.log1p(alpha * (odds - 1))
    return math.log(alpha) + math.log(odds) - math.log1p(alpha * (odds - 1)) if missed else covered


def _log_add(one: float, other: float) -> float:
    """Return ln(e^one + e^other); one of them is finite."""
    high, low = max(one, other), min(one, other)
    return high + math.log1p(math.exp(low - high))


def _log_mean(logs: tuple[float, ...], log_rest: float) -> float:
    """Return the logarithm of the mean over the raised rates, plus the rest."""
    top = max(*logs, log_rest)
    return top + math.log(sum(math.exp(one - top) for one in logs) / len(logs) + math.exp(log_rest - top))


# --- Evidence that a mean lies below a bound, for numbers that are bounded but need not be 0 or 1: such as costs
# Bet against "the mean is at least the bound" on each number x with a stake λ: the capital is multiplied by
# 1 + λ(bound − x). Under that hypothesis no stake wins on average, so the capital reaches 1/δ with probability at most
# δ (Ville). The stakes are fixed beforehand and the capital is the mean over them, so the order of the numbers does not
# matter. The exact tails of `binomial` are sharper for losses of 0 or 1.
#
# Reference: Waudby-Smith & Ramdas, Estimating means of bounded random variables by betting (2024); Bates et al.,
# Distribution-free, risk-controlling prediction sets (2021); Angelopoulos et al., Learn then test (2021).

# Shares of 1/(upper − bound), the largest stake with which the capital cannot become negative. The largest suits
# numbers that hardly vary, the smallest a hundred thousand numbers that vary a lot. A grid twice as fine gains nothing
# .
STAKES = tuple([0.5**j for j in range(7)])
# A generous bound on the rounding error of one logarithm and its argument, in units of the machine's epsilon.
_LOG_ROUNDING = 8.0
_EPSILON = sys.float_info.epsilon


def mean_below_log_e_value(values: ArrayLike, bound: float, upper: float) -> float:
    """Return the logarithm of the e-value against "the mean is at least `bound`", never above the exact one.

    Args:
        values: (n,), independent draws from one distribution, each in 0..upper.
        bound: the bound that the mean is compared with, in the values' unit.
        upper: the largest possible value, known beforehand and not taken from the values.

    Returns:
        log of (1/7)·Σ over stakes of Π(1 + λ(bound − x)); +∞ if the values refute the hypothesis for certain, 0 without
        values.

    Guarantee:
        If E[x] ≥ bound, then E[e] ≤ 1, so Pr[e ≥ 1/δ] ≤ δ. This also holds at any stopping time, since the stakes do
        not depend on the values.

    Raises:
        UsageError: a value is not a number or lies outside 0..upper, or the limits are not finite numbers.

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


def _distinct(values: ArrayLike, bound: float, upper: float) -> tuple[Floats, Floats]:
    """Return the distinct values in rising order, checked, and the count of each."""
    found = np.asarray(values, dtype=np.float64)
    problems = []
    if found.ndim != 1:
        problems.append(f"the values must have one dimension, not the shape {found.shape}")
    if not math.isfinite(bound):
        problems.append(f"the bound must be a finite number, not {bound}")
    if not (math.isfinite(upper) and upper > 0):
        problems.append(f"upper must be a finite number above 0, not {upper}")
    elif not bool(((found >= 0) & (found <= upper)).all()):  # NaN is neither
        problems.append(f"every value must be a number in 0..{upper:g}")
    refuse(problems)
    x, counts = np.unique(found, return_counts=True)
    return x, counts.astype(np.float64)


def _log_capital(x: Floats, counts: Floats, bound: float, upper: float, stake: float) -> float:
    """Return log Π(1 + λ(bound − x)) with λ = stake/(upper − bound), minus a bound on the rounding error."""
    if stake == 1:  # this form has no cancellation if a value is close to upper
        if x[-1] >= upper:
            return -math.inf
        logs = np.log((upper - x) / (upper - bound))
    else:
        logs = np.log1p(stake * ((bound - x) / (upper - bound)))
    total = float((counts * logs).sum())
    return total - (_LOG_ROUNDING + x.size) * _EPSILON * float((counts * (1 + np.abs(logs))).sum())
