"""A policy's losses and costs on logged questions as its threshold falls, for each kind of guarantee.

| kind | the loss that falls to the allowed mean | then compared |
|---|---|---|
| `coverage` | the question is missed | cost |
| `error`, `regret` | the one answer served is wrong; for regret, and the reference right | cost |
| `agreement` | the one answer served differs from the reference's | cost |
| `preference` | people prefer the reference's output to the one served | cost |

The losses are those that the kind of guarantee certifies: a policy is chosen by the same loss that it promises.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cascade.calibration.scores import Sample
from cascade.conformal.arrays import Bools, Floats, Ints, StepFunctions
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee

# --- A policy's cost at exactly the allowed loss, and the uncertainty of the difference of two such costs
# Policies are compared at the same loss: their losses differ at any threshold, and a policy that is cheaper but misses
# more is not better. As kappa falls a policy loses less and costs more, both in jumps at the levels of `arrays`. The
# levels are sorted once. The matched point is the first level, from the top, at which the loss is at most the allowed
# one; a coin between it and the point before makes the loss exactly the allowed one (equal to `Frontier.matched`).
#
# A bootstrap replicate is a weight for each group of questions. It does not change the order of the levels, so a
# replicate is a running sum over the few levels near the point: O(n) a replicate in two products of a matrix with a
# vector, O(√n) in the running sums. Every policy gets the same weights, so differences are paired. Losses, costs and
# weights are whole numbers of their units, so no sum depends on the order of the rows.
#
# Reference: Efron & Tibshirani, An introduction to the bootstrap (1993); weights of Poisson(1) instead of multinomial
# ones, as Hanley & MacGibbon (2006).

REPLICATES = 200
"""The number of bootstrap replicates; the quantiles at 5 and 95 % are then accurate to 1.5 percentage points."""
_CELLS = 1 << 21
"""The most numbers per chunk: 16 MB for each of a few arrays."""
_WHOLE = 512
"""With at most so many points all are used: searching for a window would cost more than it saves."""
_ROUNDING = 1e-12
"""A share such as 0.29 of 100 questions is off by at most one unit in the last place."""
_FAR = 6.0
"""The half-width of a window in standard errors. If a replicate leaves the window, it is doubled."""
Weights: TypeAlias = NDArray[np.uint8]


class Units(NamedTuple):
    """The groups that the bootstrap draws: int64 (n,), each question's group number, and the number of groups."""

    of: Ints
    many: int


def units(groups: Sequence[str]) -> Units:
    """Return the groups of n questions, numbered by the order of their names. The order of the rows changes no draw.

    >>> units(["b", "a", "b"]).of.tolist()
    [1, 0, 1]
    """
    names = {name: place for place, name in enumerate(sorted(set(groups)))}
    return Units(np.fromiter((names[name] for name in groups), dtype=np.int64, count=len(groups)), len(names))


def draws(many: int, seed: int, replicates: int = REPLICATES) -> Weights:
    """Return how often each bootstrap replicate has each of `many` groups: (replicates, many), Poisson(1).

    An empty replicate, which can occur with a few groups, is replaced by one that has every group once.
    """
    found = np.random.default_rng([seed, many]).poisson(1.0, (replicates, many)).astype(np.uint8)
    found[~found.any(axis=1)] = 1
    return found


@dataclass(frozen=True, slots=True)
class CostLossCurve:
    """The losses and the compared values of n questions at P points, as kappa falls.

    Attributes:
        gap: float64 (n,), the figure that must come down to the allowed mean, before the first point.
        value: float64 (n,), the figure to be compared, smaller is better, before the first point.
        row: int64 (E,), the question of each jump, by falling level.
        gap_jump, value_jump: float64 (E,), by how much it changes.
        start: int64 (P,), where the jumps of each point begin. A point is a level at which the gap changes; jumps of
            the value alone count to the point after them, so that a point's value is the least at its gap.
    """

    gap: Floats
    value: Floats
    row: Ints
    gap_jump: Floats
    value_jump: Floats
    start: Ints

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.gap.size)


