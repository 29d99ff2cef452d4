"""Split conformal calibration: exact ranks, valid under ties and infinities, exact coverage where there are none."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from cascade.conformal.split import allowed_misses, allowed_rank, split_kappa
from cascade.errors import UsageError

ALPHAS = [f"0.{hundredths:02d}" for hundredths in range(1, 100)] + ["0.001", "0.333", "1e-05", "0.0", "1.0"]


def test_the_rank_is_that_of_exact_fractions() -> None:
    checks = 0
    for alpha in ALPHAS:
        for n in (*range(301), 999, 9_999, 10**7, 10**12):
            wanted = math.floor(Fraction(alpha) * (n + 1))
            assert allowed_rank(n, float(alpha)) == wanted
            assert allowed_misses(n + 1, float(alpha)) == wanted
            checks += 1
    assert checks == 104 * 305


def test_floating_point_would_be_off_by_one() -> None:
    """The reason for the fractions: 0.29 · 100 is 28.999999999999996."""
    assert math.floor(0.29 * 100) == 28
    assert allowed_rank(99, 0.29) == 29
    assert allowed_rank(99, np.float64(0.29)) == 29  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan, math.inf])
def test_alpha_is_a_share(alpha: float) -> None:
    with pytest.raises(UsageError, match=r"alpha must lie in 0\.\.1"):
        allowed_rank(10, alpha)
    with pytest.raises(UsageError, match="alpha"):
        split_kappa(np.zeros(3), alpha)


def test_a_critical_value_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="not a number"):
        split_kappa(np.array([0.1, math.nan]), 0.5)


def test_the_threshold_is_the_kth_smallest() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        critical = rng.choice([0.0, 0.25, 0.5, math.inf, -math.inf, *rng.random(4)], int(rng.integers(0, 40)))
        alpha = float(rng.choice([0.0, 0.05, 0.1, 0.29, 0.5, 0.9, 1.0]))
        before = critical.copy()
        k = min(math.floor(Fraction(repr(alpha)) * (critical.size + 1)), critical.size)
        assert split_kappa(critical, alpha) == (sorted(critical.tolist())[k - 1] if k else -math.inf)
        assert np.array_equal(critical, before)


def test_too_few_questions_keep_everything() -> None:
    assert split_kappa(np.array([]), 0.1) == -math.inf
    assert split_kappa(np.full(8, 0.7), 0.1) == -math.inf
    assert split_kappa(np.full(9, 0.7), 0.1) == 0.7


def missed(critical: tuple[float, ...], alpha: float) -> Fraction:
    """Return how often a fresh question is missed, over every choice of which one of n + 1 is the fresh one."""
    turns = range(len(critical))
    misses = 0
    for fresh in turns:
        others = np.array([critical[i] for i in turns if i != fresh])
        misses += not critical[fresh] >= split_kappa(others, alpha)
    return Fraction(misses, len(critical))


@pytest.mark.parametrize("alpha", ["0.1", "0.2", "0.34", "0.5", "0.75"])
def test_exchangeable_questions_are_missed_with_probability_k_over_n_plus_1_or_less(alpha: str) -> None:
    """Exactly, by turning n + 1 values round: equality where all differ, less under ties and infinities."""
    for size in range(1, 8):
        bound = Fraction(allowed_rank(size - 1, float(alpha)), size)
        assert bound <= Fraction(alpha)
        assert missed(tuple(float(value) for value in range(size)), float(alpha)) == bound
        for values in itertools.product([0.0, 0.5, math.inf], repeat=min(size, 6)):
            assert missed(values, float(alpha)) <= Fraction(allowed_rank(len(values) - 1, float(alpha)), len(values))


def test_of_questions_that_no_threshold_covers_nothing_is_promised() -> None:
    """kappa itself is −∞ then. Where it is finite the bound holds with them too."""
    hopeless = (-math.inf,) * 5 + (0.5,) * 5
    assert split_kappa(np.array(hopeless), 0.1) == -math.inf
    rng = np.random.default_rng(1)
    for _ in range(200):
        values = rng.choice([-math.inf, 0.2, 0.4, 0.6], 10, p=[0.1, 0.3, 0.3, 0.3])
        misses = 0
        for fresh in range(10):
            kappa = split_kappa(np.delete(values, fresh), 0.3)
            misses += bool(kappa > -math.inf and not values[fresh] >= kappa)
        assert misses <= 3


def test_coverage_over_20000_calibrations_is_1_minus_k_over_n_plus_1() -> None:
    rng = np.random.default_rng(2)
    for n, alpha in ((19, 0.1), (50, 0.1), (200, 0.05)):
        draws = rng.random((20_000, n + 1))
        kappas = np.array([split_kappa(row[:n], alpha) for row in draws])
        exact = 1 - allowed_rank(n, alpha) / (n + 1)
        sigma = math.sqrt(exact * (1 - exact) / 20_000)
        assert abs((draws[:, n] >= kappas).mean() - exact) < 4 * sigma
        assert exact >= 1 - alpha
