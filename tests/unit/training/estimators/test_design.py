"""Designs: what is clipped, scaled, marked and multiplied, and what is left out because it says nothing new."""

from __future__ import annotations

import numpy as np
import pytest

from cascade.errors import UsageError
from cascade.training.estimators import Ridge, make_design


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_features_are_standardised_after_clipping(rng: np.random.Generator) -> None:
    raw = rng.normal(size=(2_000, 3)) * [1.0, 50.0, 1e-6] + [0.0, 1e4, 3.0]
    raw[0] = 1e12, -1e12, np.nan
    design = make_design(raw, products=False)
    known = raw[:, 0]
    assert (design.low[0], design.high[0]) == tuple(np.quantile(known, [0.01, 0.99]))
    rows = design.rows(raw)
    np.testing.assert_allclose(rows[1:, :3].mean(axis=0), 0.0, atol=3e-3)
    np.testing.assert_allclose(rows[:, :3].std(axis=0), 1.0, atol=1e-3)
    assert np.abs(rows).max() < 3.0
    assert design.pairs.shape == (0, 2)


def test_what_is_missing_is_the_mean_and_has_a_mark(rng: np.random.Generator) -> None:
    raw = rng.normal(size=(100, 3)) + 5.0
    raw[::4, 1] = np.nan
    design = make_design(raw, products=False)
    assert design.indicators.tolist() == [1]
    rows = design.rows(raw)
    assert rows[::4, 1].tolist() == [0.0] * 25
    assert rows[:, 3].tolist() == np.isnan(raw[:, 1]).astype(float).tolist()
    assert design.foreseen.tolist() == [False, True, False]


def test_features_that_do_not_vary_become_zeros(rng: np.random.Generator) -> None:
    raw = np.column_stack([
        np.full(50, 7.0), np.full(50, np.nan), np.full(50, 0.1) + rng.choice([0.0, 1e-17], 50), np.full(50, 1e300),
        np.concatenate([[np.nan] * 9, np.full(41, 2.0)]), np.where(rng.random(50) < 0.5, -1e300, 1e300),
    ])  # fmt: skip
    design = make_design(raw, products=True)
    assert (design.rows(raw)[:, :6] == 0.0).all()
    assert design.indicators.tolist() == [1, 4]
    assert (design.scale == 1.0).all()
    fresh = design.rows(np.full((1, 6), 1e9))
    assert (fresh == 0.0).all()


@pytest.mark.parametrize(("odd", "varies"), [(4, False), (5, True), (12, True)])
def test_a_rare_value_counts_from_five_rows_on(odd: int, varies: bool) -> None:
    raw = np.zeros((2_000, 1))
    raw[:odd] = 1.0
    rows = make_design(raw, products=False).rows(raw)
    assert (np.ptp(rows) > 0) == varies


def test_infinite_values_are_clipped_like_any_outlier(rng: np.random.Generator) -> None:
    raw = rng.normal(size=(300, 1))
    raw[:3, 0] = np.inf, -np.inf, 1e9
    design = make_design(raw, products=True)
    assert np.isfinite(design.rows(raw)).all()
    assert np.isfinite([*design.centre, *design.scale]).all()


def test_products_are_all_squares_and_pairs(rng: np.random.Generator) -> None:
    design = make_design(rng.normal(size=(500, 4)), products=True)
    assert design.pairs.tolist() == [[i, j] for i in range(4) for j in range(i, 4)]


def test_products_that_say_nothing_new_are_left_out(rng: np.random.Generator) -> None:
    n = 600
    x, coin, other = rng.normal(size=n), (rng.random(n) < 0.3).astype(float), (rng.random(n) < 0.5).astype(float)
    x[::5] = np.nan
    raw = np.column_stack([x, coin, other, np.full(n, 3.0), 1.0 - coin])
    found = {tuple(pair) for pair in make_design(raw, products=True).pairs.tolist()}
    assert (0, 0) in found
    assert {(0, 1), (0, 2), (1, 2), (1, 5), (2, 5)} <= found
    assert (1, 1) not in found  # a square of two values is a line in them
    assert (5, 5) not in found  # so is an indicator's
    assert (0, 5) not in found  # what is missing is 0 there
    assert not [pair for pair in found if 3 in pair]  # a constant's product is 0
    assert not [pair for pair in found if 4 in pair and pair != (0, 4)]  # the other side of a coin
    assert (0, 4) not in found


def test_what_differs_in_rows_that_were_not_looked_at_first_is_kept(rng: np.random.Generator) -> None:
    n = 40_000
    looked_at = np.unique(np.linspace(0, n - 1, 4_000).round().astype(int))
    elsewhere = np.setdiff1d(np.arange(n), looked_at)
    x = rng.choice([-1.0, 1.0], n)
    x[elsewhere[:9_000]] = rng.normal(size=9_000)
    raw = np.column_stack([x, rng.choice([-1.0, 1.0], n)])
    assert make_design(raw, products=True).pairs.tolist() == [[0, 0], [0, 1]]
    raw[:, 0] = np.where(raw[:, 0] > 0, 1.0, -1.0)
    assert make_design(raw, products=True).pairs.tolist() == [[0, 1]]


def test_pruning_loses_nothing_that_a_line_could_say(rng: np.random.Generator) -> None:
    n = 300
    raw = np.column_stack([rng.normal(size=n), rng.random(n) < 0.4, np.full(n, 2.0)]).astype(float)
    raw[rng.random(n) < 0.2, 0] = np.nan
    design = make_design(raw, products=True)
    plain = make_design(raw, products=False).rows(raw)
    first, second = np.triu_indices(plain.shape[1])
    everything = np.concatenate([plain, plain[:, first] * plain[:, second]], axis=1)
    y = rng.normal(size=n)
    pruned = Ridge.prepare(design.rows(raw), 0.0).solve(y).of(design.rows(raw))
    whole = Ridge.prepare(everything, 0.0).solve(y).of(everything)
    np.testing.assert_allclose(pruned, whole, atol=1e-6)
    assert design.columns < everything.shape[1]


def test_no_row_and_no_feature() -> None:
    with pytest.raises(UsageError, match="nothing to fit on"):
        make_design(np.empty((0, 3)), products=False)
    design = make_design(np.empty((4, 0)), products=True)
    assert design.rows(np.empty((4, 0))).shape == (4, 0)


def test_one_row() -> None:
    raw = np.array([[1.0, np.nan, -2.0]])
    assert make_design(raw, products=True).rows(raw).tolist() == [[0.0, 0.0, 0.0, 1.0]]
