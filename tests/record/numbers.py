"""Bounds, tails and monitors on a grid: numbers in, numbers out.

The most losses and alarms are exact. Tails, bounds and evidence come out of logarithms and sums, and may differ in the last
digits on another machine.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from cascade.conformal.binomial import lower_tail, misses_p_value, most_losses, upper_bound
from cascade.conformal.monitor import Monitor

ALPHAS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
DELTAS = (0.01, 0.05, 0.1, 0.2)
SIZES = (*range(1, 41), 59, 75, 99, 100, 199, 200, 230, 299, 300, 500, 660, 999, 1000, 2000, 5000, 12345, 50000)
STREAMS = 40
AUDITS = 1500
TRUE_RATES = (0.5, 1.0, 1.6, 3.0)
"""The rates of misses in audits, in multiples of what is promised."""


def exact() -> dict[str, Any]:
    """Return the most losses, and when monitors alarm."""
    return {
        "most_losses": [[most_losses(n, *each) for n in SIZES] for each in product(ALPHAS, DELTAS)],
        "alarms": [_watched(seed)[0] for seed in range(STREAMS)],
    }


def near() -> dict[str, list[float]]:
    """Return tails, bounds and evidence."""
    some = [n for n in SIZES if n in {1, 7, 40, 100, 230, 660, 2000, 50000}]
    shares = (0.0, 0.01, 0.04, 0.1, 0.3)
    counts = [(n, int(share * n)) for n, share in product(some, shares)]
    return {
        "lower_tail": [lower_tail(count, n, alpha) for (n, count), alpha in product(counts, ALPHAS)],
        "upper_bound": [upper_bound(count, n, delta) for (n, count), delta in product(counts, DELTAS)],
        "misses_p_value": [
            misses_p_value(count, m, n, int(Fraction(repr(alpha)) * (n + 1)))
            for (m, count), n, alpha in product(counts, (99, 500), (0.05, 0.1))
        ],
        "e_values": [_watched(seed)[1] for seed in range(STREAMS)],
    }


def _watched(seed: int) -> tuple[int | None, float]:
    """Return after how many audits a monitor alarms, and its evidence after 200."""
    rng = np.random.default_rng([20261129, seed])
    alpha, level = ALPHAS[2 + seed % 5], (0.05, 0.02)[seed // 5 % 2]
    missed = rng.random(AUDITS) < np.minimum(0.9, alpha * TRUE_RATES[seed // 10])
    watch, evidence = Monitor.start(risk=alpha, level=level), 1.0
    for number, each in enumerate(missed.tolist(), 1):
        watch = watch.update(each)
        evidence = watch.e_value if number == 200 else evidence
    return watch.alarmed_after, evidence
