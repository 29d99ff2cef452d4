"""The law of the misses on fresh questions, against enumeration and scipy."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from cascade.conformal.binomial import miss_log_pmf, misses_p_value
from cascade.errors import UsageError

scipy_stats = pytest.importorskip("scipy.stats")


def enumerated(m: int, n: int, k: int) -> list[Fraction]:
    """Every order of n calibration and m fresh values without ties is as likely as any other."""
    counts = [0] * (m + 1)
    for calibration in combinations(range(n + m), n):
        kappa = calibration[k - 1]
        counts[kappa - (k - 1)] += 1  # so many fresh ones lie below it
    return [Fraction(count, math.comb(n + m, n)) for count in counts]


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (4, 5, 2), (3, 7, 7), (6, 6, 1), (7, 5, 3)])
def test_it_is_the_law_of_all_orders(m: int, n: int, k: int) -> None:
    exact = enumerated(m, n, k)
    assert np.exp(miss_log_pmf(m, n, k)) == pytest.approx([float(p) for p in exact], rel=1e-12)
    for misses in range(m + 1):
        tail = float(sum(exact[misses:]))
        assert tail <= misses_p_value(misses, m, n, k) <= tail * (1 + 1e-10)


@pytest.mark.parametrize(("m", "n", "k"), [(1_000, 200, 20), (50, 1_000, 100), (20_000, 2_000, 100)])
def test_it_agrees_with_scipy(m: int, n: int, k: int) -> None:
    mean = m * k / (n + 1)
    for misses in (1, int(mean), int(1.1 * mean) + 1):
        expected = scipy_stats.betabinom.sf(misses - 1, m, k, n + 1 - k)
        assert misses_p_value(misses, m, n, k) == pytest.approx(expected, rel=1e-6)


def test_what_keeps_everything_may_miss_nothing() -> None:
    assert misses_p_value(0, 10, 5, 0) == 1.0
    assert misses_p_value(1, 10, 5, 0) == 0.0


@pytest.mark.parametrize(("misses", "m", "n", "k"), [(-1, 3, 5, 1), (4, 3, 5, 1), (1, 3, 5, 6)])
def test_what_cannot_be_is_refused(misses: int, m: int, n: int, k: int) -> None:
    with pytest.raises(UsageError):
        misses_p_value(misses, m, n, k)
