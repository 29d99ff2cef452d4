"""Estimators fitted to plain arrays: designs, ridge, logistic regression, calibration. They read no logs.

A design defines how raw features are clipped, scaled and marked as missing. A ridge regression is
factorised once and solved for many targets: backward induction needs dozens of solutions.

    minimise over b, β   Σ_i (y_i − b − x_iᵀβ)² + Σ_j λ_j β_j²

The intercept b is not penalised. λ is not scaled by n: the meaning of a penalty does not depend on the number of rows.

A BLAS or OpenMP library divides a sum into as many parts as it has threads, and this changes the last bits. On one
thread (`one_thread`) the same data give the same bytes on 1 core and on 16.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from cascade.conformal.arrays import Floats
from cascade.errors import UsageError
from cascade.policies.design import Design


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread within the block, in the whole process.

    The limit does not reach libraries that are loaded within the block: import them before.
    """
    with _libraries(len(sys.modules)).limit(limits=1):
        yield


@lru_cache(maxsize=1)
def _libraries(_modules: int) -> ThreadpoolController:
    """Return the libraries of this process; cached until a module is imported, since a fit calls it dozens of times."""
    return ThreadpoolController()


CLIPPED_AT = (0.01, 0.99)
"""The quantiles at which features are clipped: one outlier in a hundred must not set the slope of all others."""
_LEAST_ODD = 5
"""The fewest rows that must differ from all others for a nearly constant column to count as varying."""
_FLAT = 1e-12
"""A standard deviation, as a share of the values' size, that counts as rounding."""


def make_design(raw: Floats) -> Design:
    """Return the design for raw features, float64 (n, d), NaN where missing.

    Each feature is clipped at its 1st and 99th percentile and then standardised by mean and standard deviation; a
    constant feature becomes a column of zeros. A nearly constant feature, whose two percentiles are equal, is not
    clipped, and must differ in 5 rows to count as varying. A feature with missing values also has an indicator column.

    >>> design = make_design(np.array([[0.0, 5.0], [1.0, 5.0], [0.0, np.nan], [1.0, np.nan]]))
    >>> design.rows(np.array([[1.0, 5.0], [0.0, np.nan]])).round(6)
    array([[ 1.,  0.,  0.],
           [-1.,  0.,  1.]])
    """
    if raw.ndim != 2 or not len(raw):
        raise UsageError(f"There is nothing to fit on: features of shape {raw.shape}.")
    parts = [_column(raw[:, place]) for place in range(raw.shape[1])]
    centre, scale, low, high = (np.array([part[which] for part in parts], dtype=np.float64) for which in range(4))
    missing = np.flatnonzero(np.isnan(raw).any(axis=0))
    return Design(centre, scale, low, high, missing, np.empty((0, 2), dtype=np.int64))


class _Standard(NamedTuple):
    centre: float
    scale: float
    low: float
    high: float


def _column(values: Floats) -> _Standard:
    known = values[np.isfinite(values)]
    if not known.size:
        return _Standard(0.0, 1.0, 0.0, 0.0)
    low, middle, high = (float(value) for value in np.quantile(known, (CLIPPED_AT[0], 0.5, CLIPPED_AT[1])))
    if low == high and np.count_nonzero(known != middle) >= _LEAST_ODD:
        low, high = float(known.min()), float(known.max())
    clipped = np.clip(known, low, high)
    # The variance of numbers such as 1e200 overflows float64: such a column counts as constant.
    with np.errstate(over="ignore", invalid="ignore"):
        centre, scale = float(clipped.mean()), float(clipped.std())
    if np.isfinite(centre) and np.isfinite(scale) and scale > _FLAT * max(abs(low), abs(high)):
        return _Standard(centre, scale, low, high)
    return _Standard(middle, 1.0, middle, middle)


# --- Solve with a symmetric matrix that may be singular, factorised once: the basis of the linear estimators ---

