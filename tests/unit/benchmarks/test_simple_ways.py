"""The benchmark of simple ways: each opponent is as strong as is said, and every way is held to the same rows."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mapie", exc_type=ImportError)
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from fitted.cells import Cell
from simple.opponents import WAYS, Rows, Served, exact, mapie, rows_of, searched, serve, stops
from simple_ways import Cellwise, Done, Job, gathered

from cascade.conformal.ltt import certified_points
from cascade.evaluation.logs import open_log

ALPHA, DELTA = 0.1, 0.1


def some(n: int, models: int, seed: int = 0, steps: int = 10) -> Rows:
    """Make questions whose first rungs are the more wrong the higher their doubt."""
    chance = np.random.default_rng(seed)
    doubt = chance.integers(0, steps, (n, models - 1)) / steps
    loss = np.zeros((n, models), dtype=np.bool_)
    loss[:, :-1] = chance.random((n, models - 1)) < doubt / 2
    cost = np.cumsum(np.broadcast_to(np.array([1, 3, 9, 27][:models]), (n, models)), axis=1)
    return Rows(doubt, loss, cost, cost[:, -1] - cost[:, -2], np.arange(n))


def played(rows: Rows, thresholds: np.ndarray) -> tuple[int, int]:
    stop, each = stops(rows, thresholds), np.arange(rows.n)
    return int(rows.loss[each, stop].sum()), int(rows.cost[each, stop].sum())


def test_a_question_stops_at_the_first_rung_that_is_sure_enough() -> None:
    rows = Rows(np.array([[0.3, 0.1], [0.9, 0.9], [np.inf, np.inf]]), *some(3, 3)[1:])
    assert stops(rows, np.array([0.2, 0.2])).tolist() == [1, 2, 2]
    assert stops(rows, np.array([0.3, -np.inf])).tolist() == [0, 2, 2]


@pytest.mark.parametrize("models", [2, 3, 4])
def test_the_search_finds_what_trying_every_combination_finds(models: int) -> None:
    rows = some(60, models, steps=4)
    path = searched(rows, 0.3)
    grid = [-np.inf, *np.unique(rows.doubt)]
    tried = [played(rows, np.array(one)) for one in itertools.product(grid, repeat=models - 1)]
    for point in path:
        losses, cost = played(rows, point)
        assert cost == min(spent for lost, spent in tried if lost <= losses)
    least = min(spent for lost, spent in tried if lost <= 0.3 * rows.n)
    assert min(played(rows, point)[1] for point in path) == least
    assert [played(rows, point)[0] for point in path] == sorted({played(rows, point)[0] for point in path})


def test_the_exact_sequence_stops_at_the_first_threshold_that_fails() -> None:
    rows = some(400, 3)
    grid = np.unique(rows.doubt)
    losses = np.array([played(rows, np.full(2, one))[0] for one in grid])
    front = certified_points(losses, rows.n, ALPHA, DELTA)
    assert 0 < front < grid.size
    found = exact(rows, ALPHA, DELTA)
    assert found.thresholds is not None
    assert found.thresholds.tolist() == [grid[front - 1]] * 2
    assert mapie(rows, ALPHA, DELTA).thresholds.tolist() == found.thresholds.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", WAYS)
def test_where_nothing_cheaper_passes_the_reference_is_asked_at_once(name: str) -> None:
    rows = some(300, 3)
    lost = rows._replace(loss=np.broadcast_to(np.array([True, True, False]), rows.loss.shape))
    found = serve(WAYS[name](lost, ALPHA, DELTA), rows)
    assert found == Served(1.0, 0.0, None if name == "uncertified" else False)


@pytest.mark.parametrize("name", [name for name in WAYS if name != "uncertified"])
def test_each_certified_way_keeps_its_promise(name: str) -> None:
    world = some(50_000, 3, seed=1)
    chance = np.random.default_rng(2)
    regrets = [serve(WAYS[name](world.take(chance.integers(0, world.n, 400)), ALPHA, DELTA), world) for _ in range(40)]
    assert np.mean([one.regret > ALPHA for one in regrets]) <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / 40)
    assert np.mean([one.ratio for one in regrets]) < 0.9


def test_the_last_model_has_no_regret_and_the_walk_is_what_is_paid() -> None:
    (log,) = open_log("demo-ladder").tables
    rows = rows_of(log)
    assert not rows.loss[:, -1].any()
    assert rows.reference.tolist() == log.walks["last model only"].cost.tolist()
    assert rows.loss[:, 0].tolist() == (~log.arrays.correct[:, 0, 0] & log.walks["last model only"].right).tolist()


def test_ours_is_held_against_the_better_way_on_the_same_splits() -> None:
    (log,) = open_log("demo-ladder").tables
    costs = [{"ours": 0.5, "mapie": 0.7, "exact": 0.6}, {"ours": 0.7, "mapie": 0.7, "exact": 0.6}]
    done = [
        Done(Job("demo", 0.1, seed), {name: Served(cost, 0.0, True) for name, cost in one.items()}, 0.1)
        for seed, one in enumerate(costs)
    ]
    (found,) = gathered({"demo": Cell("demo", "demo", log)}, {("demo", 0.1): 0.5}, done[::-1])
    assert isinstance(found, Cellwise)
    assert found.better == "exact"
    assert found.gap == pytest.approx((0.0, 0.1))