def cost_loss_curve(loss: StepFunctions, value: StepFunctions) -> CostLossCurve:
    """Return the curve of loss and compared value over n questions, as kappa falls.

    `loss` falls as kappa falls, and `value` is to be minimised.

    >>> loss = StepFunctions(np.array([1, 1]), np.array([[0.7], [0.3]]), np.array([[-1], [-1]]))
    >>> cost = StepFunctions(np.array([10, 10]), np.array([[0.7], [0.3]]), np.array([[20], [40]]))
    >>> walk = cost_loss_curve(loss, cost)
    >>> [cost_at_loss(walk, allowed) for allowed in (1.0, 0.5, 0.25, 0.0)]
    [10.0, 20.0, 30.0, 40.0]
    """
    if loss.n != value.n or not loss.n:
        raise UsageError(f"Losses and values must be of the same questions: {loss.n} losses, {value.n} values.")
    one, other = _jumps(loss), _jumps(value)
    many = one.row.size
    fall = np.concatenate([one.fall, other.fall])
    order = np.argsort(fall, kind="stable")
    changes = np.flatnonzero(order < many)
    level_end = np.searchsorted(fall[order], fall[order][changes], side="right")
    ends = np.unique(level_end)
    order = order[: ends[-1]] if ends.size else order[:0]
    start = np.concatenate([[0], ends[:-1]]) if ends.size else ends
    is_loss = order < many
    return CostLossCurve(
        gap=one.always,
        value=other.always,
        row=np.concatenate([one.row, other.row])[order],
        gap_jump=np.where(is_loss, np.concatenate([one.jump, np.zeros(other.jump.size)])[order], 0.0),
        value_jump=np.where(is_loss, 0.0, np.concatenate([np.zeros(many), other.jump])[order]),
        start=start.astype(np.int64),
    )


class _FunctionJumps(NamedTuple):
    """The jumps of n functions: `always` holds at every level; each other jump has a row, minus its level, a size."""

    always: Floats
    row: Ints
    fall: Floats
    jump: Floats


def _jumps(function: StepFunctions) -> _FunctionJumps:
    always = function.start + np.where(function.level == np.inf, function.jump, 0).sum(axis=1)
    moving = np.isfinite(function.level) & (function.jump != 0)
    jump = function.jump[moving] / function.units
    return _FunctionJumps(always / function.units, np.nonzero(moving)[0], -function.level[moving], jump)


def cost_at_loss(walk: CostLossCurve, allowed: float, *, coin: float = 1.0) -> float:
    """Return the mean value at the point where the mean gap equals `allowed`; +∞ if the gap stays above it everywhere.

    Args:
        walk: a policy on n questions.
        allowed: the mean of the gap.
        coin: the share of the questions up to which a coin between two points makes the gap exact. If more of them
            change at the matched point, that point counts, as for a policy that is served at one threshold.
    """
    together = Units(np.zeros(walk.n, dtype=np.int64), 1)
    found = _Run(walk, allowed, together, coin).values(np.ones((1, 1)), 0, walk.start.size)
    return float(found.value[0])


def bootstrap(walk: CostLossCurve, allowed: float, drawn: Units, weights: Weights, *, coin: float = 1.0) -> Floats:
    """Return `cost_at_loss` in each bootstrap replicate, float64 (replicates,).

    `drawn` has the groups of the questions, and `weights` (`draws`) are the same for all policies that are compared.
    """
    run = _Run(walk, allowed, drawn, coin)
    values = np.empty(len(weights))
    todo, reach = np.arange(len(weights)), _FAR
    while todo.size:
        low, high = run.window(reach)
        missed = []
        for some in _chunks(todo, max(high - low, 1) * 4 + drawn.many):
            found = run.values(weights[some].astype(np.float64), low, high)
            values[some] = found.value
            missed.append(some[~found.inside])
        todo, reach = np.concatenate(missed), 2 * reach
    return values


