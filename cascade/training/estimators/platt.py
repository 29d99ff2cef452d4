"""Platt's calibration: from logits of questions that a model has not seen to probabilities that hold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.errors import UsageError
from cascade.training.estimators.factor import checked_column
from cascade.training.estimators.irls import logistic


class Slope(NamedTuple):
    """P = 1 / (1 + exp(−(slope · logit + offset))), slope ≥ 0: the order of the logits is kept, or given up whole."""

    slope: float
    offset: float


def platt(logit: Floats, y: Floats, weights: Floats | None = None) -> Slope:
    """Return the slope and offset under which out-of-fold logits are calibrated.

    The targets are Platt's: (N₊ + 1)/(N₊ + 2) for y = 1 and 1/(N₋ + 2) for y = 0, so that a few rows that are told
    apart perfectly do not make anybody certain. A model whose logits point the wrong way gets slope 0: the same
    probability for all.

    Args:
        logit: float64 (n,), of models that did not see the row's group (`folds`).
        y: float64 (n,), 0 or 1; a share counts as that much of either.
        weights: float64 (n,) ≥ 0, what each row counts.

    Raises:
        UsageError: there is no row, a number is not finite, y is out of 0..1, or shapes differ.

    Reference: Platt, Probabilistic outputs for support vector machines (1999); Lin, Lin & Weng, A note on Platt's
    probabilistic outputs (Machine Learning 68, 2007).

    >>> platt(np.array([2.0, 1.0, -1.0, -2.0]), np.array([0.0, 0.0, 1.0, 1.0])).slope
    0.0
    """
    column = checked_column("logit", logit, len(logit))
    target = checked_column("y", y, len(column), least=0.0)
    if target.max(initial=0.0) > 1.0:
        raise UsageError("y: every number lies in 0..1.")
    counted = np.ones_like(target) if weights is None else checked_column("weights", weights, len(column), least=0.0)
    right = float(counted @ target)
    wrong = float(counted.sum()) - right
    smoothed = target * ((right + 1.0) / (right + 2.0)) + (1.0 - target) / (wrong + 2.0)
    offset, slope = logistic(column[:, None], smoothed, 0.0, weights=counted)
    if slope[0] > 0:
        return Slope(float(slope[0]), offset)
    return Slope(0.0, logistic(np.zeros((len(column), 1)), smoothed, 0.0, weights=counted).intercept)
