"""Invariants of the exact rollout: nested in kappa, monotone, and three ways to the same number."""

from __future__ import annotations

import math
import sys
from dataclasses import astuple
from pathlib import Path

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from unit.conformal.brute import Case, Outcome, Place, outcome, pack, weighted_hits

from cascade.conformal.arrays import ScoreArrays, StepArrays, levels, passed, rollout
from cascade.conformal.frontier import clairvoyant, frontier
from cascade.conformal.served import single
from cascade.conformal.split import covered_at, critical_kappa

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from fitted.opponents import depth_mixture

SCORE = st.floats(-2, 2) | st.sampled_from([math.inf, -math.inf, math.nan, 0.0, 0.5, -0.0])
KAPPA = st.floats(-2, 2) | st.sampled_from([math.inf, -math.inf, 0.0, 0.5])
WIDTH, HORIZON = 3, 5


@st.composite
def places(draw: st.DrawFn) -> tuple[Place, ...]:
    present = draw(st.sets(st.integers(0, WIDTH - 1)))
    return tuple(
        Place(a, draw(st.integers(0, 3)), draw(st.booleans()), draw(SCORE), draw(st.floats(0, 1) | st.just(math.nan)))
        for a in sorted(present)
    )


@st.composite
def questions(draw: st.DrawFn) -> Case:
    steps = draw(st.lists(places(), min_size=1, max_size=HORIZON))
    costs = draw(st.lists(st.integers(0, 10**12), min_size=len(steps), max_size=len(steps)))
    onward = draw(st.lists(SCORE, min_size=len(steps), max_size=len(steps)))
    return Case(tuple(steps), tuple(costs), tuple(onward), draw(st.booleans()))


LOG = st.lists(questions(), min_size=1, max_size=5)


def kept_at(steps: StepArrays, scores: ScoreArrays, kappa: float) -> np.ndarray:
    return passed(levels(steps, scores).leaf, kappa)


@given(LOG, KAPPA)
def test_the_arrays_are_the_trees(log: list[Case], kappa: float) -> None:
    steps, scores, _ = pack(log, HORIZON, WIDTH)
    found = rollout(steps, levels(steps, scores), kappa)
    got = zip(*(getattr(found, name).tolist() for name in Outcome._fields), strict=True)
    assert list(got) == [outcome(case, kappa) for case in log]


@given(LOG, KAPPA, KAPPA)
def test_what_is_kept_is_nested_in_kappa_and_everything_grows_as_it_falls(
    log: list[Case], one: float, other: float
) -> None:
    steps, scores, _ = pack(log, HORIZON, WIDTH)
    high, low = max(one, other), min(one, other)
    assert not (kept_at(steps, scores, high) & ~kept_at(steps, scores, low)).any()
    found = levels(steps, scores)
    for more, less in zip(astuple(rollout(steps, found, low)), astuple(rollout(steps, found, high)), strict=True):
        assert (more >= less).all()


@given(LOG, KAPPA)
def test_the_weight_of_right_draws_is_the_number_of_right_leaves(log: list[Case], kappa: float) -> None:
    steps, scores, _ = pack(log, HORIZON, WIDTH)
    assert rollout(steps, levels(steps, scores), kappa).correct_leaves.tolist() == [
        weighted_hits(case, kappa) for case in log
    ]


@given(LOG, KAPPA)
def test_critical_values_frontier_and_rollout_say_the_same(log: list[Case], kappa: float) -> None:
    steps, scores, _ = pack(log, HORIZON, WIDTH)
    found = levels(steps, scores)
    got, curve = rollout(steps, found, kappa), frontier(steps, found)
    assert covered_at(critical_kappa(steps, found), kappa).tolist() == got.covered.tolist()
    sums = [int(values.sum()) for values in (got.covered, got.in_set, got.cost, got.length, got.leaves, got.distinct)]
    assert astuple(curve.at(kappa))[1:] == tuple(total / steps.n for total in sums)


@given(LOG, KAPPA)
def test_a_walk_keeps_at_least_one_answer_where_its_last_step_has_one(log: list[Case], kappa: float) -> None:
    steps, scores, _ = pack(log, HORIZON, WIDTH)
    got = rollout(steps, levels(steps, scores), kappa)
    ends = np.array([case.complete and bool(case.steps[-1]) for case in log])
    assert (got.leaves[ends] >= 1).all()
    assert (got.length >= 1).all()
    assert (got.distinct <= got.leaves).all()
    assert (got.correct_leaves <= got.leaves).all()


@given(LOG, KAPPA)
def test_the_order_of_the_questions_does_not_matter(log: list[Case], kappa: float) -> None:
    steps, scores, confidence = pack(log, HORIZON, WIDTH)
    back = np.arange(steps.n)[::-1]
    one, other = levels(steps, scores), levels(steps.take(back), scores.take(back))
    for a, b in zip(astuple(rollout(steps, one, kappa)), astuple(rollout(steps.take(back), other, kappa)), strict=True):
        assert a[back].tolist() == b.tolist()
    assert (
        single(steps, one, confidence, kappa).right[back].tolist()
        == single(steps.take(back), other, confidence[back], kappa).right.tolist()
    )


@given(LOG, KAPPA)
def test_a_single_right_answer_is_in_the_set(log: list[Case], kappa: float) -> None:
    steps, scores, confidence = pack(log, HORIZON, WIDTH)
    found = levels(steps, scores)
    got = rollout(steps, found, kappa)
    one = single(steps, found, confidence, kappa)
    assert not (one.right & ~got.in_set).any()
    assert ((one.answer >= 0) == (got.leaves > 0)).all()


@given(LOG, st.floats(0, 1))
def test_matched_lies_between_its_neighbours_and_the_bounds_bound_it(log: list[Case], target: float) -> None:
    steps, scores, _ = pack([case._replace(complete=True) for case in log], HORIZON, WIDTH)
    curve = frontier(steps, levels(steps, scores))
    point, upper = curve.matched(target), curve.at_coverage(target)
    assert (point is None) == (upper is None) == (target * steps.n * (1 - 1e-12) > curve.covered[-1])
    assume(point is not None and upper is not None)
    assert curve.point(0).cost <= point.cost <= upper.cost * (1 + 1e-12)
    if target >= curve.coverage[0]:
        assert math.isclose(point.coverage, target, abs_tol=1e-9)
    assert clairvoyant(steps, 1 - target).cost <= upper.cost
    deepest = depth_mixture(steps)
    assert (np.diff(deepest.coverage) > 0).all()
    assert (np.diff(deepest.cost) >= 0).all()
