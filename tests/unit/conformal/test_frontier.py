"""The frontier by sorting is the rollout at every threshold, and its bounds bound it."""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple

import numpy as np
import pytest

from cascade.conformal.arrays import ScoreArrays, StepArrays, levels, rollout
from cascade.conformal.frontier import Frontier, Point, clairvoyant, frontier
from cascade.conformal.split import covered_at, critical_kappa
from cascade.errors import UsageError
from unit.conformal.brute import Case, Place, batches, outcome, pack

NAMES = ("covered", "found", "cost_nano_usd", "steps", "kept", "different")


def ladder(*wins: int | None, cost: tuple[int, ...] = (10, 20, 30), next_score: float = 0.5) -> StepArrays:
    """Return questions that are first right at a step, or never, with one candidate a step."""
    right = np.array([[t + 1 == win for t in range(len(cost))] for win in wins])[:, :, None]
    n, horizon = len(wins), len(cost)
    return StepArrays(
        answer=np.tile(np.arange(horizon)[:, None], (n, 1, 1)),
        correct=right,
        cost=np.tile(np.array(cost), (n, 1)),
        steps=np.full(n, horizon),
        complete=np.ones(n, dtype=np.bool_),
    )


def of_points(covered: list[int], cost: list[int], n: int = 10) -> Frontier:
    """Return a frontier with these sums; the other curves rise by one a point."""
    rising = np.arange(len(covered))
    kappa = np.append(np.inf, -np.arange(1.0, len(covered)))
    return Frontier(n, kappa, np.array(covered), np.array(covered), np.array(cost), rising, rising, rising)


def test_it_is_the_mean_of_the_trees_at_every_threshold() -> None:
    checks = 0
    for cases, horizon, width in batches(seed=31, per_shape=20):
        steps, scores, _ = pack(cases, horizon, width)
        curve = frontier(steps, levels(steps, scores))
        own = np.unique(np.concatenate([scores.candidates.ravel(), scores.next.ravel()]))
        own = own[np.isfinite(own)]
        for kappa in [*own.tolist(), *np.nextafter(own, np.inf).tolist(), math.inf, -math.inf]:
            trees = [outcome(case, kappa) for case in cases]
            sums = [
                sum(getattr(tree, name) for tree in trees)
                for name in ("covered", "in_set", "cost", "length", "leaves", "distinct")
            ]
            assert astuple(curve.at(kappa))[1:] == tuple(total / len(cases) for total in sums)
            checks += 1
    assert checks > 1_500


def test_it_agrees_with_the_rollout_on_a_dense_grid() -> None:
    rng = np.random.default_rng(5)
    n, horizon, width = 400, 4, 2
    steps = StepArrays(
        rng.integers(-1, 4, (n, horizon, width)),
        np.zeros((n, horizon, width), dtype=np.bool_),
        rng.integers(0, 10**9, (n, horizon)),
        rng.integers(1, horizon + 1, n),
        rng.random(n) < 0.8,
    )
    steps.correct[:] = steps.answer == rng.integers(0, 6, n)[:, None, None]
    # Scores on multiples of 1/64 tie with each other and with the grid.
    found = levels(steps, ScoreArrays(rng.integers(0, 64, (n, horizon, width)) / 64, rng.random((n, horizon))))
    curve, critical = frontier(steps, found), critical_kappa(steps, found)
    grid = np.linspace(-0.1, 1.1, 1_921)  # a step of 1/1600
    points = curve.index(grid)
    for kappa, k in zip(grid.tolist(), points.tolist(), strict=True):
        got = rollout(steps, found, kappa)
        assert curve.covered[k] == np.count_nonzero(got.covered) == np.count_nonzero(covered_at(critical, kappa))
        assert curve.found[k] == np.count_nonzero(got.in_set)
        sums = (got.cost.sum(), got.length.sum(), got.leaves.sum(), got.distinct.sum())
        assert (curve.cost_nano_usd[k], curve.steps[k], curve.kept[k], curve.different[k]) == sums


