"""Exact tails of the binomial law: how many losses among n still prove that their rate is below alpha.

A decision is made in float64 only if a proven bound on the rounding error leaves no doubt, otherwise in integers:

    Pr[Bin(n, a/b) ≤ c] ≤ δ   ⇔   Σ_{i ≤ c} C(n, i) aⁱ (b − a)ⁿ⁻ⁱ ≤ δ bⁿ

Shares are read as the decimals that they are printed as. If the integers would be too large, the result is False:
nothing is proven.

The sum in float64 starts at the mode m with t_m = 1 and multiplies by t_{i+1}/t_i = (n − i)/(i + 1) · p/(1 − p), in
both directions. Then it is divided by the sum of all terms, 1/Pr[m]. So no factorial is needed, nor a logarithm whose
error would have to be bounded. With u = 2⁻⁵³, a ratio has three roundings, a product of k ratios k more, and a running
sum of K terms K more: all are within a factor (1 + u)^(5K) of the truth (Higham, 2002, section 3.1). The terms left out
sum to at most (n + 1) times the larger of the two outermost terms, since terms fall with the distance from the mode.

Reference: Clopper & Pearson (1934); Higham, Accuracy and Stability of Numerical Algorithms (2002).
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cascade.checks import refuse, share_problems
from cascade.errors import UsageError
from cascade.table import Floats

MOST_QUESTIONS = 10**9
"""With more questions the sums would not fit into memory; calibration sets are far smaller."""
_EXACT_WORK = 10**9  # the most bits times terms of an exact sum: about a quarter of a second
_SMALLEST = 1e-300  # terms below it may have lost digits to underflow


def as_written(share: float) -> Fraction:
    """Return the exact decimal number that a float is printed as: 0.1 is one tenth.

    >>> as_written(0.1)
    Fraction(1, 10)
    """
    return Fraction(repr(float(share)))


def lower_tail(count: int, n: int, p: float) -> float:
    """Return Pr[Bin(n, p) ≤ count], rounded up: never below the truth, relative error at most 10⁻⁹ down to 10⁻²⁸⁰.

    It is the p-value of `count` losses among n against "their rate is p or more"; `most_losses` compares exactly.

    Args:
        count: losses; below 0 the probability is 0.
        n: independent questions, 0 ≤ n ≤ 10⁹.
        p: the rate.

    Raises:
        UsageError: n or p is out of range.

    >>> round(lower_tail(1, 10, 0.1), 10)
    0.7360989291
    """
    n = _checked(n, share_problems(ends=True, p=p))
    return 0.0 if count < 0 else _tail(operator.index(count), n, as_written(p)).highest


def most_losses(n: int, alpha: float, delta: float) -> int | None:
    """Return the largest count of losses among n that proves a rate below alpha; None if even 0 losses do not prove it.

    Guarantee: if questions are i.i.d. with a loss rate of alpha or more, this many losses or fewer have a probability
    of at most delta: Pr[Bin(n, alpha) ≤ losses] ≤ delta. The decision is exact; a count is not proven if neither
    float64 nor integers of a practical size can decide.

    Args:
        n: the number of questions.
        alpha: the rate to be excluded, read as a decimal.
        delta: the probability of a wrong exclusion, read as a decimal.

    Raises:
        UsageError: n, alpha or delta is out of range; the message lists every problem.

    >>> most_losses(200, 0.1, 0.1), most_losses(21, 0.1, 0.1)
    (14, None)
    """
    n = _checked(n, [*share_problems(ends=True, alpha=alpha), *share_problems(delta=delta)])
    return _largest(n, as_written(alpha), as_written(delta))


def upper_bound(losses: int, n: int, delta: float) -> float:
    """Return the upper confidence bound on a loss rate, rounded up: the rate is above it with probability ≤ delta.

    At this rate, `losses` or fewer would have probability delta. The bound is 1 if all questions are lost.

    Args:
        losses: the number of losses among n independent questions.
        n: the number of questions.
        delta: the probability that the bound is too low.

    Reference: Clopper & Pearson (1934), one-sided.

    >>> round(upper_bound(0, 50, 0.1), 6), upper_bound(7, 7, 0.1)
    (0.045007, 1.0)
    """
    n = _checked(n, share_problems(delta=delta))
    if not 0 <= losses <= n:
        raise UsageError(f"losses must lie in 0..{n}, not {losses}.")
    if losses == n:
        return 1.0
    losses, level, low, high = operator.index(losses), as_written(delta), losses / n, 1.0
    while high - low > high * 1e-12:  # the float64 sums cannot resolve finer steps
        middle = (low + high) / 2
        proven = _float_tail(_law.__wrapped__(n, Fraction(middle)), losses).highest <= level
        low, high = (low, middle) if proven else (middle, high)
    return high


def lower_bound(losses: int, n: int, delta: float) -> float:
    """Return the lower confidence bound on a loss rate, rounded down: the rate is below it with probability ≤ delta.

    The arguments, errors and reference are those of `upper_bound`.

    >>> round(lower_bound(10, 50, 0.05), 6), lower_bound(0, 50, 0.05)
    (0.112722, 0.0)
    """
    bound = 1.0 - upper_bound(n - losses, n, delta)
    return max(0.0, math.nextafter(bound, 0.0))


class _Bounds(NamedTuple):
    """Bounds on a probability."""

    lowest: float
    highest: float


class _Law(NamedTuple):
    """The terms of a binomial law around its mode, in units of the mode's.

    Attributes:
        n: the number of questions.
        first: the count of losses that the first term is for.
        below: float64, running sums of the terms.
        dropped: an upper bound on the mass of the terms left out or lost to underflow.
        error: the relative error of a running sum.
    """

    n: int
    first: int
    below: Floats
    dropped: float
    error: float


@lru_cache(maxsize=32)
def _law(n: int, p: Fraction) -> _Law:
    """Return the law of Bin(n, p), 0 < p < 1."""
    odds = float(p / (1 - p))
    mode = min(n, math.floor((n + 1) * p))
    spread = math.sqrt(float(n * p * (1 - p)))
    reach = 460 + math.ceil(37 * spread)  # Bernstein's inequality: less than 10⁻²⁸⁰ lies beyond
    first, last = max(0, mode - reach), min(n, mode + reach)
    up = np.arange(mode, last, dtype=np.float64)
    down = np.arange(mode, first, -1, dtype=np.float64)
    with np.errstate(under="ignore"):
        rising = np.cumprod((n - up) / (up + 1) * odds)
        falling = np.cumprod(down / (n - down + 1) / odds)
    terms = np.concatenate([falling[::-1], np.ones(1), rising])
    dropped = (n + 1) * max(float(terms[0]) if first else 0.0, float(terms[-1]) if last < n else 0.0, _SMALLEST)
    return _Law(n, first, np.cumsum(terms), dropped, 6 * terms.size * 2.0**-53)


def _float_tail(law: _Law, count: int) -> _Bounds:
    """Return bounds on Pr[X ≤ count], 0 ≤ count < n."""
    index = min(count - law.first, law.below.size - 1)
    below = float(law.below[index]) if index >= 0 else 0.0
    total = float(law.below[-1])
    highest = (below * (1 + law.error) + law.dropped) / (total * (1 - law.error))
    lowest = max(0.0, below * (1 - law.error) - law.dropped) / (total * (1 + law.error) + law.dropped)
    return _Bounds(lowest * (1 - law.error), min(1.0, highest * (1 + law.error)))


def _tail(count: int, n: int, p: Fraction) -> _Bounds:
    """Return bounds on Pr[Bin(n, p) ≤ count], count ≥ 0."""
    if count >= n or p == 0:
        return _Bounds(1.0, 1.0)
    return _Bounds(0.0, 0.0) if p == 1 else _float_tail(_law(n, p), count)


def _at_most(count: int, n: int, p: Fraction, level: Fraction) -> bool:
    """Return whether Pr[Bin(n, p) ≤ count] ≤ level; False if that cannot be decided."""
    tail = _tail(count, n, p)
    if tail.highest <= level or tail.lowest > level:
        return tail.highest <= level
    if n * p.denominator.bit_length() * (count + 1) > _EXACT_WORK:
        return False
    return _exact_at_most(count, n, p, level)


def _exact_at_most(count: int, n: int, p: Fraction, level: Fraction) -> bool:
    """Return whether Pr[Bin(n, p) ≤ count] ≤ level, compared in integers: both sides times bⁿ."""
    a, b = p.numerator, p.denominator
    term = total = (b - a) ** n
    for i in range(count):
        term = term * (a * (n - i)) // ((b - a) * (i + 1))  # no remainder: the result is C(n, i+1) aⁱ⁺¹ (b−a)ⁿ⁻ⁱ⁻¹
        total += term
    return bool(total * level.denominator <= level.numerator * b**n)


@lru_cache(maxsize=4096)
def _largest(n: int, p: Fraction, level: Fraction) -> int | None:
    low, high = -1, n  # low is proven, or −1; high is not proven: n losses or fewer are certain
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _at_most(middle, n, p, level) else (low, middle)
    return low if low >= 0 else None


def _checked(n: int, wrong: list[str]) -> int:
    """Return n as a Python int, which cannot overflow; or raise one error that lists every problem."""
    if not 0 <= n <= MOST_QUESTIONS:
        wrong = [*wrong, f"n must lie in 0..{MOST_QUESTIONS:,}, not {n}"]
    refuse(wrong)
    return operator.index(n)


# --- How many of m fresh questions a split-conformal threshold misses: the law by which a promise is tested ---
# Without ties, the share of fresh questions that the k-th smallest of n critical values misses is Beta(k, n + 1 − k)
# over calibrations. So for m fresh questions
#
#     Pr[misses = j] = C(m, j) · B(j + k, m − j + n + 1 − k) / B(k, n + 1 − k)
#
# a beta-binomial law. With ties, misses are stochastically fewer. So a number of misses that is improbably high under
# this law is evidence against the promise; the law allows for the luck of the calibration.
#
# Reference: Vovk, Conditional validity of inductive conformal predictors (2012); Angelopoulos & Bates (2021), 3.2.

# A generous bound on the rounding error of a running sum of m logarithms of ratios, relative to each.
_ROUNDING = 16 * 2.0**-53


def miss_log_pmf(m: int, n: int, k: int) -> Floats:
    """Return the logarithms of Pr[misses = j] for j = 0..m, float64 (m + 1,).

    There are m fresh and n calibration questions, and k in 1..n is the rank of the threshold among the latter.

    >>> np.exp(miss_log_pmf(2, 3, 1)).round(3).tolist()
    [0.6, 0.3, 0.1]
    """
    if not 1 <= k <= n or m < 0:
        raise UsageError(f"There is no rank {k} among {n} questions, or {m} is not a number of questions.")
    below = n + 1 - k
    i = np.arange(m, dtype=np.float64)
    first = float(np.log1p(-k / (n + 1 + i)).sum())
    ratio = np.log((m - i) * (k + i)) - np.log((i + 1) * (below + m - i - 1))
    return np.asarray(first + np.concatenate([np.zeros(1), np.cumsum(ratio)]), dtype=np.float64)


def misses_p_value(misses: int, m: int, n: int, k: int) -> float:
    """Return Pr[at least `misses` of m fresh questions are missed], rounded up.

    There were n calibration questions, and k is the rank of the threshold among them; k = 0 stands for a calibration
    without a threshold, which keeps everything and misses nothing.

    Guarantee: if the calibration and the fresh questions are exchangeable, the probability that this p-value is at most
    p, over both, is at most p, with or without ties.

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
