"""What an engineer would do without this library, at its strongest: thresholds on one score, certified or not.

Each way is given the rows that the library is given, and may ask the reference at once where no certified threshold is
cheaper on those rows: that keeps the promise, for it has no regret.

* `mapie`: MAPIE's fixed sequence (`ltt_procedure`) along 400 quantiles of the score, strictest first, one threshold for
  all rungs. With binary losses its p-value is the exact binomial one.
* `exact`: the exact binomial fixed sequence along every place where the empirical loss jumps. All rows certify.
* `quantiles`: one threshold a rung, the same quantile of each rung's own score, tested likewise. All rows certify.
* `rungs`: one threshold a rung. Half of the rows (whole groups) find by exhaustive search, for each number of losses,
  the cheapest thresholds on a grid; the other half tests them, fewest losses first. With one rung it is `exact`.
* `uncertified`: the cheapest thresholds of that search on all rows, of those that lose no more than alpha.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from mapie.risk_control._base_controller import ltt_procedure

from cascade.calibration.samples import doubt_of
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.conformal.ltt import certified_points
from cascade.episodes.schema import GUIDE_ONLY, LAST_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.evaluate import numbered
from cascade.guarantees.questions import reference_right

GRID = 400
"""Quantiles along which MAPIE tests."""
CELLS = 200_000
"""Combinations of thresholds that an exhaustive search looks at."""


class Rows(NamedTuple):
    """Questions as a ladder of T models answers them.

    Attributes:
        doubt: float64 (n, T − 1), the score of each rung but the last: higher is less sure, +inf = unknown.
        loss: bool (n, T), whether stopping at a rung serves a wrong answer where the reference is right.
        cost: int64 (n, T), nano-USD paid up to a rung.
        reference: int64 (n,), what the reference alone costs.
        group: int64 (n,), the questions' groups.
    """

    doubt: Floats
    loss: Bools
    cost: Ints
    reference: Ints
    group: Ints

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.doubt.shape[0])

    @property
    def rungs(self) -> int:
        """Rungs that a threshold stands behind."""
        return int(self.doubt.shape[1])

    def take(self, some: Ints | Bools) -> Rows:
        """Return the chosen questions."""
        doubt, loss, cost, reference, group = self
        return Rows(doubt[some], loss[some], cost[some], reference[some], group[some])


class Served(NamedTuple):
    """What serving some questions came to: the mean cost ÷ the reference's, the regret, whether a saving is certified.

    `certified` is None for a way that has no certificate.
    """

    ratio: float
    regret: float
    certified: bool | None


def rows_of(table: EpisodeTable) -> Rows:
    """Return a ladder's questions, every one answered by every model."""
    walk = next(table.walks[name] for name in (GUIDE_ONLY, LAST_ONLY) if name in table.walks)
    loss = ~table.arrays.correct[:, :, 0] & reference_right(table)[:, None]
    loss[:, -1] = False  # the last model is the reference
    doubt = _score(table)[:, :-1]
    return Rows(doubt, loss, np.cumsum(table.arrays.cost, axis=1), walk.cost, numbered(table.groups))


def _score(table: EpisodeTable) -> Floats:
    """Return the one score: the log's measure of doubt; else the tokens of each step, a long answer being doubtful."""
    doubt = doubt_of(table)
    if doubt is not None:
        return doubt.read(table)
    return np.nan_to_num(table.tokens, nan=0.0)


# --- paths: (P, T − 1) thresholds, strictest first ---


def stops(rows: Rows, thresholds: Floats) -> Ints:
    """Return the rung at which each question stops, int64 (n,): the first whose doubt is no higher than its threshold.

    Args:
        rows: the questions.
        thresholds: float64 (T − 1,); −inf stops nowhere.
    """
    keeps = (rows.doubt <= thresholds) & (thresholds > -np.inf)
    return np.asarray(np.where(keeps.any(axis=1), keeps.argmax(axis=1), rows.rungs), dtype=np.int64)


