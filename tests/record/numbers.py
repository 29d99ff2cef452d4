"""Ranks, tails and monitors on a grid: numbers in, numbers out.

Ranks and alarms are exact. Tails, bounds and evidence come out of logarithms and sums, and may differ in the last
digits on another machine.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from cascade.conformal.binomial import lower_tail, misses_p_value, most_losses, upper_bound
from cascade.conformal.ltt import learn_then_test
from cascade.conformal.monitor import Monitor
from cascade.conformal.served import PathPoint, Served
from cascade.conformal.split import calibrate, needed_n, pac_rank, split_rank

ALPHAS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
DELTAS = (0.01, 0.05, 0.1, 0.2)
SIZES = (*range(1, 41), 59, 75, 99, 100, 199, 200, 230, 299, 300, 500, 660, 999, 1000, 2000, 5000, 12345, 50000)
STREAMS = 40
AUDITS = 1500
TRUE_RATES = (0.5, 1.0, 1.6, 3.0)
"""The rates of misses in audits, in multiples of what is promised."""


def exact() -> dict[str, Any]:
    """Return the ranks, the most losses, the thresholds of given values, and when monitors alarm."""
    return {
        "split_rank": [[split_rank(n, alpha) for n in SIZES] for alpha in ALPHAS],
        "pac_rank": [[pac_rank(n, *each) for n in SIZES] for each in product(ALPHAS, DELTAS)],
        "most_losses": [[most_losses(n, *each) for n in SIZES] for each in product(ALPHAS, DELTAS)],
        "needed_n": [[needed_n(alpha, delta) for alpha in ALPHAS] for delta in (None, *DELTAS)],
        "calibrate": [_kappa(seed) for seed in range(60)],
        "learn_then_test": [_last_point(seed) for seed in range(60)],
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
            misses_p_value(count, m, n, split_rank(n, alpha))
            for (m, count), n, alpha in product(counts, (99, 500), (0.05, 0.1))
        ],
        "e_values": [_watched(seed)[1] for seed in range(STREAMS)],
    }


def _kappa(seed: int) -> list[Any]:
    """Return the threshold of random critical values, some of them tied or infinite."""
    rng = np.random.default_rng([20261127, seed])
    values = np.round(rng.random(int(rng.integers(5, 300))), 2 + seed % 3)
    values[rng.random(values.size) < 0.02] = (-np.inf, np.inf)[seed % 2]
    found = calibrate(values, ALPHAS[seed % len(ALPHAS)], delta=(None, 0.1)[seed // 2 % 2])
    return [found.kappa.hex(), found.n, found.k, found.misses]


def _last_point(seed: int) -> list[Any]:
    """Return how far a path of random losses is certified: each threshold loses some questions more or fewer."""
    rng = np.random.default_rng([20261128, seed])
    n, points = int(rng.integers(30, 500)), 40
    level = np.sort(np.round(rng.random((n, 2)), 2), axis=1)[:, ::-1]
    loss = rng.random((n, 3)) < np.array([0.0, 0.02, 0.25])
    cost = rng.integers(1, 1000, size=(n, 2))
    served = Served(level, loss, np.ones((n, 3)), level, cost, np.full(n, -np.inf))
    path = [PathPoint(1 - point / points) for point in range(points + 1)]
    found = learn_then_test(served.along(path), alpha=ALPHAS[seed % len(ALPHAS)], delta=DELTAS[seed % len(DELTAS)])
    return [found.index, found.losses, found.cost_nano_usd]


def _watched(seed: int) -> tuple[int | None, float]:
    """Return after how many audits a monitor alarms, and its evidence after 200."""
    rng = np.random.default_rng([20261129, seed])
    alpha, level = ALPHAS[2 + seed % 5], (0.05, 0.02)[seed // 5 % 2]
    missed = rng.random(AUDITS) < np.minimum(0.9, alpha * TRUE_RATES[seed // 10])
    watch, evidence = Monitor.start(alpha=alpha, delta=0.1, level=level), 1.0
    for number, each in enumerate(missed.tolist(), 1):
        watch = watch.update(each)
        evidence = watch.e_value if number == 200 else evidence
    return watch.alarmed_after, evidence
