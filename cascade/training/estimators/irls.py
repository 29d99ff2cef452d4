"""Logistic regression with a penalty, by Newton's method: the maximum is one and finite, whatever the data.

    minimise over b, β   Σ_i w_i (log(1 + exp(z_i)) − y_i z_i) + ½ Σ_j λ_j (β_j − prior_j)²,   z_i = b + x_iᵀβ

Each step solves a weighted ridge regression, hence "iteratively reweighted least squares". A step that does not lower
the objective is halved until it does, so that separable data, where Newton's steps run away, end at the minimum too.

Own code rather than scikit-learn's: it is at least as fast at the sizes in question, knows a prior and classes that are
empty, and needs numpy alone (`design/estimators.md` has the figures).

Reference: Hastie, Tibshirani, Friedman, The elements of statistical learning, section 4.4.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.errors import UsageError
from cascade.training.estimators.factor import centred_gram, checked_column, checked_rows, factored, plus_diagonal
from cascade.training.estimators.ridge import Weights, mean_of

_STEPS = 60
"""Newton takes 4 to 8; separable data without a penalty, where there is no minimum, would go on for ever."""
_HALVINGS = 40
_LEVEL = 1e-12
"""A change of the intercept that is none."""
_ENOUGH = 1e-14
"""The squared Newton decrement for each row with which the last step is taken. Errors square themselves in each: what
is left is rounding."""
_MANY = 20_000
"""Rows beyond which the first steps are made on a tenth of them: they need not be exact."""
_TENTH = 10
_ROUGHLY = 1e-4
"""As `_ENOUGH`, for those first steps."""
_LEAST_CURVATURE = 1e-10
"""Of a row that the model is sure of. It makes a step shorter, and changes nothing about where the steps end."""
_UNSEEN = 0.5
"""What is added to each class where one is empty (Jeffreys' prior): after 10 rows, all right, 1 in 22 is wrong."""


def logistic(
    rows: Floats,
    y: Floats,
    penalty: Floats | float,
    *,
    prior: Floats | None = None,
    weights: Floats | None = None,
) -> Weights:
    """Fit.

    Where all y are 0, or all 1, nothing tells rows apart and no intercept would be extreme enough: the weights are the
    prior's (0 without one), and the intercept is that of half a row more on either side.

    Args:
        rows: float64 (n, D), a design's columns without one for the intercept.
        y: float64 (n,) in 0..1; a share is allowed.
        penalty: λ ≥ 0, one for all columns or one each; scikit-learn's C is 1/λ.
        prior: float64 (D,), the weights to shrink towards and to begin from.
        weights: float64 (n,) ≥ 0, what each row counts.

    Raises:
        UsageError: there is no row, a number is not finite or out of its range, or shapes differ.

    >>> fit = logistic(np.array([[-1.0], [-1.0], [1.0], [1.0]]), np.array([0.0, 1.0, 1.0, 1.0]), penalty=1.0)
    >>> round(fit.intercept, 6), fit.weights.round(6)
    (1.184198, array([0.583377]))
    """
    task = _task(rows, y, penalty, prior, weights)
    total = float(len(task.y)) if task.weights is None else float(task.weights.sum())
    right = float(task.y.sum() if task.weights is None else task.weights @ task.y)
    if right <= 0.0 or right >= total:
        return _one_class(task, right, total)
    start = Weights(_logit(right / total) - float(task.centre @ task.prior), task.prior)
    if len(task.y) > _MANY:
        start = _newton(task.tenth(), start, _ROUGHLY * total / _TENTH)
    return _newton(task, start, _ENOUGH * total)


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    rows: Floats
    y: Floats
    penalty: Floats
    prior: Floats
    weights: Floats | None
    centre: Floats

    def tenth(self) -> _Task:
        """Return every tenth row, with a tenth of the penalty: about the same minimum."""
        weights = None if self.weights is None else self.weights[::_TENTH]
        # BLAS takes rows that lie side by side; every tenth of a table would be gathered anew in each product.
        rows = np.ascontiguousarray(self.rows[::_TENTH])
        return _Task(rows, self.y[::_TENTH], self.penalty / _TENTH, self.prior, weights, self.centre)

    def loss(self, z: Floats, slopes: Floats) -> float:
        each = np.logaddexp(0.0, z) - self.y * z
        pulled = 0.5 * float(self.penalty @ np.square(slopes - self.prior))
        return float(each.sum() if self.weights is None else self.weights @ each) + pulled


def _task(rows: Floats, y: Floats, penalty: Floats | float, prior: Floats | None, weights: Floats | None) -> _Task:
    many, columns = checked_rows(rows).shape
    target = checked_column("y", y, many, least=0.0)
    if target.max() > 1.0:
        raise UsageError("y: every number lies in 0..1.")
    counted = None if weights is None else checked_column("weights", weights, many, least=0.0)
    if counted is not None and not counted.sum() > 0:
        raise UsageError("weights: they are all 0, so that there is nothing to fit on.")
    penalties = checked_column("penalty", penalty, columns, least=0.0)
    aim = checked_column("prior", 0.0 if prior is None else prior, columns)
    return _Task(rows, target, penalties, aim, counted, mean_of(rows, counted))


def _one_class(task: _Task, right: float, total: float) -> Weights:
    expected = (right + _UNSEEN) / (total + 2 * _UNSEEN)
    return Weights(_logit(expected) - float(task.centre @ task.prior), task.prior)


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
            return at  # no step lowers it: what is left is rounding
        at, z, loss = trial, z + share * moved, trial_loss
        if decrement <= enough:
            return at
    return _levelled(task, at)


def _levelled(task: _Task, at: Weights) -> Weights:
    """Return weights that ran out of steps with the intercept that is best beside these slopes.

    A column a million times as wide as the others moves by its floor of curvature alone, and the intercept after it.
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
    """Return Newton's step, and the squared decrement: twice what the step is expected to gain."""
    p = probabilities(z)
    residual = task.y - p
    curvature = np.maximum(p * (1.0 - p), _LEAST_CURVATURE)
    if task.weights is not None:
        residual *= task.weights
        curvature *= task.weights
    # About the columns' means under these curvatures, intercept and slopes are solved for apart.
    stiffness = float(curvature.sum())
    centre = curvature @ task.rows / stiffness
    level = float(residual.sum())
    uphill = residual @ task.rows - level * centre - task.penalty * (at.weights - task.prior)
    gram = centred_gram(task.rows, centre, curvature)
    uphill[gram.diagonal() == 0.0] = 0.0  # of a constant column this is rounding
    slopes = factored(plus_diagonal(gram, task.penalty)).solve(uphill)
    rise = level / stiffness
    return Weights(rise - float(centre @ slopes), slopes), level * rise + float(uphill @ slopes)


def probabilities(z: Floats) -> Floats:
    """Return 1 / (1 + exp(−z)) without overflow, for fitting alone: what is served has its own arithmetic.

    >>> probabilities(np.array([0.0, 1000.0])).tolist()
    [0.5, 1.0]
    """
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * z)))


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)