def _along(rows: Rows, path: Floats) -> tuple[Ints, Ints]:
    """Return the losses and the total cost at each point, int64 (P,)."""
    each, losses, cost = np.arange(rows.n), [], []
    for point in path:
        stop = stops(rows, point)
        losses.append(np.count_nonzero(rows.loss[each, stop]))
        cost.append(int(rows.cost[each, stop].sum()))
    return np.array(losses, dtype=np.int64), np.array(cost, dtype=np.int64)


def _shared(rows: Rows, thresholds: Floats) -> tuple[Ints, Ints]:
    """Return the same where one threshold holds for all rungs: a question stops where its least doubt so far passes."""
    least = np.minimum.accumulate(rows.doubt, axis=1)
    losses, cost = np.zeros(thresholds.size, dtype=np.int64), np.zeros(thresholds.size, dtype=np.int64)
    cost += rows.cost[:, -1].sum()
    for rung in range(rows.rungs):
        gone, spent = least[:, rung], rows.cost[:, rung] - rows.cost[:, rung + 1]
        losses += _below(gone, rows.loss[:, rung].astype(np.int64) - rows.loss[:, rung + 1], thresholds)
        cost += _below(gone, spent, thresholds)
    return losses, cost


def _below(values: Floats, weights: Ints, thresholds: Floats) -> Ints:
    """Return the weights of the values that are no higher than each threshold, summed; −inf passes none."""
    order = np.argsort(values, kind="stable")
    sums = np.concatenate([[0], np.cumsum(weights[order])])
    return np.asarray(sums[np.searchsorted(values[order], thresholds, side="right")], dtype=np.int64)


# --- the ways ---


class Chosen(NamedTuple):
    """Thresholds to serve at; None where the reference is asked at once."""

    thresholds: Floats | None
    certified: bool | None


def _cheapest(rows: Rows, path: Floats, cost: Ints, certified: bool | None) -> Chosen:
    """Return the cheapest point of those that may be served, or the reference where none is cheaper."""
    if not cost.size or cost.min() >= rows.reference.sum():
        return Chosen(None, None if certified is None else False)
    return Chosen(path[int(cost.argmin())], certified)