_WEAK = 1e-5
"""Columns count as collinear below this pivot of the Cholesky factor of a matrix with unit diagonal: the condition
number is then about 1e10, and the solution has six correct digits."""
_NOTHING = 1e-11
"""An eigenvalue, as a share of the largest, that counts as rounding: D · 2.2e-16 at D = 1,000, with a margin."""
_ROWS = 2048
"""The rows of a block: 150 columns of them fit into the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A factorised matrix A, symmetric and positive semidefinite, (D, D).

    Attributes:
        root: R (r, D) with RᵀR the inverse of A scaled to a unit diagonal.
        scale: float64 (D,), 1/√A_jj; 0 where A_jj is 0: that coordinate of every solution is 0.
    """

    root: Floats
    scale: Floats

    def solve(self, right: Floats) -> Floats:
        """Return x with A x = right, (D,); if A is singular, the least squares solution of least scaled norm."""
        return np.asarray(self.scale * (self.root.T @ (self.root @ (self.scale * right))))


def factored(matrix: Floats) -> Factor:
    """Factorise: by Cholesky, or by eigenvalues if columns are collinear. Rows and columns of zeros are left out.

    >>> twins = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    >>> factored(twins).solve(np.array([4.0, 4.0, 0.0])).round(9)
    array([1., 1., 0.])
    """
    diagonal = matrix.diagonal()
    live = diagonal > 0
    scale = np.zeros_like(diagonal)
    scale[live] = 1.0 / np.sqrt(diagonal[live])
    scaled = matrix * scale[:, None] * scale
    scaled.flat[:: len(scaled) + 1] = 1.0
    try:
        lower = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return Factor(_by_eigenvalues(scaled), scale)
    if lower.diagonal().min(initial=1.0) < _WEAK:
        return Factor(_by_eigenvalues(scaled), scale)
    # numpy has no triangular solve. The inverse of the factor costs D³ once, and each solution 2 D² after that.
    return Factor(np.linalg.inv(lower), scale)


def _by_eigenvalues(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    kept = values > _NOTHING * values[-1]
    return np.asarray((vectors[:, kept] / np.sqrt(values[kept])).T)


def centred_gram(rows: Floats, centre: Floats, weights: Floats | None = None) -> Floats:
    """Return Σ_i w_i (x_i − c)(x_i − c)ᵀ, float64 (D, D), computed in blocks, so that the rows are not copied.

    A column that varies only by rounding has zeros in its row and column.
    """
    columns = rows.shape[1]
    gram = np.zeros((columns, columns))
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS] - centre
        if weights is None:
            gram += block.T @ block
        else:
            gram += block.T @ (block * weights[start : start + _ROWS, None])
    total = float(len(rows)) if weights is None else float(weights.sum())
    flat = gram.diagonal() <= total * (_FLAT * np.abs(centre)) ** 2
    gram[flat, :] = gram[:, flat] = 0.0
    return (gram + gram.T) / 2.0


def checked_rows(rows: Floats) -> Floats:
    """Return design rows unchanged, after checking them."""
    if rows.ndim != 2 or not len(rows):
        raise UsageError(f"There is nothing to fit on: rows of shape {rows.shape}.")
    if not np.isfinite(rows).all():
        raise UsageError("The rows to fit on have a number that is not finite.")
    return rows


def checked_column(name: str, values: Floats | float, many: int, *, least: float = -np.inf) -> Floats:
    """Return one number for each of `many`, float64 (many,); a single number is repeated."""
    column = np.asarray(values, dtype=np.float64)
    if column.ndim == 0:
        column = np.full(many, float(column))
    if column.shape != (many,):
        raise UsageError(f"{name}: {many} numbers are needed, not an array of shape {column.shape}.")
    if not np.isfinite(column).all() or (column < least).any():
        raise UsageError(f"{name}: every number must be finite" + (f" and ≥ {least:g}." if least > -np.inf else "."))
    return column


# --- linear ---


