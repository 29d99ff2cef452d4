"""Thresholds for means move the way they must: with alpha, the budget, the caps and delta, and not with the order."""

from __future__ import annotations

import math
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.conformal.brute import Case, pack

from cascade.conformal.arrays import Floats, Levels, StepFunctions, levels
from cascade.conformal.monitor import hoeffding_bentkus_p_value, mean_below_log_e_value, mean_below_p_value
from cascade.conformal.risk import calibrate_budget, calibrate_risk, cost_levels, loss_levels
from property.test_rollout_arrays import HORIZON, LOG, WIDTH

LEVEL = st.floats(-2, 2) | st.sampled_from([math.inf, -math.inf, 0.0, 0.5, -0.0])
SHARE = st.integers(1, 99).map(lambda percent: percent / 100)
DELTA = st.none() | SHARE
SIZE = 8


@st.composite
def step_functions(draw: st.DrawFn, sign: int) -> StepFunctions:
    n = draw(st.integers(1, 12))
    level = np.array(draw(st.lists(st.lists(LEVEL, min_size=2, max_size=2), min_size=n, max_size=n)))
    jump = np.array(draw(st.lists(st.lists(st.integers(0, SIZE // 2), min_size=2, max_size=2), min_size=n, max_size=n)))
    return StepFunctions(np.full(n, SIZE if sign < 0 else 0), level, sign * jump, SIZE if sign < 0 else 1)


LOSSES, COSTS = step_functions(sign=-1), step_functions(sign=1)


@given(LOSSES, SHARE, SHARE, DELTA)
def test_a_larger_alpha_keeps_no_more(losses: StepFunctions, one: float, other: float, delta: float | None) -> None:
    low, high = (calibrate_risk(losses, alpha, delta=delta) for alpha in sorted((one, other)))
    assert high.kappa >= low.kappa
    assert high.certified >= low.certified


@given(LOSSES, SHARE, st.floats(1, 5), st.floats(1, 5), DELTA)
def test_a_larger_bound_keeps_no_less(
    losses: StepFunctions, alpha: float, one: float, other: float, delta: float | None
) -> None:
    low, high = (calibrate_risk(losses, alpha, bound=bound, delta=delta).kappa for bound in sorted((one, other)))
    assert delta is not None or high <= low  # a p-value in another unit is another test


@given(LOSSES, SHARE, SHARE, SHARE)
def test_a_smaller_delta_keeps_no_less(losses: StepFunctions, alpha: float, one: float, other: float) -> None:
    low, high = (calibrate_risk(losses, alpha, delta=delta).kappa for delta in sorted((one, other)))
    assert low <= high


@given(COSTS, st.integers(0, 20), st.integers(0, 20), DELTA)
def test_a_larger_budget_keeps_no_less(costs: StepFunctions, one: int, other: int, delta: float | None) -> None:
    low, high = (calibrate_budget(costs, budget, SIZE, delta=delta).kappa for budget in sorted((one, other)))
    assert high <= low


@given(COSTS, st.integers(0, 20), st.integers(SIZE, 40), st.integers(SIZE, 40))
def test_a_larger_cap_keeps_no_more(costs: StepFunctions, budget: int, one: int, other: int) -> None:
    low, high = (calibrate_budget(costs, budget, most).kappa for most in sorted((one, other)))
    assert high >= low


@given(LOSSES, COSTS, SHARE, st.integers(0, 20), DELTA, st.randoms(use_true_random=False))
def test_the_order_of_the_questions_does_not_matter(
    losses: StepFunctions, costs: StepFunctions, alpha: float, budget: int, delta: float | None, rng: Random
) -> None:
    mixed = losses.take(np.array(rng.sample(range(losses.n), losses.n)))
    assert calibrate_risk(mixed, alpha, delta=delta) == calibrate_risk(losses, alpha, delta=delta)
    mixed = costs.take(np.array(rng.sample(range(costs.n), costs.n)))
    again = calibrate_budget(mixed, budget, SIZE, delta=delta)
    assert again == calibrate_budget(costs, budget, SIZE, delta=delta)


@given(LOSSES, SHARE, DELTA)
def test_what_is_certified_keeps_its_promise_on_the_calibration_questions(
    losses: StepFunctions, alpha: float, delta: float | None
) -> None:
    got = calibrate_risk(losses, alpha, delta=delta)
    assert got.loss == losses.at(got.kappa).mean() / SIZE
    assert not got.certified or got.loss < alpha


@given(LOG, st.data())
def test_losses_fall_and_costs_rise_as_kappa_falls_and_a_better_answer_is_no_loss(
    log: list[Case], data: st.DataObject
) -> None:
    steps, scores, _ = pack(log, HORIZON, WIDTH)
    found: Levels = levels(steps, scores)
    size = int(steps.answer.size)
    quality: Floats = np.array(data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)))
    quality = quality.reshape(steps.answer.shape)
    for relative in (False, True):
        losses = loss_levels(steps, found, quality, relative=relative)
        assert (losses.jump <= 0).all()
        assert (losses.at(-math.inf) >= 0).all()
    better = loss_levels(steps, found, np.minimum(quality * 1.5, 1.0))
    worse = loss_levels(steps, found, quality)
    costs = cost_levels(steps, found, 10**14)
    for kappa in (math.inf, 0.5, 0.0, -math.inf):
        assert (better.at(kappa) <= worse.at(kappa)).all()
        assert (costs.at(kappa) >= costs.at(math.inf)).all()


VALUES = st.lists(st.integers(0, 100), min_size=1, max_size=40)


@given(VALUES, st.integers(1, 99), st.integers(1, 99))
def test_evidence_grows_with_the_bound(values: list[int], one: int, other: int) -> None:
    low, high = (mean_below_log_e_value(values, bound, 100) for bound in sorted((one, other)))
    assert low <= high + 1e-12


@given(VALUES, st.integers(1, 99), st.randoms(use_true_random=False))
def test_evidence_knows_no_order_and_no_unit(values: list[int], bound: int, rng: Random) -> None:
    mixed = rng.sample(values, len(values))
    assert mean_below_p_value(mixed, bound, 100) == mean_below_p_value(values, bound, 100)
    doubled = mean_below_log_e_value([2 * value for value in values], 2 * bound, 200)
    assert doubled == mean_below_log_e_value(values, bound, 100)  # a power of two rounds nothing


@given(st.integers(1, 300), SHARE, SHARE, SHARE)
def test_hoeffding_bentkus_rises_with_the_mean_and_falls_with_alpha(n: int, mean: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert hoeffding_bentkus_p_value(mean, n, low) >= hoeffding_bentkus_p_value(mean, n, high) * (1 - 1e-12)
    assert hoeffding_bentkus_p_value(low, n, mean) <= hoeffding_bentkus_p_value(high, n, mean) * (1 + 1e-12)
