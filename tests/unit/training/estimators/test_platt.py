"""Platt's calibration: monotone, careful with few rows, and calibrated where it is cross-fitted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
from sklearn.calibration import _sigmoid_calibration

from cascade.calibration.samples import folds
from cascade.errors import UsageError
from cascade.training.estimators import logistic, make_design, platt, probabilities
from unit.calibration.logs import log


def drawn(n: int, slope: float, offset: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logit = rng.normal(size=n) * 3.0
    return logit, (rng.random(n) < probabilities(slope * logit + offset)).astype(float)


def expected_calibration_error(p: np.ndarray, y: np.ndarray, bins: int = 10) -> float:
    """Return Σ over equally full bins of their share × |mean predicted − mean seen|."""
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    return float(sum(len(part) * abs(p[part].mean() - y[part].mean()) for part in parts) / len(p))


def test_it_finds_the_slope_and_offset_that_the_labels_were_drawn_with() -> None:
    found = platt(*drawn(200_000, 0.4, -1.0))
    assert found.slope == pytest.approx(0.4, abs=0.01)
    assert found.offset == pytest.approx(-1.0, abs=0.02)


def test_it_is_the_minimum_over_platts_targets() -> None:
    logit, y = drawn(80, 0.7, 0.5)
    right, wrong = y.sum(), (1 - y).sum()
    target = np.where(y > 0, (right + 1) / (right + 2), 1 / (wrong + 2))

    def loss(point: np.ndarray) -> float:
        z = point[0] * logit + point[1]
        return float((np.logaddexp(0.0, z) - target * z).sum())

    known = scipy.optimize.minimize(
        loss, np.array([1.0, 0.0]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
    ).x
    np.testing.assert_allclose(platt(logit, y), known, atol=1e-6)


def test_it_is_scikit_learns() -> None:
    logit, y = drawn(500, 0.7, 0.5)
    a, b = _sigmoid_calibration(logit, y)
    np.testing.assert_allclose(platt(logit, y), [-a, -b], rtol=1e-3)  # its stopping rule is coarse


def test_logits_that_point_the_wrong_way_are_given_up() -> None:
    logit, y = drawn(1_000, -0.5, 0.3)
    found = platt(logit, y)
    assert found.slope == 0.0
    right = y.sum()
    target = (right * (right + 1) / (right + 2) + (1000 - right) / (1002 - right)) / 1000
    assert probabilities(np.array(found.offset)) == pytest.approx(target)


def test_a_logit_that_is_always_the_same_says_nothing() -> None:
    found = platt(np.full(10, 3.0), np.array([1.0] * 6 + [0.0] * 4))
    assert found.slope == 0.0
    assert 0.5 < probabilities(np.array(found.offset)) < 0.6


def test_a_few_rows_told_apart_perfectly_make_nobody_certain() -> None:
    found = platt(np.array([-4.0, -3.0, 3.0, 4.0]), np.array([0.0, 0.0, 1.0, 1.0]))
    assert 0.15 < probabilities(found.slope * -4.0 + np.array(found.offset)) < 0.3  # Platt's 1/(2 + 2) about


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_one_class_gives_a_finite_offset(y: float) -> None:
    found = platt(np.linspace(-1.0, 1.0, 8), np.full(8, y))
    assert found.slope == pytest.approx(0.0, abs=1e-9)
    assert probabilities(np.array(found.offset)) == pytest.approx(9 / 10 if y else 1 / 10)


def test_huge_logits_do_not_overflow() -> None:
    found = platt(np.array([-1e6, -1.0, 1.0, 1e6]), np.array([0.0, 1.0, 0.0, 1.0]))
    assert math.isfinite(found.slope)
    assert math.isfinite(found.offset)


@pytest.mark.parametrize(
    ("logit", "y"),
    [([np.inf, 0.0], [0.0, 1.0]), ([0.0, 1.0], [0.0, 2.0]), ([0.0, 1.0], [0.0]), ([], [])],
)
def test_what_cannot_be_calibrated_on_is_refused(logit: list[float], y: list[float]) -> None:
    with pytest.raises(UsageError):
        platt(np.array(logit), np.array(y))


def cross_fitted(n: int, seed: int, penalty: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return in-sample, cross-fitted and Platt-calibrated cross-fitted chances, each with fresh questions' true ones."""
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=(n + 20_000, 40))
    raw[rng.random(raw.shape) < 0.05] = np.nan
    known = np.nan_to_num(raw)
    chance = probabilities(1.2 * known[:, 0] - 0.8 * known[:, 1] + 0.6 * known[:, 0] * known[:, 2] + 0.3)
    y = (rng.random(len(chance)) < chance).astype(float)
    fold = folds(log(n), 5, seed)
    logit = np.empty(n)
    for k in range(5):
        held = fold == k
        design = make_design(raw[:n][~held])
        logit[held] = logistic(design.rows(raw[:n][~held]), y[:n][~held], penalty).of(design.rows(raw[:n][held]))
    slope, offset = platt(logit, y[:n])
    design = make_design(raw[:n])
    fresh = logistic(design.rows(raw[:n]), y[:n], penalty).of(design.rows(raw[n:]))
    return probabilities(fresh), probabilities(slope * fresh + offset), y[n:]


@pytest.mark.long  # statistical: 100,000 rows are scored
@pytest.mark.parametrize("penalty", [1.0, 300.0])
def test_cross_fitted_calibrated_probabilities_are_calibrated(penalty: float) -> None:
    """Too weak a penalty is too sure, too strong a one too timid; out-of-fold calibration mends both."""
    before, after = [], []
    for seed in range(5):
        plain, calibrated, y = cross_fitted(800, seed, penalty)
        before.append(expected_calibration_error(plain, y))
        after.append(expected_calibration_error(calibrated, y))
    assert np.mean(after) < 0.03  # perfect probabilities show .007 here: 20,000 rows in 10 bins
    assert np.mean(after) < 0.6 * np.mean(before)


@pytest.mark.long
def test_isotonic_regression_finds_little_left_to_mend() -> None:
    from sklearn.isotonic import IsotonicRegression

    _, calibrated, y = cross_fitted(2_000, 7, 30.0)
    mended = IsotonicRegression(y_min=0, y_max=1).fit_transform(calibrated, y)
    assert np.abs(mended - calibrated).mean() < 0.03
