"""Step functions and their exact sum, against adding them up one by one."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import each

from cascade.conformal.arrays import StepFunctions
from cascade.errors import UsageError

INF = math.inf


def drawn(seed: int, n: int, width: int) -> StepFunctions:
    rng = np.random.default_rng(seed)
    pool = np.array([INF, -INF, 0.0, -0.0, 0.5, 1.0, -1.5, 1e300, -1e300, 5e-324])
    level = np.where(rng.random((n, width)) < 0.5, rng.choice(pool, (n, width)), rng.normal(size=(n, width)).round(1))
    return StepFunctions(rng.integers(-9, 10, n), level, rng.integers(-9, 10, (n, width)))


def one_by_one(functions: StepFunctions, q: int, kappa: float) -> int:
    jumps = zip(functions.level[q].tolist(), functions.jump[q].tolist(), strict=True)
    return int(functions.start[q]) + sum(jump for level, jump in jumps if level >= kappa and level > -INF)


@each("seed", range(20))
def test_sum_and_values_are_those_of_adding_up(seed: int) -> None:
    functions = drawn(seed, n=seed % 7, width=1 + seed % 4)
    curve = functions.curve()
    levels = functions.level[np.isfinite(functions.level)]
    for kappa in [*levels, *np.nextafter(levels, INF), *np.nextafter(levels, -INF), INF, -INF, 0.3]:
        wanted = [one_by_one(functions, q, float(kappa)) for q in range(functions.n)]
        assert functions.at(float(kappa)).tolist() == wanted
        assert curve.sum_at(float(kappa)) == sum(wanted)
        assert curve.mean_at(float(kappa)) == (sum(wanted) / len(wanted) if wanted else None)
    assert curve.kappa[0] == INF
    assert (np.diff(curve.kappa) < 0).all()
    assert (functions.n, curve.n) == (seed % 7, seed % 7)


def test_one_threshold_a_question_and_a_choice_of_questions() -> None:
    functions = drawn(3, n=5, width=3)
    kappas = np.array([INF, -INF, 0.0, 0.5, -1.5])
    assert functions.at(kappas).tolist() == [one_by_one(functions, q, float(kappas[q])) for q in range(5)]
    rows = np.array([4, 0, 0])
    assert functions.take(rows).at(0.0).tolist() == functions.at(0.0)[rows].tolist()


def test_a_sum_in_units_is_exact() -> None:
    third = StepFunctions(np.full(3, 1 << 30), np.full((3, 1), 0.5), np.full((3, 1), -(1 << 29)), units=1 << 30)
    assert third.curve().sum_at(0.5) == Fraction(3, 2)
    assert third.take(np.array([0])).curve().mean_at(1.0) == 1.0


def test_many_thresholds_are_looked_up_at_once() -> None:
    curve = drawn(3, 6, 3).curve()
    kappas = np.array([[INF, -INF, 0.5], [-0.0, 0.05, 1e300]])
    each = [int(curve.index(kappa)) for kappa in kappas.ravel().tolist()]
    assert curve.index(kappas).tolist() == np.reshape(each, kappas.shape).tolist()
    assert [float(curve.sum_at(kappa)) for kappa in kappas.ravel().tolist()] == curve.total[each].tolist()
    with pytest.raises(UsageError, match="kappa is not a number"):
        curve.index(np.array([0.0, math.nan]))


def test_what_does_not_fit_is_refused() -> None:
    ones = np.ones((2, 1), dtype=np.int64)
    with pytest.raises(UsageError, match=r"shapes \(n,\), \(n, J\) and \(n, J\)"):
        StepFunctions(ones[:1, 0], ones.astype(float), ones)
    with pytest.raises(UsageError, match="not a number"):
        StepFunctions(ones[:, 0], np.array([[0.1], [math.nan]]), ones)
    with pytest.raises(UsageError, match="64 bits"):
        StepFunctions(np.full(2, 2**62), ones.astype(float), ones)
    with pytest.raises(UsageError, match="kappa is not a number"):
        drawn(0, 2, 2).curve().index(math.nan)