class Weights(NamedTuple):
    """The coefficients of a linear form: intercept + Σ_j weights_j · column_j; weights float64 (D,)."""

    intercept: float
    weights: Floats

    def of(self, rows: Floats) -> Floats:
        """Return the form's value for each of the rows fitted on or held out, (n, D) -> (n,), for fitting only.

        The served form (`policies.estimators.Linear`) adds in another order, so its last bits may differ.
        """
        return np.asarray(rows @ self.weights + self.intercept)


@dataclass(frozen=True, slots=True, eq=False)
class Ridge:
    """A design factorised for one penalty: call `prepare`, then `solve` for each column of targets.

    Preparing costs n·D² + D³, each solution n·D. Constant columns get the weight 0; collinear columns share the
    explained part.

    Attributes:
        rows: float64 (n, D), not copied.
        centre: float64 (D,), the columns' means.
        gram: float64 (D, D), centred.
        factor: the factorised gram + diag(penalty).

    >>> x = np.array([[-1.0], [0.0], [1.0]])
    >>> prepared = Ridge.prepare(x, penalty=2.0)
    >>> prepared.solve(np.array([0.0, 1.0, 2.0])), prepared.solve(np.array([4.0, 0.0, -4.0]))
    (Weights(intercept=1.0, weights=array([0.5])), Weights(intercept=0.0, weights=array([-2.])))
    """

    rows: Floats
    centre: Floats
    gram: Floats
    factor: Factor

    @classmethod
    def prepare(cls, rows: Floats, penalty: Floats | float) -> Ridge:
        """Factorise.

        Args:
            rows: float64 (n, D), a design's columns, without a column for the intercept.
            penalty: λ ≥ 0, one for all columns or one each, (D,).
        """
        penalties = checked_column("penalty", penalty, checked_rows(rows).shape[1], least=0.0)
        centre = rows.mean(axis=0)
        gram = centred_gram(rows, centre)
        return cls(rows, centre, gram, factored(gram + np.diag(penalties)))

    def solve(self, y: Floats) -> Weights:
        """Return the minimiser for targets y, float64 (n,)."""
        target = checked_column("y", y, len(self.rows))
        mean = float(target.mean())
        residual = target - mean
        # The residuals sum to 0, so the columns' means drop out of this product.
        right = residual @ self.rows - residual.sum() * self.centre
        right[self.gram.diagonal() == 0.0] = 0.0  # for a constant column this is rounding
        found = self.factor.solve(right) + 0.0  # no weight is −0
        return Weights(mean - float(self.centre @ found), found)


def mean_of(values: Floats, weights: Floats | None) -> Floats:
    """Return the (weighted) mean over the first axis."""
    if weights is None:
        return np.asarray(values.mean(axis=0))
    return np.asarray(weights @ values / weights.sum())


# --- Logistic regression with a penalty, by Newton's method: the optimum is unique and finite for any data ---
# minimise over b, β   Σ_i w_i (log(1 + exp(z_i)) − y_i z_i) + ½ Σ_j λ_j β_j²,   z_i = b + x_iᵀβ
#
# Each step solves a weighted ridge regression, hence "iteratively reweighted least squares". A step that does not lower
# the objective is halved until it does. So the fit also reaches the minimum on separable data, where plain Newton steps
# diverge.
#
# This code replaces scikit-learn's: it is at least as fast at these sizes, supports empty classes, and
# needs only numpy (`design/fitting.md`).
#
# Reference: Hastie, Tibshirani, Friedman, The elements of statistical learning, section 4.4.1.

_STEPS = 60
"""Newton takes 4 to 8 steps; on separable data without a penalty, which has no minimum, it would not end."""
_HALVINGS = 40
_LEVEL = 1e-12
"""A change of the intercept that counts as rounding."""
_ENOUGH = 1e-14
"""The squared Newton decrement per row at which the next step is the last. A step squares the error, so only rounding
is left."""
_MANY = 20_000
"""With more rows the first steps use a tenth of them: they need not be exact."""
_TENTH = 10
_ROUGHLY = 1e-4
"""`_ENOUGH` for those first steps."""
_LEAST_CURVATURE = 1e-10
"""The least curvature of a row, for rows that the model is sure of. It shortens steps but does not move the optimum."""
_UNSEEN = 0.5
"""Added to each class if one is empty (Jeffreys' prior): after 10 rows, all right, the estimate is 1 in 22 wrong."""


