"""Exact binomial tails: against integers for small n, against scipy for large, and exact where levels are met exactly."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import scipy  # its parts are imported where they are used: that takes long
from cases import each

from cascade.conformal import binomial
from cascade.conformal.binomial import (
    lower_bound,
    lower_tail,
    miss_log_pmf,
    misses_p_value,
    most_losses,
    upper_bound,
)
from cascade.conformal.certify import spent
from cascade.conformal.monitor import is_drawn, uniform
from cascade.conformal.promise import Promise
from cascade.errors import UsageError

SHARES = ["0.001", "0.05", "0.1", "0.25", "0.3333333333333333", "0.5", "0.77", "0.9", "0.999"]


# n, alpha, (most losses + 1) at delta 0.05 and at 0.1; 0 = not even no loss proves it
def rejects(losses: int, n: int, alpha: float, delta: float) -> bool:
    most = most_losses(n, alpha, delta)
    return most is not None and losses <= most


def tail(count: int, n: int, p: Fraction) -> Fraction:
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(min(count, n) + 1)), Fraction(0))


@pytest.mark.parametrize("written", [*SHARES, "0.0", "1.0"])
def test_the_tail_is_that_of_fractions_rounded_up(written):
    for n in (0, 1, 2, 5, 12, 40):
        for count in range(-1, n + 2):
            exact, rounded = tail(count, n, Fraction(written)), lower_tail(count, n, float(written))
            assert exact <= Fraction(rounded) <= exact * (1 + Fraction(1, 10**9)) + Fraction(1, 10**290)


@pytest.mark.parametrize("written", SHARES)
def test_the_bounds_in_floating_point_hold_the_truth(written):
    p = Fraction(written)
    for n in (7, 60, 300):
        term, total = (1 - p) ** n, Fraction(0)
        for count in range(n):
            total += term
            bounds = binomial._tail(count, n, p)
            assert Fraction(bounds.lowest) <= total <= Fraction(bounds.highest)
            assert bounds.highest - bounds.lowest <= 1e-11 * bounds.highest + 1e-290
            term = term * (p * (n - count)) / ((1 - p) * (count + 1))


def test_it_decides_as_fractions_do():
    checks = 0
    for n in range(13):
        for alpha in (*SHARES, "0.0", "1.0"):
            sums = [tail(count, n, Fraction(alpha)) for count in range(n + 1)]
            for delta in ("0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "0.9", "0.999"):
                wanted = [total <= Fraction(delta) for total in sums]
                assert most_losses(n, float(alpha), float(delta)) == (sum(wanted) - 1 if any(wanted) else None)
                checks += 1
    assert checks == 13 * 11 * 8


def test_a_level_that_is_met_exactly_is_met():
    """Floating point cannot see it: the bounds lie on both sides of the level."""
    assert rejects(0, 1, 0.9, 0.1)
    assert rejects(0, 3, 0.9, 0.001)
    assert not rejects(0, 3, 0.9, 0.000999)
    assert rejects(0, 10, 0.5, 0.0009765625)
    assert not rejects(0, 10, 0.5, 0.0009765624999)
    assert rejects(5_000, 10_001, 0.5, 0.5)
    assert most_losses(10_001, 0.5, 0.5) == 5_000
    met = binomial._tail(5_000, 10_001, Fraction(1, 2))
    assert met.lowest < 0.5 < met.highest


def test_what_cannot_be_decided_is_not_proven():
    """Pr[Bin(2m + 1, ½) ≤ m] is ½ exactly; in integers it would take 10¹⁵ bit operations here."""
    assert not rejects(5_000_000, 10_000_001, 0.5, 0.5)
    assert rejects(4_999_999, 10_000_001, 0.5, 0.5)
    assert most_losses(10_000_001, 0.5, 0.5) == 4_999_999


@pytest.mark.parametrize("n", [30, 1_000, 123_457, 10**6, 10**8])
def test_scipy_agrees(n):
    rng = np.random.default_rng(n)
    for p in (1e-7, 0.001, 0.05, 0.3, 0.5, 0.95):
        sd = math.sqrt(n * p * (1 - p))
        counts = np.unique(np.clip((n * p + sd * rng.uniform(-6, 6, 12)).astype(int), 0, n))
        tails = [lower_tail(int(count), n, p) for count in counts]
        np.testing.assert_allclose(tails, scipy.stats.binom.cdf(counts, n, p), rtol=1e-7)
    for alpha, delta in ((0.05, 0.1), (0.1, 0.01), (0.2, 0.05)):
        most = most_losses(n, alpha, delta)
        assert (-1 if most is None else most) == scipy.stats.binom.ppf(delta, n, alpha) - 1


def test_far_out_it_is_still_right():
    """Relative to the truth, which underflows to nothing elsewhere: (1 − p)ⁿ in logarithms."""
    for n, p in ((600, 0.5), (2_300, 0.1), (6_000, 0.1)):
        assert math.log10(lower_tail(0, n, p)) == pytest.approx(n * math.log10(1 - p), rel=1e-12)
        assert rejects(0, n, p, 1e-100)
    assert lower_tail(0, 10**6, 0.9) < 1e-280
    assert lower_tail(0, 10**6, 0.9) > 0


def test_the_tail_rises_with_the_count_and_falls_with_p():
    for n in (1, 9, 150):
        for p in (0.01, 0.3, 0.6):
            tails = [lower_tail(count, n, p) for count in range(n + 1)]
            assert tails == sorted(tails)
            assert tails[-1] == 1
        assert lower_tail(0, n, 0.3) > lower_tail(0, n, 0.30001)


@pytest.mark.parametrize("n", [1, 2, 17, 200, 5_000, 10**6])
def test_confidence_bounds_are_those_of_the_beta_law(n):
    for losses in sorted({0, 1, n // 10, n // 2, n - 1, n} & set(range(n + 1))):
        for delta in (0.01, 0.05, 0.1, 0.5):
            upper, lower = upper_bound(losses, n, delta), lower_bound(losses, n, delta)
            truth = scipy.stats.beta.ppf(1 - delta, losses + 1, n - losses) if losses < n else 1.0
            assert truth * (1 - 1e-10) <= upper <= truth * (1 + 1e-8)
            truth = scipy.stats.beta.ppf(delta, losses, n - losses + 1) if losses else 0.0
            assert truth - 1e-8 <= lower <= truth * (1 + 1e-10)
            assert losses == n or tail_at_most(losses, n, upper, delta)


def tail_at_most(losses: int, n: int, p: float, delta: float) -> bool:
    """Say whether p is provably excluded by so few losses: the very promise of an upper bound."""
    return binomial._float_tail(binomial._law(n, Fraction(p)), losses).highest <= Fraction(repr(delta))


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.4])
def test_a_bound_misses_the_rate_with_probability_at_most_delta(delta):
    n = 12
    uppers = [upper_bound(losses, n, delta) for losses in range(n + 1)]
    lowers = [lower_bound(losses, n, delta) for losses in range(n + 1)]
    for percent in range(1, 100):
        p = Fraction(percent, 100)
        weights = [math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)]
        assert sum(w for w, upper in zip(weights, uppers, strict=True) if upper < p) <= Fraction(repr(delta))
        assert sum(w for w, lower in zip(weights, lowers, strict=True) if lower > p) <= Fraction(repr(delta))


@each(
    "call",
    [
        lambda: most_losses(-1, 0.1, 0.1),
        lambda: most_losses(10**9 + 1, 0.1, 0.1),
        lambda: upper_bound(-1, 5, 0.1),
        lambda: lower_bound(6, 5, 0.1),
        *[lambda d=d: most_losses(5, 0.1, d) for d in (0.0, 1.0, -1.0, math.nan)],
        *[lambda d=d: upper_bound(1, 5, d) for d in (0.0, 1.0, -1.0, math.nan)],
        *[lambda a=a: most_losses(5, a, 0.1) for a in (-0.1, 1.1, math.nan, math.inf)],
        *[lambda a=a: lower_tail(0, 5, a) for a in (-0.1, 1.1, math.nan, math.inf)],
    ],
)
def test_what_is_out_of_range_is_refused(call):
    with pytest.raises(UsageError):
        call()


def test_numpy_numbers_are_numbers():
    assert most_losses(np.int64(200), np.float64(0.1), np.float64(0.1)) == 14  # type: ignore[arg-type]
    assert type(most_losses(np.int64(201), np.float64(0.1), np.float64(0.1))) is int  # type: ignore[arg-type]
    assert lower_tail(np.int64(1), np.int64(10), np.float64(0.1)) == lower_tail(1, 10, 0.1)  # type: ignore[arg-type]


# --- what a test leaves of delta


@pytest.mark.parametrize("alpha", ["0.02", "0.05", "0.1"])
@pytest.mark.parametrize("delta", ["0.05", "0.1"])
def test_what_a_test_spends_is_its_probability_and_never_more_than_delta(alpha, delta):
    promise = Promise("regret", float(alpha), 0.9)
    for n in (1, 20, 44, 45, 60, 100, 230, 500):
        most = most_losses(n, float(alpha), float(delta))
        exact = tail(-1 if most is None else most, n, Fraction(alpha))
        assert exact <= Fraction(spent(n, promise, float(delta))) <= exact * (1 + Fraction(1, 10**9))
        assert exact <= Fraction(delta)


def test_two_tests_are_wrong_together_no_more_often_than_delta():
    """Two policies whose risk is alpha, and whose losses fall on different questions: about the worst case.

    Either is certified wrongly in delta of the calibrations at most; were each tested at delta, in nearly twice as many.
    """
    n, alpha, delta, many = 210, 0.05, 0.1, 40_000
    drawn = np.random.default_rng(7).random((many, n))
    first, second = (drawn < alpha).sum(axis=1), (drawn > 1 - alpha).sum(axis=1)
    rest = delta - spent(n, Promise("regret", alpha, 0.9), delta)
    at_delta, at_rest = most_losses(n, alpha, delta), most_losses(n, alpha, rest)
    broken = np.mean((first <= at_delta) | (second <= at_rest))
    assert broken <= delta
    assert np.mean((first <= at_delta) | (second <= at_delta)) > delta


# --- the law of the misses on fresh questions, against enumeration and scipy


def enumerated(m: int, n: int, k: int) -> list[Fraction]:
    """Every order of n calibration and m fresh values without ties is as likely as any other."""
    counts = [0] * (m + 1)
    for calibration in combinations(range(n + m), n):
        kappa = calibration[k - 1]
        counts[kappa - (k - 1)] += 1  # so many fresh ones lie below it
    return [Fraction(count, math.comb(n + m, n)) for count in counts]


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (4, 5, 2), (3, 7, 7), (6, 6, 1), (7, 5, 3)])
def test_it_is_the_law_of_all_orders(m, n, k):
    exact = enumerated(m, n, k)
    assert np.exp(miss_log_pmf(m, n, k)) == pytest.approx([float(p) for p in exact], rel=1e-12)
    for misses in range(m + 1):
        tail = float(sum(exact[misses:]))
        assert tail <= misses_p_value(misses, m, n, k) <= tail * (1 + 1e-10)


@pytest.mark.parametrize(("m", "n", "k"), [(1_000, 200, 20), (50, 1_000, 100), (20_000, 2_000, 100)])
def test_it_agrees_with_scipy(m, n, k):
    mean = m * k / (n + 1)
    for misses in (1, int(mean), int(1.1 * mean) + 1):
        expected = scipy.stats.betabinom.sf(misses - 1, m, k, n + 1 - k)
        assert misses_p_value(misses, m, n, k) == pytest.approx(expected, rel=1e-6)


def test_what_keeps_everything_may_miss_nothing():
    assert misses_p_value(0, 10, 5, 0) == 1.0
    assert misses_p_value(1, 10, 5, 0) == 0.0


@pytest.mark.parametrize(("misses", "m", "n", "k"), [(-1, 3, 5, 1), (4, 3, 5, 1), (1, 3, 5, 6)])
def test_what_cannot_be_is_refused(misses, m, n, k):
    with pytest.raises(UsageError):
        misses_p_value(misses, m, n, k)


@pytest.mark.parametrize("written", SHARES)
def test_the_comparison_in_integers_is_that_of_fractions(written):
    p = Fraction(written)
    for n in (1, 2, 13, 60):
        for count in range(n):
            exact = tail(count, n, p)
            assert binomial._exact_at_most(count, n, p, exact)
            assert not binomial._exact_at_most(count, n, p, exact * (1 - Fraction(1, 10**12)))


@pytest.mark.parametrize("rate", [0.03, 0.5, 0.9])
def test_draws_have_their_rate_and_no_pattern(rate):
    draws = [is_drawn("key", rate, str(number)) for number in range(20_000)]
    assert abs(sum(draws) / 20_000 - rate) < 4 * math.sqrt(rate * (1 - rate) / 20_000)
    both = sum(draw and other for draw, other in itertools.pairwise(draws)) / 19_999
    assert abs(both - rate**2) < 4 * math.sqrt(rate**2 / 20_000)


def test_what_a_lower_rate_draws_a_higher_one_draws_too_and_another_key_draws_others():
    few, many = ({n for n in range(2_000) if is_drawn("key", rate, str(n))} for rate in (0.1, 0.4))
    assert few < many
    assert few != {n for n in range(2_000) if is_drawn(b"other", 0.1, str(n))}


def test_names_are_kept_apart_and_a_key_is_its_bytes():
    assert uniform("key", "ab", "c") != uniform("key", "a", "bc")
    assert uniform("key", "a\ud800") == uniform(b"key", "a\ud800")
