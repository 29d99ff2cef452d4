"""Designs: what is clipped, scaled and marked."""

from __future__ import annotations

import numpy as np
import pytest

from cascade.errors import UsageError
from cascade.training.estimators import make_design


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_features_are_standardised_after_clipping(rng: np.random.Generator) -> None:
    raw = rng.normal(size=(2_000, 3)) * [1.0, 50.0, 1e-6] + [0.0, 1e4, 3.0]
    raw[0] = 1e12, -1e12, np.nan
    design = make_design(raw)
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
    design = make_design(raw)
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
    design = make_design(raw)
    assert (design.rows(raw)[:, :6] == 0.0).all()
    assert design.indicators.tolist() == [1, 4]
    assert (design.scale == 1.0).all()
    fresh = design.rows(np.full((1, 6), 1e9))
    assert (fresh == 0.0).all()


@pytest.mark.parametrize(("odd", "varies"), [(4, False), (5, True), (12, True)])
def test_a_rare_value_counts_from_five_rows_on(odd: int, varies: bool) -> None:
    raw = np.zeros((2_000, 1))
    raw[:odd] = 1.0
    rows = make_design(raw).rows(raw)
    assert (np.ptp(rows) > 0) == varies


def test_infinite_values_are_clipped_like_any_outlier(rng: np.random.Generator) -> None:
    raw = rng.normal(size=(300, 1))
    raw[:3, 0] = np.inf, -np.inf, 1e9
    design = make_design(raw)
    assert np.isfinite(design.rows(raw)).all()
    assert np.isfinite([*design.centre, *design.scale]).all()


def test_no_row_and_no_feature() -> None:
    with pytest.raises(UsageError, match="nothing to fit on"):
        make_design(np.empty((0, 3)))
    design = make_design(np.empty((4, 0)))
    assert design.rows(np.empty((4, 0))).shape == (4, 0)


def test_one_row() -> None:
    raw = np.array([[1.0, np.nan, -2.0]])
    assert make_design(raw).rows(raw).tolist() == [[0.0, 0.0, 0.0, 1.0]]