def mapie(rows: Rows, alpha: float, delta: float) -> Chosen:
    """MAPIE's fixed sequence along quantiles of the score."""
    values = rows.doubt[np.isfinite(rows.doubt)]
    grid = np.unique(np.quantile(values, np.linspace(0, 1, GRID), method="lower")) if values.size else np.array([0.0])
    losses, cost = _shared(rows, grid)
    sizes = np.full((1, grid.size), rows.n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a ladder's risk along the grid need not be monotone
        valid, _ = ltt_procedure(losses[None, :] / rows.n, np.array([[alpha]]), delta, sizes, True, "fixed_sequence")
    passed = np.array(valid[0], dtype=np.int64)
    return _cheapest(rows, _same(grid[passed], rows.rungs), cost[passed], certified=True)


def exact(rows: Rows, alpha: float, delta: float) -> Chosen:
    """Every place where the empirical loss jumps, tested by the exact binomial law."""
    grid = np.unique(np.minimum.accumulate(rows.doubt, axis=1))
    losses, cost = _shared(rows, grid)
    front = certified_points(losses, rows.n, alpha, delta)
    return _cheapest(rows, _same(grid[:front], rows.rungs), cost[:front], certified=True)


def quantiles(rows: Rows, alpha: float, delta: float) -> Chosen:
    """Each rung at the same quantile of its own score."""
    path = np.quantile(rows.doubt, np.linspace(0, 1, GRID), axis=0, method="lower")
    losses, cost = _along(rows, path)
    front = certified_points(losses, rows.n, alpha, delta)
    return _cheapest(rows, path[:front], cost[:front], certified=True)


def rungs(rows: Rows, alpha: float, delta: float) -> Chosen:
    """One threshold a rung: half of the rows order the thresholds, the other half certifies them."""
    if rows.rungs == 1:
        return exact(rows, alpha, delta)
    half = np.random.default_rng(29).permutation(int(rows.group.max()) + 1) % 2 == 0
    trains = half[rows.group]
    path = searched(rows.take(trains), 2 * alpha)
    tests = rows.take(~trains)
    losses, _ = _along(tests, path)
    front = path[: certified_points(losses, tests.n, alpha, delta)]
    return _cheapest(rows, front, _along(rows, front)[1], certified=True)


def uncertified(rows: Rows, alpha: float, delta: float) -> Chosen:  # noqa: ARG001 - it promises nothing
    """One threshold a rung, tuned on all rows."""
    path = searched(rows, alpha)
    return _cheapest(rows, path, _along(rows, path)[1], certified=None)


def searched(rows: Rows, most: float) -> Floats:
    """Return the cheapest thresholds for each number of losses up to a share of the rows, fewest losses first.

    The search is exhaustive over a grid of quantiles a rung, "nowhere" among them: the losses and the costs of all
    combinations are running sums over histograms of the rungs' places on the grid.
    """
    many = min(GRID, int(CELLS ** (1 / rows.rungs)) - 1)
    grids = [np.append(-np.inf, _spread(rows.doubt[:, rung], many)) for rung in range(rows.rungs)]
    place = np.stack([np.searchsorted(grid, rows.doubt[:, t], side="left") for t, grid in enumerate(grids)], axis=1)
    shape = tuple(grid.size for grid in grids)
    losses, cost = _summed(place, rows.loss.astype(np.int64), shape), _summed(place, rows.cost, shape)
    few = np.flatnonzero(losses <= most * rows.n)
    order = few[np.lexsort((cost[few], losses[few]))]
    cheaper = np.append(True, cost[order][1:] < np.minimum.accumulate(cost[order])[:-1])
    front = order[cheaper]
    return np.stack([grid[at] for grid, at in zip(grids, np.unravel_index(front, shape), strict=True)], axis=1)


def _spread(values: Floats, many: int) -> Floats:
    known = np.unique(values[np.isfinite(values)])
    if known.size <= many:
        return known
    return np.unique(np.quantile(values[np.isfinite(values)], np.linspace(0, 1, many), method="lower"))


def _summed(place: Ints, weights: Ints, shape: tuple[int, ...]) -> Ints:
    """Return for all combinations of thresholds the weights at the rungs where the questions stop, flat.

    Args:
        place: int64 (n, T − 1), the first place on each rung's grid at which the question stops there.
        weights: int64 (n, T).
        shape: the sizes of the grids.
    """
    total = np.zeros(shape, dtype=np.int64)
    for rung in range(len(shape) + 1):
        wide = tuple(size + 1 for size in shape[: rung + 1])  # a place for questions that stop nowhere on the grid
        cells = np.zeros(wide, dtype=np.int64)
        np.add.at(cells, tuple(place[:, : rung + 1].T), weights[:, rung])
        for axis in range(min(rung, len(shape))):
            cells = np.flip(np.cumsum(np.flip(cells, axis), axis=axis), axis).take(range(1, wide[axis]), axis=axis)
        if rung < len(shape):
            cells = np.cumsum(cells, axis=rung).take(range(wide[rung] - 1), axis=rung)
        total += cells.reshape(cells.shape + (1,) * (len(shape) - cells.ndim))
    return total.reshape(-1)


def _same(thresholds: Floats, rungs_: int) -> Floats:
    return np.repeat(thresholds[:, None], rungs_, axis=1)


WAYS: Mapping[str, Callable[[Rows, float, float], Chosen]] = {
    "mapie": mapie,
    "exact": exact,
    "quantiles": quantiles,
    "rungs": rungs,
    "uncertified": uncertified,
}


def serve(chosen: Chosen, test: Rows) -> Served:
    """Return what the chosen thresholds bring on other questions."""
    if chosen.thresholds is None:
        return Served(1.0, 0.0, chosen.certified)
    each, stop = np.arange(test.n), stops(test, chosen.thresholds)
    ratio = float(test.cost[each, stop].sum() / test.reference.sum())
    return Served(ratio, float(test.loss[each, stop].mean()), chosen.certified)
