"""How sure a mean over splits is: splits share questions, so they are not independent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cascade.errors import UsageError

CONFIDENCE = 0.95
LEAST_QUESTIONS = 6
"""Fewer independent questions bear no interval. Chance gives a difference of one sign on all of n questions with
probability 2^(1 − n) (the exact two-sided sign test), which is below 5 % from n = 6 on."""


class Interval(NamedTuple):
    """A mean with its confidence interval; an unknown bound is None."""

    mean: float
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside: the difference is more than chance."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def corrected_interval(
    values: Sequence[float], *, n_train: int, n_test: int, confidence: float = CONFIDENCE
) -> Interval:
    """Return the mean of per-split values and its interval, with Nadeau and Bengio's correction.

    The variance over J splits is multiplied by 1/J + n_test/n_train instead of 1/J, since the splits overlap; Student's
    t with J − 1 degrees of freedom. With fewer than two splits, or fewer than `LEAST_QUESTIONS` independent questions
    in `n_train` and `n_test` together, the bounds are unknown.

    Reference: Nadeau & Bengio, Inference for the generalization error (2003).
    """
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean())
    if data.size < 2 or n_train + n_test < LEAST_QUESTIONS:
        return Interval(mean, None, None)
    spread = math.sqrt(float(data.var(ddof=1)) * (1 / data.size + n_test / n_train))
    half = student_t_quantile((1 + confidence) / 2, data.size - 1) * spread
    return Interval(mean, mean - half, mean + half)


def student_t_quantile(p: float, df: int) -> float:
    """Return the p-quantile of Student's t with df degrees of freedom, p in [0.5, 1), to 1e-10.

    Raises:
        UsageError: p lies outside, or there is no degree of freedom.

    >>> round(student_t_quantile(0.975, 19), 4), round(student_t_quantile(0.975, 1), 4)
    (2.093, 12.7062)
    """
    if not 0.5 <= p < 1 or df < 1:
        raise UsageError(f"Student's t has no {p:g}-quantile with {df} degrees of freedom here; p is in [0.5, 1).")
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, df: int) -> float:
    """Return P(T ≤ t) for t ≥ 0, by the finite series for whole degrees of freedom (Abramowitz & Stegun 26.7.3-4)."""
    theta = math.atan(t / math.sqrt(df))
    cos2 = math.cos(theta) ** 2
    odd = df % 2
    term = math.cos(theta) if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= (k - 1) / k * cos2
        total += term
    area = 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
    return 0.5 + area / 2
