"""Intervals over splits: Student's t as published tables have it, and the correction for splits that overlap."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each

from cascade.errors import UsageError
from cascade.evaluation.splits import Interval, corrected_interval, student_t_quantile

# Critical values of Student's t, one-sided, as statistical tables print them: three decimals.
TABLE = {
    1: (3.078, 6.314, 12.706, 31.821, 63.657, 318.309),
    2: (1.886, 2.920, 4.303, 6.965, 9.925, 22.327),
    3: (1.638, 2.353, 3.182, 4.541, 5.841, 10.215),
    4: (1.533, 2.132, 2.776, 3.747, 4.604, 7.173),
    5: (1.476, 2.015, 2.571, 3.365, 4.032, 5.893),
    9: (1.383, 1.833, 2.262, 2.821, 3.250, 4.297),
    10: (1.372, 1.812, 2.228, 2.764, 3.169, 4.144),
    19: (1.328, 1.729, 2.093, 2.539, 2.861, 3.579),
    20: (1.325, 1.725, 2.086, 2.528, 2.845, 3.552),
    30: (1.310, 1.697, 2.042, 2.457, 2.750, 3.385),
    50: (1.299, 1.676, 2.009, 2.403, 2.678, 3.261),
    100: (1.290, 1.660, 1.984, 2.364, 2.626, 3.174),
}
LEVELS = (0.90, 0.95, 0.975, 0.99, 0.995, 0.999)


@each("df", sorted(TABLE))
def test_quantiles_are_those_of_the_published_table(df: int) -> None:
    got = [student_t_quantile(p, df) for p in LEVELS]
    assert got == pytest.approx(TABLE[df], abs=5.1e-4, rel=0)


def test_two_quantiles_are_known_in_closed_form() -> None:
    for p in (0.5, 0.6, 0.9, 0.99, 0.9999):
        assert student_t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9, abs=1e-10)
        a = 4 * p * (1 - p)
        assert student_t_quantile(p, 2) == pytest.approx(2 * (p - 0.5) * math.sqrt(2 / a), rel=1e-9, abs=1e-10)


def test_quantiles_rise_with_p_fall_with_df_and_end_at_the_normal() -> None:
    levels = [0.5, 0.51, 0.6, 0.75, 0.9, 0.975, 0.999, 0.999999]
    for df in (1, 2, 3, 7, 40):
        values = [student_t_quantile(p, df) for p in levels]
        assert all(a < b for a, b in itertools.pairwise(values))
    falling = [student_t_quantile(0.975, df) for df in range(1, 60)]
    assert all(a > b for a, b in itertools.pairwise(falling))
    assert student_t_quantile(0.975, 5_000) == pytest.approx(1.959964, abs=6e-4)


@pytest.mark.parametrize(("p", "df"), [(0.4, 5), (1.0, 5), (1.5, 5), (math.nan, 5), (0.9, 0)])
def test_what_has_no_quantile_is_refused(p: float, df: int) -> None:
    with pytest.raises(UsageError, match="quantile"):
        student_t_quantile(p, df)


def test_the_interval_is_nadeau_and_bengios() -> None:
    """Worked by hand: mean 2, variance 2.5 of 5 values, factor 1/5 + 20/80, t(.975, 4) = 2.776445."""
    found = corrected_interval([0.0, 1.0, 2.0, 3.0, 4.0], n_train=80, n_test=20)
    half = 2.7764451 * math.sqrt(2.5 * (0.2 + 0.25))
    assert found == pytest.approx((2.0, 2 - half, 2 + half), rel=1e-7)
    assert not found.excludes_zero


def test_an_interval_is_wider_for_fewer_splits_more_overlap_and_more_confidence() -> None:
    values = np.random.default_rng(0).normal(size=20).tolist()

    def width(count: int = 20, n_test: int = 20, confidence: float = 0.95) -> float:
        found = corrected_interval(values[:count] * (20 // count), n_train=80, n_test=n_test, confidence=confidence)
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(confidence=0.8) < width() < width(confidence=0.99)
    assert width(n_test=5) < width() < width(n_test=40)
    few = corrected_interval([0.0, 1.0], n_train=80, n_test=20)
    many = corrected_interval([0.0, 1.0] * 10, n_train=80, n_test=20)
    assert (few.high or 0) - (few.low or 0) > 5 * ((many.high or 0) - (many.low or 0))


def test_one_split_has_a_mean_and_no_interval() -> None:
    assert corrected_interval([0.25], n_train=80, n_test=20) == Interval(0.25, None, None)
    assert not Interval(0.25, None, None).excludes_zero


def test_equal_values_are_certain_and_zero_is_excluded_only_by_both_bounds() -> None:
    found = corrected_interval([0.1, 0.1, 0.1], n_train=80, n_test=20)
    assert found == pytest.approx((0.1, 0.1, 0.1))
    assert found.excludes_zero
    assert Interval(-1.0, -2.0, -0.1).excludes_zero
    assert not Interval(0.0, 0.0, 0.0).excludes_zero
    assert not Interval(0.1, -0.1, 0.3).excludes_zero


def test_the_intervals_of_a_repeated_split_hold_their_confidence() -> None:
    """A null difference, 20 overlapping splits of 100 values: 95 % intervals exclude 0 seldom, the naive ones often."""
    rng = np.random.default_rng(3)
    wrong = naive_wrong = 0
    trials = 400
    for _ in range(trials):
        data = rng.normal(size=100)
        splits = [float(data[rng.permutation(100)[:20]].mean()) for _ in range(20)]
        found = corrected_interval(splits, n_train=80, n_test=20)
        wrong += found.excludes_zero
        naive = student_t_quantile(0.975, 19) * float(np.std(splits, ddof=1)) / math.sqrt(20)
        naive_wrong += abs(found.mean) > naive
    assert wrong / trials < 0.08
    assert naive_wrong / trials > 0.2
