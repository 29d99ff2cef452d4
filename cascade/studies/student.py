"""The quantiles of Student's t, exactly, without scipy."""

from __future__ import annotations

import math


def student_quantile(p: float, df: int) -> float:
    """Return the p-quantile of Student's t with a whole number of degrees of freedom, 0.5 ≤ p < 1, to 1e-10.

    >>> round(student_quantile(0.975, 19), 4), round(student_quantile(0.975, 1), 4)
    (2.093, 12.7062)
    """
    low, high = 0.0, 1.0
    while _below(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, df) < p else (low, middle)
    return (low + high) / 2


def _below(t: float, df: int) -> float:
    """Return P(T ≤ t), t ≥ 0, by the finite series of Abramowitz & Stegun (1964), 26.7.3 and 26.7.4."""
    theta, odd = math.atan(t / math.sqrt(df)), df % 2
    cos = math.cos(theta)
    term = cos if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= (k - 1) / k * cos * cos
        total += term
    area = 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
    return 0.5 + area / 2
