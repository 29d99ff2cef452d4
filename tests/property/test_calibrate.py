"""Invariants of calibration: the order of rows says nothing, more tolerance never lowers the threshold."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.conformal.brute import Case, pack

from cascade.conformal.arrays import ScoreArrays, levels, rollout
from cascade.conformal.binomial import lower_bound, lower_tail, most_losses, rejects, upper_bound
from cascade.conformal.split import calibrate, calibrate_segments, covered_at, critical_kappa, critical_values
from property.test_rollout_arrays import HORIZON, LOG, WIDTH

VALUE = st.floats(-1, 1) | st.sampled_from([0.0, 0.25, 0.5, math.inf, -math.inf, -0.0])
VALUES = st.lists(VALUE, max_size=60)
ALPHA = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)
DELTA = st.none() | st.integers(1, 999).map(lambda thousandths: thousandths / 1000)
GROUP = st.sampled_from(["a", "b", "c", None])


@given(VALUES, ALPHA, DELTA, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(values: list[float], alpha: float, delta: float | None, random) -> None:
    shuffled = values.copy()
    random.shuffle(shuffled)
    assert calibrate(shuffled, alpha, delta=delta) == calibrate(values, alpha, delta=delta)


@given(VALUES, ALPHA, DELTA)
def test_it_is_the_kth_of_the_sorted_values(values: list[float], alpha: float, delta: float | None) -> None:
    found = calibrate(values, alpha, delta=delta)
    assert found.n == len(values)
    assert found.kappa == (sorted(values)[found.k - 1] if found.k else -math.inf)
    covered = covered_at(np.array(values, dtype=float), found.kappa)
    assert found.misses == np.count_nonzero(~covered)
    assert found.misses <= max(found.k - 1, 0) or found.kappa == -math.inf
    if delta is None:
        assert Fraction(found.k, found.n + 1) <= Fraction(repr(alpha))
        assert found.k == found.n or Fraction(found.k + 1, found.n + 1) > Fraction(repr(alpha))


@given(VALUES, ALPHA, ALPHA, DELTA)
def test_more_tolerance_never_lowers_the_threshold(
    values: list[float], one: float, two: float, delta: float | None
) -> None:
    strict, loose = (calibrate(values, alpha, delta=delta) for alpha in sorted((one, two)))
    assert strict.kappa <= loose.kappa
    assert strict.k <= loose.k


@given(VALUES, ALPHA, st.integers(1, 999), st.integers(1, 999))
def test_less_confidence_never_lowers_it(values: list[float], alpha: float, one: int, two: int) -> None:
    sure, unsure = (calibrate(values, alpha, delta=delta / 1000) for delta in sorted((one, two)))
    assert sure.kappa <= unsure.kappa


@given(VALUES, VALUE, VALUE, ALPHA, DELTA)
def test_a_harder_question_never_raises_it(
    values: list[float], one: float, two: float, alpha: float, delta: float | None
) -> None:
    hard, easy = (calibrate([*values, value], alpha, delta=delta) for value in sorted((one, two)))
    assert hard.kappa <= easy.kappa


@given(LOG, ALPHA, ALPHA)
def test_the_sets_at_calibrated_thresholds_are_nested(log: list[Case], one: float, two: float) -> None:
    """From scores to what is kept: the stricter promise keeps all that the looser keeps, and costs as much or more."""
    steps, scores, _ = pack(log, HORIZON, WIDTH)
    found = levels(steps, scores)
    critical = critical_kappa(steps, found)
    assert np.array_equal(critical, critical_values(steps, ScoreArrays(*scores)))
    low, high = sorted((one, two))
    wide, narrow = (rollout(steps, found, calibrate(critical, alpha).kappa) for alpha in (low, high))
    for name in ("length", "cost", "leaves", "distinct", "correct_leaves", "covered"):
        assert (getattr(wide, name) >= getattr(narrow, name)).all()
    assert np.count_nonzero(~narrow.covered) == calibrate(critical, high).misses


@given(st.lists(st.tuples(GROUP, VALUE), max_size=60), ALPHA, DELTA, st.randoms(use_true_random=False))
def test_groups_are_calibrated_each_for_itself(
    rows: list[tuple[str | None, float]], alpha: float, delta: float | None, random
) -> None:
    found = calibrate_segments([value for _, value in rows], [group for group, _ in rows], alpha, delta=delta)
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert calibrate_segments([v for _, v in shuffled], [g for g, _ in shuffled], alpha, delta=delta) == found
    assert list(found) == sorted({group for group, _ in rows if group is not None})
    for name, served in found.items():
        assert served == calibrate([value for group, value in rows if group == name], alpha, delta=delta)


@given(st.integers(0, 400), st.integers(0, 400), ALPHA, st.integers(1, 999))
def test_tails_decisions_and_bounds_agree(losses: int, more: int, alpha: float, thousandths: int) -> None:
    n, delta = losses + more, thousandths / 1000
    most = most_losses(n, alpha, delta)
    assert rejects(losses, n, alpha, delta) == (most is not None and losses <= most)
    tail = lower_tail(losses, n, alpha)
    if abs(tail - delta) > 1e-9:
        assert rejects(losses, n, alpha, delta) == (tail <= delta)
        assert (upper_bound(losses, n, delta) <= alpha * (1 + 1e-9)) == (tail <= delta)
    assert lower_bound(losses, n, delta / 2) <= upper_bound(losses, n, delta / 2) or delta > 0.99
    assert 0 <= lower_bound(losses, n, delta) <= 1