def _chunks(rows: Ints, width: int) -> Iterator[Ints]:
    size = max(1, _CELLS // width)
    return (rows[start : start + size] for start in range(0, rows.size, size))


class _Replicates(NamedTuple):
    """The values of r replicates, float64 (r,), and whether each found its point inside the window, bool (r,)."""

    value: Floats
    inside: Bools


@dataclass(frozen=True, slots=True)
class _Run:
    """A cost-loss curve with its allowed mean and the groups to weight."""

    walk: CostLossCurve
    allowed: float
    drawn: Units
    coin: float

    def values(self, weights: Floats, low: int, high: int) -> _Replicates:
        """Return the values of replicates (r, groups), using only the points low..high."""
        walk = self.walk
        points = walk.start.size
        begin = int(walk.start[low]) if low < points else walk.row.size
        end = int(walk.start[high]) if high < points else walk.row.size
        gap = self._walked(weights, walk.gap, walk.gap_jump, slice(begin, end), low, high)
        value = self._walked(weights, walk.value, walk.value_jump, slice(begin, end), low, high)
        size = weights @ self._by_group(np.ones(walk.n))
        bar = self.allowed * size
        hit = gap <= (bar + _ROUNDING * np.abs(bar))[:, None]
        at, there = hit.argmax(axis=1), hit.any(axis=1)
        rows = np.arange(len(weights))
        # Of the points with the same gap take the cheapest: a question that was not drawn does not lower the gap.
        begun = (gap == gap[rows, np.maximum(at - 1, 0)][:, None]).argmax(axis=1)
        fall = gap[rows, begun] - gap[rows, at]
        part = np.clip((gap[rows, begun] - bar) / np.where(fall > 0, fall, 1.0), 0.0, 1.0)
        tossed = (fall > 0) & self._fine(low, high)[at]
        found = np.where(tossed, (1 - part) * value[rows, begun] + part * value[rows, at], value[rows, at])
        inside = (there | (high == points)) & ((begun > 0) | (low == 0))
        mean = found / np.where(size > 0, size, 1.0)  # a fold without drawn questions gives no policy a value
        return _Replicates(np.where(there, mean, np.inf), inside)

    def _fine(self, low: int, high: int) -> Bools:
        """Return, before and at each point of the window, whether few enough questions change for a random mixture."""
        walk = self.walk
        changes = np.concatenate([[0], np.cumsum(walk.gap_jump != 0)])
        ends = np.append(walk.start[1:], walk.row.size)
        many = changes[ends[low:high]] - changes[walk.start[low:high]]
        return np.concatenate([[True], many <= self.coin * walk.n])

    def window(self, errors: float) -> tuple[int, int]:
        """Return the points within so many standard errors of the matched point."""
        walk, points = self.walk, self.walk.start.size
        if points <= _WHOLE:
            return 0, points
        gap = walk.gap.sum() + np.cumsum(np.add.reduceat(walk.gap_jump, walk.start)) - self.allowed * walk.n
        at = int((gap <= 0).argmax()) if (gap <= 0).any() else points - 1
        end = int(walk.start[at + 1]) if at + 1 < points else walk.row.size
        then = walk.gap + np.bincount(walk.row[:end], walk.gap_jump[:end], walk.n)
        spread = errors * math.sqrt(float(np.square(self._by_group(then - self.allowed)).sum()))
        near = np.flatnonzero(np.abs(gap) <= spread)
        if not near.size:
            return max(at - 1, 0), min(at + 2, points)
        return max(int(near[0]) - 1, 0), min(int(near[-1]) + 2, points)

    def _walked(self, weights: Floats, first: Floats, jump: Floats, some: slice, low: int, high: int) -> Floats:
        """Return the weighted totals before the window and at each of its points, (r, high − low + 1)."""
        walk = self.walk
        before = first + np.bincount(walk.row[: some.start], jump[: some.start], walk.n)
        base = (weights @ self._by_group(before))[:, None]
        if low >= high:
            return np.asarray(base, dtype=np.float64)
        held = weights[:, self.drawn.of[walk.row[some]]] * jump[some]
        steps = np.add.reduceat(held, walk.start[low:high] - some.start, axis=1)
        return np.concatenate([base, base + np.cumsum(steps, axis=1)], axis=1)

    def _by_group(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.drawn.of, values, self.drawn.many), dtype=np.float64)


# --- objective ---

Unit = Literal["nano_usd", "steps"]


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of a step.

    Attributes:
        in_money: whether costs are nano-USD; otherwise they are numbers of steps, because the log lacks some costs.
    """

    in_money: bool

    def of_steps(self, table: EpisodeTable) -> Ints:
        """Return the cost of each step, int64 (n, T); 0 beyond the record."""
        if self.in_money:
            return table.arrays.cost
        on_record = np.arange(table.arrays.horizon) < table.arrays.steps[:, None]
        return np.where(on_record, 1, 0)


def prices_of(table: EpisodeTable) -> Prices:
    """Return the prices of a log's steps."""
    return Prices(table.cost_known)


class Objective(NamedTuple):
    """The objective by which policies are compared.

    Attributes:
        guarantee: the promise.
        alpha: the mean loss that the calibration will allow.
        prices: the prices of steps.
    """

    guarantee: Guarantee
    alpha: float
    prices: Prices

    @classmethod
    def of(cls, table: EpisodeTable, guarantee: Guarantee, alpha: float) -> Objective:
        """Return the objective on a log."""
        return cls(guarantee, alpha, prices_of(table))

    @property
    def unit(self) -> Unit:
        """The unit of the figures."""
        return "nano_usd" if self.prices.in_money else "steps"


def curve_of(sample: Sample, guarantee: Guarantee, prices: Prices) -> CostLossCurve:
    """Return a policy's losses and costs on n questions as its threshold falls; `cost_at_loss` compares such curves.

    For regret, `sample` has only questions for which the log has the reference.
    """
    loss, cost = guarantee.rules.losses(sample), _costs(sample, prices)
    return cost_loss_curve(loss, cost)


def allowed_of(table: EpisodeTable, guarantee: Guarantee, alpha: float) -> float:
    """Return the mean that a curve must come down to, over all of a table's questions."""
    return alpha * float(guarantee.rules.counted(table).mean())


def _costs(sample: Sample, prices: Prices) -> StepFunctions:
    start = np.zeros(sample.table.n, dtype=np.int64)
    return StepFunctions(start, sample.levels.reach, prices.of_steps(sample.table))
