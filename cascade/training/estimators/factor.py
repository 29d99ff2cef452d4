"""Solves with a symmetric matrix that may be singular, factorised once: what the linear estimators rest on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.errors import UsageError

_WEAK = 1e-5
"""A pivot of a Cholesky factor, of a matrix with ones on its diagonal, below which columns count as collinear: the
condition number is then about 1e10, and the solution has six digits left."""
_NOTHING = 1e-11
"""An eigenvalue, as a share of the largest, that is rounding: D · 2.2e-16 at D = 1,000, with a margin."""
_FLAT = 1e-12
"""A column's standard deviation, as a share of its size, that is rounding and no variation."""
_ROWS = 2048
"""Rows worked on at once: 150 columns of them stay in the processor's cache."""


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
        """Return x with A x = right, (D,); where A is singular, the least squares solution of least scaled norm."""
        return np.asarray(self.scale * (self.root.T @ (self.root @ (self.scale * right))))


def factored(matrix: Floats) -> Factor:
    """Factorise: by Cholesky, or by eigenvalues where columns are collinear. Rows and columns of zeros are left out.

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


def plus_diagonal(matrix: Floats, penalty: Floats) -> Floats:
    """Add penalties to a matrix's diagonal, in place, and return it."""
    matrix.flat[:: len(matrix) + 1] += penalty
    return matrix


def centred_gram(rows: Floats, centre: Floats, weights: Floats | None = None) -> Floats:
    """Return Σ_i w_i (x_i − c)(x_i − c)ᵀ, float64 (D, D): in blocks, so that no copy of the rows is held.

    A column that varies by no more than rounding has zeros in its row and column.
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
    """Return design rows as they are.

    Raises:
        UsageError: there are none, or a number in them is not finite.
    """
    if rows.ndim != 2 or not len(rows):
        raise UsageError(f"There is nothing to fit on: rows of shape {rows.shape}.")
    if not np.isfinite(rows).all():
        raise UsageError("The rows to fit on hold a number that is not finite.")
    return rows


def checked_column(name: str, values: Floats | float, many: int, *, least: float = -np.inf) -> Floats:
    """Return one number for each of `many`, float64 (many,); of a single number, it repeated.

    Raises:
        UsageError: there are more or fewer, or one is not finite or below `least`.
    """
    column = np.asarray(values, dtype=np.float64)
    if column.ndim == 0:
        column = np.full(many, float(column))
    if column.shape != (many,):
        raise UsageError(f"{name}: {many} numbers are needed, not an array of shape {column.shape}.")
    if not np.isfinite(column).all() or (column < least).any():
        raise UsageError(f"{name}: every number is finite" + (f" and at least {least:g}." if least > -np.inf else "."))
    return column
