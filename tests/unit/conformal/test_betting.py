"""Evidence on means: e-values that are fair to the last digit, p-values that are those of the literature."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from cascade.conformal.monitor import (
    STAKES,
    mean_below_log_e_value,
    mean_below_p_value,
)
from cascade.errors import UsageError


def exact_e_value(values: list[Fraction], bound: Fraction, upper: Fraction) -> Fraction:
    """Return the mean over the stakes of the capital, in rational numbers."""
    capital = Fraction(0)
    for stake in STAKES:
        capital += math.prod((1 + Fraction(stake) * (bound - x) / (upper - bound) for x in values), start=Fraction(1))
    return capital / len(STAKES)


def test_the_logarithm_is_never_above_the_exact_value_and_hardly_below() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        upper = int(rng.integers(1, 1000))
        values = [int(x) for x in rng.integers(0, upper + 1, int(rng.integers(1, 40)))]
        bound = int(rng.integers(0, upper)) + 0.5 * int(rng.integers(2))
        exact = exact_e_value([Fraction(x) for x in values], Fraction(bound), Fraction(upper))
        got = mean_below_log_e_value(values, bound, upper)
        assert Fraction(math.exp(got) * (1 - 1e-15)) <= exact
        assert got == pytest.approx(math.log(exact), abs=1e-11)
        assert Fraction(mean_below_p_value(values, bound, upper)) >= min(1, 1 / exact)


def laws(seed: int, many: int) -> list[tuple[list[int], list[Fraction]]]:
    """Return laws on three values in 0..20, with their probabilities."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(many):
        weights = [int(w) for w in rng.integers(1, 10, 3)]
        drawn.append(([int(x) for x in rng.integers(0, 21, 3)], [Fraction(w, sum(weights)) for w in weights]))
    return drawn


@pytest.mark.parametrize("n", [1, 3, 5])
def test_under_the_hypothesis_it_is_1_on_average_at_the_bound_and_its_p_value_keeps_every_level(n: int) -> None:
    for values, chances in laws(seed=n, many=6):
        mean = sum((x * p for x, p in zip(values, chances, strict=True)), Fraction(0))
        if mean == 20:
            continue
        expected, p_values = 0.0, []
        for draw in itertools.product(range(3), repeat=n):
            chance = float(math.prod(chances[i] for i in draw))
            sample = [values[i] for i in draw]
            expected += chance * math.exp(mean_below_log_e_value(sample, float(mean), 20))
            p_values.append((mean_below_p_value(sample, float(mean), 20), chance))
        assert expected == pytest.approx(1, abs=1e-9)
        for level, _ in p_values:
            assert sum(chance for p, chance in p_values if p <= level) <= level + 1e-12 or level == 1


def test_a_lower_mean_is_never_less_evidence() -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, 100, 300)
    fewer = np.maximum(values - rng.integers(0, 30, 300), 0)
    for bound in (30, 50, 70, 99):
        assert mean_below_log_e_value(fewer, bound, 100) > mean_below_log_e_value(values, bound, 100)


def test_the_order_does_not_matter_to_the_last_bit() -> None:
    rng = np.random.default_rng(2)
    values = rng.random(500)
    once = mean_below_log_e_value(values, 0.55, 1.0)
    assert all(mean_below_log_e_value(rng.permutation(values), 0.55, 1.0) == once for _ in range(20))


def test_the_ends() -> None:
    assert mean_below_log_e_value([], 0.5, 1.0) == 0
    assert mean_below_p_value([], 0.5, 1.0) == 1
    assert mean_below_p_value([1.0], 1.5, 1.0) == 0  # nothing exceeds 1, so no mean reaches 1.5
    assert mean_below_p_value([1.0, 1.0], 1.0, 1.0) == 1
    assert mean_below_p_value([1.0, 0.999], 1.0, 1.0) == 0  # a mean of 1 would need every value to be 1
    assert mean_below_p_value([0.0] * 50, 0.0, 1.0) == 1
    assert mean_below_log_e_value([1.0] * 50, 0.5, 1.0) < -1.6  # the largest stake is lost, the small ones are left
    assert mean_below_p_value([0.0] * 5000, 0.5, 1.0) > 0
    assert mean_below_log_e_value([0.0] * 5000, 0.5, 1.0) == pytest.approx(5000 * math.log(2) - math.log(7))


def test_values_near_the_cap_lose_no_digits() -> None:
    values = [10**15 - 1] * 3  # the largest stake's factor is 1/(5·10¹⁴) each
    exact = exact_e_value([Fraction(10**15 - 1)] * 3, Fraction(10**15 // 2), Fraction(10**15))
    assert mean_below_log_e_value(values, 10**15 // 2, 10**15) == pytest.approx(math.log(exact), abs=1e-11)


@pytest.mark.parametrize(
    ("values", "bound", "upper", "said"),
    [
        ([0.5, math.nan], 0.5, 1.0, "every value must be a number in 0..1"),
        ([1.5], 0.5, 1.0, "every value"),
        ([-0.1], 0.5, 1.0, "every value"),
        ([[0.1]], 0.5, 1.0, "one dimension"),
        ([0.5], math.nan, 1.0, "bound"),
        ([0.5], 0.5, math.inf, "upper"),
        ([0.5], math.inf, 0.0, "bound must be a finite number, not inf; upper must be a finite number above 0, not 0"),
    ],
)
def test_what_cannot_be_is_refused(values: list[float], bound: float, upper: float, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mean_below_p_value(values, bound, upper)
