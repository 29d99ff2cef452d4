"""Ridge regression against scikit-learn and the normal equations, and where columns are none."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.linear_model

from cascade.errors import UsageError
from cascade.training.estimators import Ridge, centred_gram, factored


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("penalty", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("shape", [(40, 3), (5_000, 30), (20, 50)])
def test_it_is_scikit_learns(rng: np.random.Generator, shape: tuple[int, int], penalty: float) -> None:
    rows = rng.normal(size=shape) * rng.uniform(0.5, 3.0, shape[1]) + rng.normal(size=shape[1])
    y = rng.normal(size=shape[0]) + rows[:, 0]
    prepared = Ridge.prepare(rows, penalty)
    plain = sklearn.linear_model.Ridge(alpha=penalty).fit(rows, y)
    np.testing.assert_allclose(prepared.solve(y).weights, plain.coef_, rtol=1e-7, atol=1e-9)
    assert prepared.solve(y).intercept == pytest.approx(plain.intercept_, abs=1e-8)
    np.testing.assert_allclose(prepared.solve(y).of(rows), plain.predict(rows), atol=1e-8)


def test_columns_far_from_zero_lose_no_digits(rng: np.random.Generator) -> None:
    rows, y = rng.normal(size=(500, 3)), rng.normal(size=500)
    near, far = Ridge.prepare(rows, 2.0).solve(y), Ridge.prepare(rows + 1e6, 2.0).solve(y)
    np.testing.assert_allclose(far.weights, near.weights, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(far.of(rows + 1e6), near.of(rows), atol=1e-6)


@pytest.mark.parametrize("penalty", [0.0, 1e-12, 1.0, 300.0])
def test_collinear_and_constant_columns_do_no_harm(rng: np.random.Generator, penalty: float) -> None:
    x = rng.normal(size=(200, 2))
    rows = np.column_stack([x, x[:, 0], x @ [1.0, -1.0], np.full(200, 0.1), np.zeros(200), np.full(200, 1e8)])
    y = x[:, 0] + 0.1 * rng.normal(size=200)
    found = Ridge.prepare(rows, penalty).solve(y)
    assert np.isfinite(found.weights).all()
    np.testing.assert_allclose(found.weights[4:], 0.0)
    assert np.abs(found.weights).max() < 2.0
    if penalty < 1.0:
        clean = np.linalg.lstsq(np.column_stack([np.ones(200), x]), y)[0]
        np.testing.assert_allclose(found.of(rows), np.column_stack([np.ones(200), x]) @ clean, atol=1e-6)


def test_twin_columns_share_what_they_explain_and_constant_ones_get_no_weight() -> None:
    x = np.linspace(-1.0, 1.0, 50)
    found = Ridge.prepare(np.column_stack([x, x, np.ones(50)]), 0.0).solve(2 * x)
    np.testing.assert_allclose(found.weights, [1.0, 1.0, 0.0], atol=1e-9)
    assert not np.signbit(found.weights).any()  # −0 would change the bytes of a policy
    np.testing.assert_allclose(found.of(np.column_stack([x, x, np.ones(50)])), 2 * x, atol=1e-9)


def test_without_columns_there_is_the_mean() -> None:
    found = Ridge.prepare(np.empty((4, 0)), 1.0).solve(np.array([1.0, 2.0, 3.0, 6.0]))
    assert found.intercept == 3.0
    assert found.weights.shape == (0,)


def test_one_row_gives_its_own_value() -> None:
    found = Ridge.prepare(np.array([[3.0, 4.0]]), 0.0).solve(np.array([5.0]))
    assert (found.intercept, found.weights.tolist()) == (5.0, [0.0, 0.0])


def test_more_rows_than_a_block_are_summed_whole(rng: np.random.Generator) -> None:
    rows, weights = rng.normal(size=(5_001, 3)), rng.uniform(size=5_001)
    centre = np.average(rows, axis=0, weights=weights)
    gram = centred_gram(rows, centre, weights)
    np.testing.assert_allclose(gram, (rows - centre).T @ (weights[:, None] * (rows - centre)), rtol=1e-10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": np.empty((0, 2))}, "nothing to fit on"),
        ({"rows": np.array([[np.nan, 1.0]] * 3)}, "not finite"),
        ({"penalty": -1.0}, "penalty: every number must be finite and ≥ 0"),
        ({"penalty": np.ones(3)}, "penalty: 2 numbers"),
    ],
)
def test_what_cannot_be_fitted_on_is_refused(change: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Ridge.prepare(**({"rows": np.eye(3)[:, :2], "penalty": 1.0} | change))


def test_targets_are_checked_as_well() -> None:
    prepared = Ridge.prepare(np.eye(3), 1.0)
    with pytest.raises(UsageError, match="y: 3 numbers"):
        prepared.solve(np.ones(4))
    with pytest.raises(UsageError, match="y: every number must be finite"):
        prepared.solve(np.array([0.0, np.nan, 1.0]))


def test_a_matrix_that_is_not_quite_definite_is_solved_by_its_eigenvalues(rng: np.random.Generator) -> None:
    half = rng.normal(size=(6, 4))
    matrix = half @ half.T  # rank 4 of 6
    right = matrix @ rng.normal(size=6)
    found = factored(matrix).solve(right)
    np.testing.assert_allclose(matrix @ found, right, atol=1e-8)
    assert factored(np.zeros((2, 2))).solve(np.ones(2)).tolist() == [0.0, 0.0]