def logistic(
    rows: Floats,
    y: Floats,
    penalty: Floats | float,
    *,
    weights: Floats | None = None,
) -> Weights:
    """Fit a logistic regression.

    If all y are 0, or all 1, the intercept would have no finite optimum: the weights are then 0, and the intercept is
    that of the data with half a row added to each class.

    Args:
        rows: float64 (n, D), a design's columns, without a column for the intercept.
        y: float64 (n,) in 0..1; shares are allowed.
        penalty: λ ≥ 0, one for all columns or one each; scikit-learn's C is 1/λ.
        weights: float64 (n,) ≥ 0, the weight of each row.

    >>> fit = logistic(np.array([[-1.0], [-1.0], [1.0], [1.0]]), np.array([0.0, 1.0, 1.0, 1.0]), penalty=1.0)
    >>> round(fit.intercept, 6), fit.weights.round(6)
    (1.184198, array([0.583377]))
    """
    task = _task(rows, y, penalty, weights)
    total = float(len(task.y)) if task.weights is None else float(task.weights.sum())
    right = float(task.y.sum() if task.weights is None else task.weights @ task.y)
    if right <= 0.0 or right >= total:
        return Weights(_logit((right + _UNSEEN) / (total + 2 * _UNSEEN)), np.zeros(task.penalty.size))
    start = Weights(_logit(right / total), np.zeros(task.penalty.size))
    if len(task.y) > _MANY:
        start = _newton(task.tenth(), start, _ROUGHLY * total / _TENTH)
    return _newton(task, start, _ENOUGH * total)


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    rows: Floats
    y: Floats
    penalty: Floats
    weights: Floats | None

    def tenth(self) -> _Task:
        """Return every tenth row, with a tenth of the penalty: about the same minimum."""
        weights = None if self.weights is None else self.weights[::_TENTH]
        # A contiguous copy for BLAS: a strided view would be gathered again in each product.
        rows = np.ascontiguousarray(self.rows[::_TENTH])
        return _Task(rows, self.y[::_TENTH], self.penalty / _TENTH, weights)

    def loss(self, z: Floats, slopes: Floats) -> float:
        each = np.logaddexp(0.0, z) - self.y * z
        pulled = 0.5 * float(self.penalty @ np.square(slopes))
        return float(each.sum() if self.weights is None else self.weights @ each) + pulled


def _task(rows: Floats, y: Floats, penalty: Floats | float, weights: Floats | None) -> _Task:
    many, columns = checked_rows(rows).shape
    target = checked_column("y", y, many, least=0.0)
    if target.max() > 1.0:
        raise UsageError("y: every number must lie in 0..1.")
    penalties = checked_column("penalty", penalty, columns, least=0.0)
    counted = None if weights is None else checked_column("weights", weights, many, least=0.0)
    if counted is not None and not counted.sum() > 0:
        raise UsageError("weights: they are all 0, so there is nothing to fit on.")
    return _Task(rows, target, penalties, counted)


def _newton(task: _Task, start: Weights, enough: float) -> Weights:
    at, z = start, start.of(task.rows)
    loss = task.loss(z, at.weights)
    for _ in range(_STEPS):
        step, decrement = _step(task, at, z)
        moved = step.of(task.rows)
        share = 1.0
        for _ in range(_HALVINGS):
            trial = Weights(at.intercept + share * step.intercept, at.weights + share * step.weights)
            trial_loss = task.loss(z + share * moved, trial.weights)
            if trial_loss <= loss:
                break
            share /= 2
        else:
            return at  # no step lowers the objective: only rounding is left
        at, z, loss = trial, z + share * moved, trial_loss
        if decrement <= enough:
            return at
    return _levelled(task, at)