def test_points_fall_in_kappa_from_infinity_and_nothing_falls_with_them() -> None:
    for cases, horizon, width in batches(seed=32, per_shape=60):
        steps, scores, _ = pack(cases, horizon, width)
        curve = frontier(steps, levels(steps, scores))
        assert curve.kappa[0] == math.inf
        assert (np.diff(curve.kappa) < 0).all()
        for name in NAMES:
            assert (np.diff(getattr(curve, name)) >= 0).all()
        assert np.isfinite(curve.kappa[1:]).all()


@pytest.mark.parametrize("decimals", [1, 3, 17])
def test_sorting_in_blocks_changes_nothing(decimals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one decimal most levels are ties, which must not be torn apart; with 17 there are none."""
    rng = np.random.default_rng(7)
    steps = ladder(*rng.integers(1, 5, 500).tolist())
    draws = ScoreArrays(rng.random((500, 3, 1)).round(decimals), rng.random((500, 3)).round(decimals))
    found = levels(steps, draws)
    whole = frontier(steps, found)
    for block, few in ((1, 1), (8, 2), (100, 2)):
        monkeypatch.setattr("cascade.conformal.frontier._BLOCK", block)
        monkeypatch.setattr("cascade.conformal.frontier._FEW", few)
        split = frontier(steps, found)
        assert all(np.array_equal(a, b) for a, b in zip(astuple(whole), astuple(split), strict=True))


def test_a_threshold_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="kappa is not a number"):
        of_points([1, 2], [1, 2]).at(math.nan)


def test_no_questions_have_no_frontier() -> None:
    steps, scores, _ = pack([], 2, 2)
    for call in (
        lambda: frontier(steps, levels(steps, scores)),
        lambda: clairvoyant(steps, 0.1),
    ):
        with pytest.raises(UsageError, match="no question"):
            call()


def test_at_coverage_is_the_cheapest_point_that_reaches_it() -> None:
    curve = of_points([5, 5, 7, 7, 9], [100, 110, 120, 130, 140])
    assert [curve.at_coverage(target).cost for target in (0.0, 0.5, 0.6, 0.7, 0.9)] == [10, 10, 12, 12, 14]
    assert curve.at_coverage(0.91) is None


def test_a_targets_rounding_does_not_cost_a_question() -> None:
    curve = of_points([0, 180, 181], [0, 1, 2], n=200)
    assert curve.at_coverage(1 - 0.1).coverage == 0.9
    # 3 * 0.3 is 0.8999999999999999 and 1.1 - 0.2 is 0.9000000000000001
    assert [curve.at_coverage(target).coverage for target in (3 * 0.3, 1.1 - 0.2)] == [0.9, 0.9]
    assert curve.at_coverage(0.9001).coverage == 181 / 200


def test_matched_mixes_the_cheapest_thresholds_of_the_two_neighbouring_coverages() -> None:
    curve = of_points([5, 7, 7, 9], [100, 200, 260, 400])
    point = curve.matched(0.8)
    assert (point.coverage, point.in_set, point.cost) == pytest.approx((0.8, 0.8, 30))
    assert (point.length, point.kappa) == (pytest.approx(0.2), -3)
    assert curve.matched(0.7).cost == 20
    assert curve.matched(0.9).cost == 40


def test_matched_is_continuous_and_rises() -> None:
    cases, horizon, width = batches(seed=33, per_shape=60)[-1]
    steps, scores, _ = pack(cases, horizon, width)
    curve = frontier(steps, levels(steps, scores))
    targets = np.linspace(curve.coverage[0], curve.coverage[-1], 2_001)
    costs = np.array([curve.matched(target).cost for target in targets])
    assert (np.diff(costs) >= -1e-6).all()
    steepest = max(
        (b - a) / (y - x)
        for (x, a), (y, b) in itertools.pairwise(
            (curve.coverage[k], curve.cost[k]) for k in np.unique(curve.covered, return_index=True)[1]
        )
    )
    assert np.diff(costs).max() <= steepest * np.diff(targets).max() * 1.001


def test_matched_below_the_first_point_is_the_floor_and_above_the_last_is_none() -> None:
    curve = of_points([5, 7], [100, 200])
    for target in (0.0, 0.3, 0.5):
        assert curve.matched(target) == curve.point(0) == Point(math.inf, 0.5, 0.5, 10, 0, 0, 0)
    assert curve.matched(0.71) is None


@pytest.mark.parametrize("target", [math.nan, math.inf])
def test_a_target_that_is_no_number_is_refused(target: float) -> None:
    curve = of_points([5, 7], [100, 200])
    for call in (curve.matched, curve.at_coverage):
        with pytest.raises(UsageError, match="a share of the questions must be a number"):
            call(target)


def test_a_clairvoyant_pays_to_the_first_right_step_and_one_step_for_the_hopeless() -> None:
    assert clairvoyant(ladder(1, 2, 3, None), 0).cost == (10 + 30 + 60 + 10) / 4
    assert clairvoyant(ladder(1, 2, 3, None), 0).coverage == 1


def test_a_clairvoyant_gives_up_where_finding_is_dearest() -> None:
    found = clairvoyant(ladder(1, 2, 3, None), 0.25)
    assert (found.cost, found.coverage, found.given_up) == ((10 + 30 + 10 + 10) / 4, 0.75, 1)
    assert clairvoyant(ladder(1, 2, 3, None), 0.49).given_up == 1
    everything = clairvoyant(ladder(1, 2, 3, None), 1)
    assert everything.given_up == 2, "what is right at once costs nothing to keep"
    assert everything.cost == 10


def test_a_clairvoyants_allowance_is_not_rounded_down_by_a_float() -> None:
    assert clairvoyant(ladder(*[3] * 10), 0.3).given_up == 3
    assert clairvoyant(ladder(*[3] * 100), 0.29).given_up == 29, "0.29 * 100 is 28.999999999999996"


def test_a_clairvoyant_is_not_credited_with_what_is_not_on_record() -> None:
    steps = ladder(1, None)
    unknown = StepArrays(steps.answer, steps.correct, steps.cost, steps.steps, np.array([True, False]))
    assert clairvoyant(unknown, 0).coverage == 0.5


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_an_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(UsageError, match=r"alpha must lie in 0\.\.1"):
        clairvoyant(ladder(1), alpha)


def test_a_clairvoyant_is_the_best_of_all_stopping_rules() -> None:
    """Exhaustive: every way to stop each of four questions, at every allowance."""
    steps = ladder(1, 2, 3, 3, cost=(7, 11, 2))
    spent = np.cumsum(steps.cost[0])
    wins = (1, 2, 3, 3)
    for misses in range(5):
        plans = [p for p in itertools.product((1, 2, 3), repeat=4) if sum(map(int.__lt__, p, wins)) <= misses]
        best = min(sum(int(spent[stop - 1]) for stop in plan) for plan in plans)
        assert clairvoyant(steps, misses / 4).cost == best / 4


def test_no_policy_beats_the_clairvoyant() -> None:
    for cases, horizon, width in batches(seed=34, per_shape=60):
        whole = [case._replace(complete=True) for case in cases]
        steps, scores, _ = pack(whole, horizon, width)
        curve = frontier(steps, levels(steps, scores))
        for alpha in (0.0, 0.1, 0.3):
            point = curve.at_coverage(1 - alpha)
            assert point is None or point.cost >= clairvoyant(steps, alpha).cost


def test_a_policy_that_never_pays_is_still_on_the_frontier_of_costs_of_zero() -> None:
    case = Case(((Place(0, 0, True, 0.5, 0.5),),), (0,), (0.0,), True)
    steps, scores, _ = pack([case], 1, 1)
    curve = frontier(steps, levels(steps, scores))
    assert astuple(curve.at(math.inf))[1:] == (1.0, 1.0, 0.0, 1.0, 1.0, 1.0)
