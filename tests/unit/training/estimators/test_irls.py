"""Penalised logistic regression against scikit-learn and scipy, and where other fits run away."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import sklearn.linear_model

from cascade.errors import UsageError
from cascade.training.estimators import logistic, probabilities


def simulated(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * rng.uniform(0.5, 2.0, d) + rng.normal(size=d)
    return rows, (rng.random(n) < probabilities(rows @ rng.normal(size=d) / math.sqrt(d) - 0.5)).astype(float)


def objective(point, rows, y, penalty, prior, weights):
    z = point[0] + rows @ point[1:]
    fit = weights @ (np.logaddexp(0.0, z) - y * z) + 0.5 * penalty @ np.square(point[1:] - prior)
    pull = weights * (probabilities(z) - y)
    return fit, np.concatenate([[pull.sum()], pull @ rows + penalty * (point[1:] - prior)])


@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("shape", [(60, 2), (1_000, 20), (25_000, 8)])
def test_it_is_scikit_learns(shape: tuple[int, int], penalty: float) -> None:
    rows, y = simulated(*shape)
    weights = np.random.default_rng(1).uniform(0.0, 3.0, len(y))
    oracle = sklearn.linear_model.LogisticRegression(C=1 / penalty, solver="newton-cholesky", tol=1e-10, max_iter=200)
    for counted in (None, weights):
        known = oracle.fit(rows, y, sample_weight=counted)
        found = logistic(rows, y, penalty, weights=counted)
        np.testing.assert_allclose(found.weights, known.coef_[0], rtol=1e-6, atol=1e-8)
        assert found.intercept == pytest.approx(known.intercept_[0], rel=1e-6, abs=1e-8)


def test_with_weights_and_a_penalty_each_it_is_scipys_minimum() -> None:
    rows, y = simulated(300, 4, seed=2)
    rng = np.random.default_rng(3)
    y = np.clip(y + rng.uniform(-0.2, 0.2, 300), 0.0, 1.0)  # shares are allowed
    penalty, weights = np.array([0.0, 1.0, 10.0, 50.0]), rng.uniform(0.0, 2.0, 300)
    known = scipy.optimize.minimize(
        objective, np.zeros(5), (rows, y, penalty, np.zeros(4), weights), jac=True, options={"gtol": 1e-9}
    )
    found = logistic(rows, y, penalty, weights=weights)
    np.testing.assert_allclose([found.intercept, *found.weights], known.x, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("penalty", [1e-6, 1e-3, 1.0])
def test_separable_data_have_a_minimum_thanks_to_the_penalty(penalty: float) -> None:
    rows = np.column_stack([np.linspace(-1.0, 1.0, 40), np.random.default_rng(0).normal(size=40)])
    y = (rows[:, 0] > 0).astype(float)
    found = logistic(rows, y, penalty)
    point = np.array([found.intercept, *found.weights])
    slope = objective(point, rows, y, np.full(2, penalty), np.zeros(2), np.ones(40))[1]
    assert np.abs(slope).max() < 1e-6
    assert np.isfinite(point).all()
    assert penalty >= 1.0 or ((found.of(rows) > 0) == (y > 0)).all()  # a strong one gives up the row next to the border


def test_separable_data_without_a_penalty_still_end() -> None:
    x = np.linspace(-1.0, 1.0, 20)
    found = logistic(x[:, None], (x > 0).astype(float), 0.0)
    assert np.isfinite(found.intercept)
    assert found.weights[0] > 100.0
    assert ((found.of(x[:, None]) > 0) == (x > 0)).all()


@pytest.mark.parametrize(("right", "logit"), [(0, math.log(0.5 / 10.5)), (10, math.log(10.5 / 0.5))])
def test_where_all_are_of_one_class_the_intercept_is_finite(right: int, logit: float) -> None:
    rows = np.random.default_rng(0).normal(size=(10, 2))
    found = logistic(rows, np.full(10, right / 10), 1.0)
    assert found.intercept == pytest.approx(logit)
    assert found.weights.tolist() == [0.0, 0.0]


def test_a_class_of_weight_zero_is_no_class() -> None:
    found = logistic(np.arange(4.0)[:, None], np.array([0.0, 0.0, 0.0, 1.0]), 1.0, weights=np.array([1.0, 1, 1, 0]))
    assert found.intercept == pytest.approx(math.log(0.5 / 3.5))


def test_one_row_of_a_class_among_a_thousand() -> None:
    rows, _ = simulated(1_000, 5)
    y = np.zeros(1_000)
    y[17] = 1.0
    found = logistic(rows, y, 10.0)
    assert probabilities(found.of(rows)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("penalty", [0.0, 1e-12, 1.0])
def test_collinear_and_constant_columns_do_no_harm(penalty: float) -> None:
    rows, y = simulated(400, 2, seed=4)
    wide = np.column_stack([rows, rows[:, 0], np.ones(400), np.full(400, 0.1), np.zeros(400)])
    found = logistic(wide, y, penalty)
    assert found.weights[0] == pytest.approx(found.weights[2])
    np.testing.assert_allclose(found.weights[3:], 0.0)
    narrow = logistic(rows, y, np.array([penalty / 2, penalty]))
    np.testing.assert_allclose(found.of(wide), narrow.of(rows), atol=1e-7)


def test_without_columns_there_is_the_share() -> None:
    found = logistic(np.empty((8, 0)), np.array([1.0, 0, 0, 0, 0, 0, 1, 0]), 1.0)
    assert found.intercept == pytest.approx(math.log(0.25 / 0.75))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y": np.array([0.0, 2.0, 1.0])}, "y: every number must lie in 0..1"),
        ({"y": np.array([0.0, -0.5, 1.0])}, "y: every number must be finite and ≥ 0"),
        ({"y": np.ones(4)}, "y: 3 numbers"),
        ({"rows": np.array([[np.inf]] * 3)}, "not finite"),
        ({"penalty": np.nan}, "penalty"),
        ({"weights": np.zeros(3)}, "weights: they are all 0"),
    ],
)
def test_what_cannot_be_fitted_on_is_refused(change: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        logistic(**({"rows": np.eye(3)[:, :1], "y": np.array([0.0, 1.0, 1.0]), "penalty": 1.0} | change))