def _levelled(task: _Task, at: Weights) -> Weights:
    """Return weights after the last allowed step, with the best intercept for these slopes.

    A column a million times as wide as the others moves only by its minimum curvature, and the intercept lags behind.
    """
    counted = 1.0 if task.weights is None else task.weights
    for _ in range(_STEPS):
        p = probabilities(at.of(task.rows))
        stiffness = max(float(np.sum(counted * p * (1.0 - p))), _LEAST_CURVATURE)
        rise = float(np.sum(counted * (task.y - p))) / stiffness
        at = Weights(at.intercept + math.copysign(min(abs(rise), 1.0), rise), at.weights)
        if abs(rise) <= _LEVEL:
            break
    return at


def _step(task: _Task, at: Weights, z: Floats) -> tuple[Weights, float]:
    """Return Newton's step, and the squared decrement, which is twice the expected gain of the step."""
    p = probabilities(z)
    residual = task.y - p
    curvature = np.maximum(p * (1.0 - p), _LEAST_CURVATURE)
    if task.weights is not None:
        residual *= task.weights
        curvature *= task.weights
    # With columns centred under these curvatures, intercept and slopes are solved separately.
    stiffness = float(curvature.sum())
    centre = curvature @ task.rows / stiffness
    level = float(residual.sum())
    uphill = residual @ task.rows - level * centre - task.penalty * at.weights
    gram = centred_gram(task.rows, centre, curvature)
    uphill[gram.diagonal() == 0.0] = 0.0  # for a constant column this is rounding
    gram.flat[:: len(gram) + 1] += task.penalty
    slopes = factored(gram).solve(uphill)
    rise = level / stiffness
    return Weights(rise - float(centre @ slopes), slopes), level * rise + float(uphill @ slopes)


def probabilities(z: Floats) -> Floats:
    """Return 1 / (1 + exp(−z)) without overflow, for fitting only: serving has its own arithmetic.

    >>> probabilities(np.array([0.0, 1000.0])).tolist()
    [0.5, 1.0]
    """
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * z)))


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)


# --- Platt's calibration: from logits of questions that a model has not seen to calibrated probabilities ---


class Slope(NamedTuple):
    """P = 1 / (1 + exp(−(slope · logit + offset))), slope ≥ 0: the order of the logits is kept, or all become equal."""

    slope: float
    offset: float


def platt(logit: Floats, y: Floats) -> Slope:
    """Return the slope and offset under which out-of-fold logits are calibrated.

    The targets are Platt's: (N₊ + 1)/(N₊ + 2) for y = 1 and 1/(N₋ + 2) for y = 0, so that a few perfectly separated
    rows do not give probabilities of 0 or 1. If the logits point the wrong way, the slope is 0: the same probability
    for all.

    Args:
        logit: float64 (n,), from models that did not see the row's group (`folds`).
        y: float64 (n,), 0 or 1; a share counts as a part of each.

    Reference: Platt, Probabilistic outputs for support vector machines (1999); Lin, Lin & Weng, A note on Platt's
    probabilistic outputs (Machine Learning 68, 2007).

    >>> platt(np.array([2.0, 1.0, -1.0, -2.0]), np.array([0.0, 0.0, 1.0, 1.0])).slope
    0.0
    """
    column = checked_column("logit", logit, len(logit))
    target = checked_column("y", y, len(column), least=0.0)
    if target.max(initial=0.0) > 1.0:
        raise UsageError("y: every number must lie in 0..1.")
    counted = np.ones_like(target)
    right = float(counted @ target)
    wrong = float(counted.sum()) - right
    smoothed = target * ((right + 1.0) / (right + 2.0)) + (1.0 - target) / (wrong + 2.0)
    offset, slope = logistic(column[:, None], smoothed, 0.0, weights=counted)
    if slope[0] > 0:
        return Slope(float(slope[0]), offset)
    return Slope(0.0, logistic(np.zeros((len(column), 1)), smoothed, 0.0, weights=counted).intercept)
