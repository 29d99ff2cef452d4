"""The design of a fitted linear model: how raw features are clipped, scaled, marked as missing and multiplied."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.errors import UsageError
from cascade.policies.design import Design

CLIPPED_AT = (0.01, 0.99)
"""Quantiles: one outlier in a hundred must not set the slope of all the others."""
_LEAST_ODD = 5
"""Rows that must differ from all others for a column that is nearly constant to count as varying."""
_FLAT = 1e-12
"""A standard deviation, as a share of the values' size, that is rounding and no variation."""
_SAME = 1.0 - 1e-10
"""A correlation from which two columns say the same."""
_LOOKED_AT = 4_000
"""Rows on which products are compared first; what seems superfluous there is looked at on all rows."""


def make_design(raw: Floats, *, products: bool) -> Design:
    """Return the design for raw features, float64 (n, d), NaN where missing.

    Each feature is clipped at its 1st and 99th percentile and standardised by mean and standard deviation after that;
    one that does not vary becomes a column of zeros. One that hardly does, so that both percentiles are the same, is
    clipped nowhere, and must differ in 5 rows to count. Each that is missing anywhere has an indicator column.

    With `products`, all squares and products of two columns follow, but those that are constant or say exactly what a
    column before them says (the square of a 0-1 feature, the product with its own indicator). That is up to
    (d + i)(d + i + 1)/2 columns, each with a weight to be learned: with some 1,000 rows products help up to about 15
    features and harm beyond. Which features to hand over, and whether with products, is the caller's to decide.

    Raises:
        UsageError: there is no row.

    >>> design = make_design(np.array([[0.0, 5.0], [1.0, 5.0], [0.0, np.nan], [1.0, np.nan]]), products=True)
    >>> design.rows(np.array([[1.0, 5.0], [0.0, np.nan]])).round(6)
    array([[ 1.,  0.,  0.,  0.],
           [-1.,  0.,  1., -1.]])
    >>> design.pairs.tolist()
    [[0, 2]]
    """
    if raw.ndim != 2 or not len(raw):
        raise UsageError(f"There is nothing to fit on: features of shape {raw.shape}.")
    parts = [_column(raw[:, place]) for place in range(raw.shape[1])]
    centre, scale, low, high = (np.array([part[which] for part in parts], dtype=np.float64) for which in range(4))
    missing = np.flatnonzero(np.isnan(raw).any(axis=0))
    plain = Design(centre, scale, low, high, missing, np.empty((0, 2), dtype=np.int64))
    return with_products(plain, raw) if products else plain


def with_products(plain: Design, raw: Floats) -> Design:
    """Return a design without products, with those that are worth a column on raw features float64 (n, d)."""
    return Design(plain.centre, plain.scale, plain.low, plain.high, plain.indicators, _pairs(plain, raw))


class _Column(NamedTuple):
    centre: float
    scale: float
    low: float
    high: float


def _column(values: Floats) -> _Column:
    known = values[np.isfinite(values)]
    if not known.size:
        return _Column(0.0, 1.0, 0.0, 0.0)
    low, middle, high = (float(value) for value in np.quantile(known, (CLIPPED_AT[0], 0.5, CLIPPED_AT[1])))
    if low == high and np.count_nonzero(known != middle) >= _LEAST_ODD:
        low, high = float(known.min()), float(known.max())
    clipped = np.clip(known, low, high)
    # Numbers of 1e200 have a variance beyond float64: such a column counts as constant.
    with np.errstate(over="ignore", invalid="ignore"):
        centre, scale = float(clipped.mean()), float(clipped.std())
    if np.isfinite(centre) and np.isfinite(scale) and scale > _FLAT * max(abs(low), abs(high)):
        return _Column(centre, scale, low, high)
    return _Column(middle, 1.0, middle, middle)


def _pairs(plain: Design, raw: Floats) -> Ints:
    """Return the products worth a column, int64 (p, 2): not constant, and like none before."""
    some = np.unique(np.linspace(0, len(raw) - 1, min(len(raw), _LOOKED_AT)).round().astype(np.int64))
    columns = plain.rows(raw[some])
    first, second = np.triu_indices(columns.shape[1])
    normed = _normed(np.concatenate([columns, columns[:, first] * columns[:, second]], axis=1))
    alike = np.abs(normed.T @ normed) >= _SAME
    flat = np.asarray(~normed.any(axis=0))
    whole = plain.rows(raw) if len(some) < len(raw) else columns
    many = columns.shape[1]

    def column(place: int) -> Floats:
        if place < many:
            return whole[:, [place]]
        return whole[:, [first[place - many]]] * whole[:, [second[place - many]]]

    kept = [place for place in range(many) if not flat[place]]
    found = []
    for place in range(many, normed.shape[1]):
        twins = [other for other in kept if alike[other, place]]
        if (flat[place] and _constant(column(place))) or any(_same(column(place), column(one)) for one in twins):
            continue
        kept.append(place)
        found.append((first[place - many], second[place - many]))
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _constant(column: Floats) -> bool:
    return not _normed(column).any()


def _same(one: Floats, other: Floats) -> bool:
    return bool(abs((_normed(one) * _normed(other)).sum()) >= _SAME)


def _normed(columns: Floats) -> Floats:
    """Return columns about their means, at length 1; those that do not vary as zeros."""
    centred = columns - columns.mean(axis=0)
    length = np.sqrt(np.square(centred).sum(axis=0))
    flat: Bools = length <= _FLAT * np.sqrt(len(columns)) * (1.0 + np.abs(columns).max(axis=0, initial=0.0))
    centred[:, flat] = 0.0
    return np.asarray(centred / np.where(flat, 1.0, length))
