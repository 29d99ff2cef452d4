"""Gradient-boosted regression trees, fitted by scikit-learn and exported as plain arrays.

Serving needs numpy alone. scikit-learn is imported only where it is used. `design/fitting.md` says why its
histogram-based trees were chosen, and not its older ones or LightGBM.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.errors import CascadeError, MissingExtraError, UsageError
from cascade.policies.estimators import Constant
from cascade.policies.trees import Trees
from cascade.training.estimators import checked_column, one_thread

_TREES = 60
"""How many trees are fitted, each to the residuals of those before it."""
_CHECKED = 256
"""Rows on which the exported trees are compared with scikit-learn's own predictions."""
_AGREE = 1e-9
"""A share of the largest prediction. The two agree to the bit if both sum in the same order, as they do today."""


def boosted(
    raw: Floats,
    y: Floats,
    *,
    seed: int,
    leaves: int = 8,
    learning_rate: float = 0.1,
    least_rows: int = 20,
) -> Trees:
    """Fit trees to squared error, each to the residuals of the trees before it.

    The same rows and seed give the same trees, to the bit, whatever the number of cores. A missing value goes to the
    side that fits the training rows better; if a feature was never missing, the trees record that (`foreseen`). An
    infinite value counts as the largest or least finite one. If there are more than 200,000 rows, `seed` draws those
    that set the bins. At most 64 leaves of a tree can be served; `least_rows` is the fewest of a leaf, and
    `learning_rate` the share of each tree that is added.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        UsageError: there is no row, or y is not finite or does not have one number for each row.
        CascadeError: the exported trees do not predict what scikit-learn does: its internals have changed.

    Reference: Friedman, Greedy function approximation (2001); Ke et al., LightGBM (2017), the method in scikit-learn.
    """
    regressor = _sklearn()
    missing = np.isnan(raw)
    finite = _finite(raw, missing)
    target = checked_column("y", y, len(finite))
    model = regressor(
        max_iter=_TREES,
        max_leaf_nodes=leaves,
        learning_rate=learning_rate,
        min_samples_leaf=least_rows,
        early_stopping=False,
        random_state=seed,
    )
    with one_thread():
        model.fit(finite, target)
        expected = model.predict(finite[:_CHECKED])
    found = exported(model, np.asarray(missing.any(axis=0)))
    _agree(found, finite[:_CHECKED], expected)
    return found


def exported(model: Any, foreseen: Bools) -> Trees:
    """Return a fitted HistGradientBoostingRegressor, for numeric features and one target, as plain arrays.

    `foreseen`: bool (d,), the features that were missing in training.

    scikit-learn keeps its trees in private fields, the same in 1.5 and 1.9. `boosted` checks what they predict.
    """
    parts = [predictor.nodes for (predictor,) in model._predictors]  # noqa: SLF001 - see above
    sizes = [len(part) for part in parts]
    begin = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    nodes, shift = np.concatenate(parts), np.repeat(begin, sizes)
    leaf = nodes["is_leaf"].astype(np.bool_)
    # A split between known and missing values has an infinite threshold: every known value goes left.
    threshold = np.minimum(nodes["num_threshold"], np.finfo(np.float64).max)
    return Trees(
        feature=np.where(leaf, 0, nodes["feature_idx"]),
        threshold=np.where(leaf, 0.0, threshold),
        left=np.where(leaf, -1, nodes["left"] + shift),
        right=np.where(leaf, -1, nodes["right"] + shift),
        missing_left=~leaf & nodes["missing_go_to_left"].astype(np.bool_),
        leaf=np.where(leaf, nodes["value"], 0.0),
        roots=begin,
        intercept=float(np.ravel(model._baseline_prediction)[0]),  # noqa: SLF001 - see above
        foreseen=foreseen,
    )


def _agree(found: Trees, raw: Floats, expected: Floats) -> None:
    mine = found.values(raw)
    if np.abs(mine - expected).max() > _AGREE * max(1.0, float(np.abs(expected).max())):
        raise CascadeError(
            "The trees exported from scikit-learn do not predict what it does: its internal format has changed. "
            "Install a version that cascade was tested with (constraints.txt), and please report this."
        )


def _finite(raw: Floats, missing: Bools) -> Floats:
    """Return raw features for scikit-learn: infinite values as the largest or least finite ones, empty columns as 0."""
    made = np.array(raw, dtype=np.float64)
    if made.ndim != 2 or not len(made):
        raise UsageError(f"There is nothing to fit on: features of shape {made.shape}.")
    for column in np.flatnonzero(missing.all(axis=0) | np.isinf(made).any(axis=0)):
        values = made[:, column]
        known = values[np.isfinite(values)]
        low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
        made[:, column] = np.nan_to_num(values, nan=np.nan if known.size else 0.0, posinf=high, neginf=low)
    return made


def _sklearn() -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ModuleNotFoundError:
        raise MissingExtraError("scikit-learn", "Fitting boosted trees") from None
    return HistGradientBoostingRegressor


_MANY = 10_000
"""The number of questions from which larger trees pay; with fewer, targets are mostly noise."""


def grown(raw: Floats, y: Floats, seed: int) -> Trees | Constant:
    """Fit trees to targets (k,) of raw features (k, d); return the mean if rows or features are too few for a cut."""
    least = min(max(20, y.size // 20), 200)
    if y.size < 2 * least or not raw.shape[1]:
        return Constant(float(y.mean()))
    if y.size < _MANY:
        return boosted(raw, y, seed=seed, leaves=4, learning_rate=0.05, least_rows=least)
    return boosted(raw, y, seed=seed, least_rows=least)
