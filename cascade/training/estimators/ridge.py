"""Ridge regression, factorised once and solved for many targets: backward induction asks for dozens of them.

    minimise over b, β   Σ_i w_i (y_i − b − x_iᵀβ)² + Σ_j λ_j (β_j − prior_j)²

The intercept b is not penalised. λ is not scaled by n: what a penalty means does not hang on how the rows were cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.errors import UsageError
from cascade.training.estimators.factor import Factor, centred_gram, checked_column, checked_rows, factored


class Weights(NamedTuple):
    """What a linear form is made of: intercept + Σ_j weights_j · column_j; weights float64 (D,)."""

    intercept: float
    weights: Floats

    def of(self, rows: Floats) -> Floats:
        """Return the form's value for each of the rows fitted on or held out, (n, D) -> (n,): for fitting alone.

        What is served adds in another order (`policies.estimators.Linear`), and may differ in the last bits.
        """
        return np.asarray(rows @ self.weights + self.intercept)


@dataclass(frozen=True, slots=True, eq=False)
class Ridge:
    """A design factorised for one penalty: `prepare`, then `solve` for each column of targets.

    Preparing costs n·D² + D³, each solution n·D. Columns that are constant keep the prior's weight (0 without one);
    collinear ones share what they explain.

    Attributes:
        rows: float64 (n, D), not copied.
        penalty, prior: float64 (D,).
        weights: float64 (n,) or None, of the rows.
        centre: float64 (D,), the columns' (weighted) means.
        gram: float64 (D, D), centred.
        factor: of gram + diag(penalty).

    >>> x = np.array([[-1.0], [0.0], [1.0]])
    >>> prepared = Ridge.prepare(x, penalty=2.0)
    >>> prepared.solve(np.array([0.0, 1.0, 2.0])), prepared.solve(np.array([4.0, 0.0, -4.0]))
    (Weights(intercept=1.0, weights=array([0.5])), Weights(intercept=0.0, weights=array([-2.])))
    """

    rows: Floats
    penalty: Floats
    prior: Floats
    weights: Floats | None
    centre: Floats
    gram: Floats
    factor: Factor

    @classmethod
    def prepare(
        cls,
        rows: Floats,
        penalty: Floats | float,
        prior: Floats | None = None,
        weights: Floats | None = None,
    ) -> Ridge:
        """Factorise.

        Args:
            rows: float64 (n, D), a design's columns without one for the intercept.
            penalty: λ ≥ 0, one for all columns or one each, (D,).
            prior: float64 (D,), the weights to shrink towards; 0 without.
            weights: float64 (n,) ≥ 0, what each row counts.

        Raises:
            UsageError: there is no row, a number is not finite or negative where it may not be, or shapes differ.
        """
        many, columns = checked_rows(rows).shape
        penalties = checked_column("penalty", penalty, columns, least=0.0)
        aim = checked_column("prior", 0.0 if prior is None else prior, columns)
        counted = None if weights is None else checked_column("weights", weights, many, least=0.0)
        if counted is not None and not counted.sum() > 0:
            raise UsageError("weights: they are all 0, so that there is nothing to fit on.")
        centre = mean_of(rows, counted)
        gram = centred_gram(rows, centre, counted)
        return cls(rows, penalties, aim, counted, centre, gram, factored(gram + np.diag(penalties)))

    def solve(self, y: Floats, weights: Floats | None = None) -> Weights:
        """Return the minimiser for targets y, float64 (n,).

        With other `weights` of the rows than those prepared for, everything is factorised anew: it costs as much as
        preparing.

        Raises:
            UsageError: y or weights are not finite, or not of the rows' number.
        """
        if weights is not None:
            return Ridge.prepare(self.rows, self.penalty, self.prior, weights).solve(y)
        target = checked_column("y", y, len(self.rows))
        mean = float(mean_of(target, self.weights))
        residual = target - mean
        if self.weights is not None:
            residual *= self.weights
        # The residuals sum to 0, so that the columns' means drop out of this product.
        right = residual @ self.rows - residual.sum() * self.centre - self.gram @ self.prior
        right[self.gram.diagonal() == 0.0] = 0.0  # of a constant column this is rounding
        found = self.prior + self.factor.solve(right)
        return Weights(mean - float(self.centre @ found), found)


def mean_of(values: Floats, weights: Floats | None) -> Floats:
    """Return the (weighted) mean over the first axis."""
    if weights is None:
        return np.asarray(values.mean(axis=0))
    return np.asarray(weights @ values / weights.sum())
