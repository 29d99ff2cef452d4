"""Matched figures: those of the exact frontier, and their bootstrap against a plain one that copies rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import each

from cascade.conformal.arrays import ScoreArrays, StepFunctions, levels
from cascade.conformal.frontier import frontier
from cascade.conformal.split import critical_kappa
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.training import objective as module
from cascade.training.objective import CostLossCurve, bootstrap, cost_at_loss, cost_loss_curve, draws, units
from unit.calibration.logs import log


def scored(table: EpisodeTable, digits: int = 9, salt: int = 0) -> ScoreArrays:
    """Return scores with ties (few digits) or without."""
    chance = np.random.default_rng(salt)
    onward = np.round(np.abs(table.signals["p_yes"] - 0.5) * -1 + 0.05 * chance.random(table.arrays.cost.shape), digits)
    return ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)


def walk(table: EpisodeTable, scores: ScoreArrays) -> CostLossCurve:
    found = levels(table.arrays, scores)
    one = np.ones(table.n, dtype=np.int64)
    loss = StepFunctions(one, critical_kappa(table.arrays, found)[:, None], -one[:, None])
    return cost_loss_curve(loss, StepFunctions(0 * one, found.reach, table.arrays.cost))


@each("digits", [9, 2, 1])
@each("alpha", [0.01, 0.05, 0.0731, 0.1, 0.3])
def test_it_is_the_frontier_s_cost_at_exactly_that_coverage(digits: int, alpha: float) -> None:
    for seed, n in ((0, 50), (1, 400), (2, 1_500)):
        table = log(n, seed)
        scores = scored(table, digits)
        point = frontier(table.arrays, levels(table.arrays, scores)).matched(1 - alpha)
        assert point is not None
        assert cost_at_loss(walk(table, scores), alpha) == pytest.approx(point.cost, rel=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_without_a_coin_it_is_the_first_point_that_is_allowed(alpha: float) -> None:
    table = log(700)
    for digits in (9, 1):
        scores = scored(table, digits)
        point = frontier(table.arrays, levels(table.arrays, scores)).at_coverage(1 - alpha)
        assert point is not None
        assert cost_at_loss(walk(table, scores), alpha, coin=0.0) == pytest.approx(point.cost, rel=1e-9)


def test_a_loss_that_is_out_of_reach_costs_infinitely_much() -> None:
    loss = StepFunctions(np.ones(4, dtype=np.int64), np.full((4, 1), -np.inf), -np.ones((4, 1), dtype=np.int64))
    cost = StepFunctions(np.ones(4, dtype=np.int64), np.full((4, 1), 0.5), np.ones((4, 1), dtype=np.int64))
    lost = cost_loss_curve(loss, cost)
    assert cost_at_loss(lost, 0.5) == math.inf
    assert np.isinf(bootstrap(lost, 0.5, units("abcd"), draws(4, 0))).all()
    assert cost_at_loss(lost, 1.0) == 1


def test_what_is_allowed_from_the_start_costs_what_is_always_paid() -> None:
    table = log(100)
    assert cost_at_loss(walk(table, scored(table)), 0.99) == pytest.approx(table.arrays.cost[:, 0].mean())


def copied(table: EpisodeTable, scores: ScoreArrays, times: np.ndarray, alpha: float) -> float:
    """Return the figure of a log that holds each row so many times."""
    rows = np.repeat(np.arange(table.n), times)
    point = frontier(table.take(rows).arrays, levels(table.take(rows).arrays, scores.take(rows))).matched(1 - alpha)
    return math.inf if point is None else point.cost


@pytest.mark.parametrize(("n", "groups", "digits"), [(80, 80, 9), (80, 9, 2), (400, 400, 2), (1_500, 300, 9)])
def test_a_replicate_is_the_figure_of_the_copied_rows(n: int, groups: int, digits: int) -> None:
    table = log(n, 3, groups=[f"g{row % groups:04}" for row in range(n)])
    scores, drawn = scored(table, digits), units(table.groups)
    weights = draws(drawn.many, 5, 12)
    found = bootstrap(walk(table, scores), 0.1, drawn, weights)
    for got, one in zip(found, weights, strict=True):
        assert got == pytest.approx(copied(table, scores, one[drawn.of], 0.1), rel=1e-9)


def test_a_replicate_without_a_question_brings_nothing() -> None:
    """As in a fold of a small log, of which some replicate draws no group."""
    table = log(20)
    found = bootstrap(walk(table, scored(table)), 0.1, units(["a"] * 20), np.array([[0], [1]]))
    assert found[0] == 0
    assert found[1] == pytest.approx(cost_at_loss(walk(table, scored(table)), 0.1))


def test_a_window_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = log(4_000, 1)
    one, drawn = walk(table, scored(table)), units(table.groups)
    weights = draws(drawn.many, 0, 60)
    with_window = bootstrap(one, 0.05, drawn, weights)
    monkeypatch.setattr(module, "_WHOLE", 10**9)
    whole = bootstrap(one, 0.05, drawn, weights)
    assert with_window.tolist() == whole.tolist()
    monkeypatch.setattr(module, "_WHOLE", 0)
    monkeypatch.setattr(module, "_FAR", 0.01)  # most replicates leave so narrow a window, and are done again
    monkeypatch.setattr(module, "_CELLS", 5_000)
    assert bootstrap(one, 0.05, drawn, weights).tolist() == whole.tolist()


def test_the_order_of_the_rows_changes_no_bit() -> None:
    table = log(900, 2, groups=[f"g{row // 3}" for row in range(900)])
    order = np.random.default_rng(0).permutation(900)
    scores = scored(table, 2)
    one, other = walk(table, scores), walk(table.take(order), scores.take(order))
    assert cost_at_loss(one, 0.1) == cost_at_loss(other, 0.1)
    drawn, again = units(table.groups), units(table.take(order).groups)
    weights = draws(drawn.many, 1)
    assert bootstrap(one, 0.1, drawn, weights).tolist() == bootstrap(other, 0.1, again, weights).tolist()


def test_the_bootstrap_s_spread_is_that_of_fresh_questions() -> None:
    figures = [cost_at_loss(walk(t, scored(t)), 0.1) for t in (log(600, seed) for seed in range(10, 70))]
    spreads = []
    for seed in range(10, 18):
        table = log(600, seed)
        drawn = units(table.groups)
        spreads.append(bootstrap(walk(table, scored(table)), 0.1, drawn, draws(drawn.many, 0)).std())
    assert np.median(spreads) == pytest.approx(np.std(figures), rel=0.35)


def test_draws_are_the_same_for_the_same_seed_and_never_empty() -> None:
    assert draws(7, 3).tolist() == draws(7, 3).tolist()
    assert draws(7, 3).tolist() != draws(7, 4).tolist()
    assert (draws(1, 0).sum(axis=1) > 0).all()
    many = draws(1_000, 0)
    assert many.mean() == pytest.approx(1, abs=0.01)
    assert many.var() == pytest.approx(1, abs=0.02)


def test_units_go_by_name() -> None:
    of, many = units(["z", "a", "z"])
    assert (of.tolist(), many) == ([1, 0, 1], 2)


def test_policies_are_matched_on_the_same_questions() -> None:
    some = StepFunctions(np.ones(2, dtype=np.int64), np.ones((2, 1)), np.ones((2, 1), dtype=np.int64))
    none = some.take(np.zeros(0, dtype=np.int64))
    with pytest.raises(UsageError, match="2 losses, 0 values"):
        cost_loss_curve(some, none)
    with pytest.raises(UsageError, match="0 losses"):
        cost_loss_curve(none, none)
