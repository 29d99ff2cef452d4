"""Policies that learn almost nothing: a fixed depth, and a threshold on one number. Learned policies must beat them.

The one number is the doubt about a step (`calibration.samples.doubt_of`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cascade.calibration.samples import (
    Doubt,
)
from cascade.calibration.scores import history_of
from cascade.conformal.arrays import Floats, Ints
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Kind
from cascade.policies.base import Takes
from cascade.policies.design import Design
from cascade.policies.estimators import Constant, Linear, Piecewise, Scorer, Signal
from cascade.policies.features import CONFIDENCE, FeatureSet, offered
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.training.objective import prices_of
from cascade.training.stages import FitTarget, allowed, decides, newest_answers

VERDICT = "p_yes"
_SURE = ("p_yes", "logprob", "self_check", "gate", "judge_share", "verdict_mass", "agree", "agrees", "agreement")
_DOUBT = ("entropy", "uncertainty", "doubt", "disagree", "disagrees", "disagreement")
"""Words in the names of numbers whose high, or low, values suggest that an answer is right."""
_SURELY = 3.0
"""The number of standard errors by which questions must contradict a name."""


def reference_alone(table: EpisodeTable) -> LearnedPolicy:
    """Return the policy that asks only the reference, at once; it has no regret by definition."""
    nothing = (None,) * len(table.sources)
    rule = StepRule(FeatureSet((), table.sources), None, nothing, nothing)
    return LearnedPolicy("reference", (rule,), takes=Takes(reference=True))


def fixed_depth(table: EpisodeTable, kind: Kind | None = None) -> LearnedPolicy:
    """Return the policy that reads no signal. After step t, going on has the score −t, so a threshold is a depth.

    Calibration sets its threshold as for every policy, which gives the least depth that keeps the promise.
    """
    onward = [((), Constant(-float(step))) for step in range(1, table.arrays.horizon)]
    return policy_of("depth", table, onward, kind)


def one_threshold(table: EpisodeTable, signal: str, kind: Kind) -> LearnedPolicy:
    """Return the policy that goes on while one number is high, or while it is low.

    The name of a known number decides its direction (a low log-prob or a high entropy means doubt), unless the
    questions clearly contradict it. For other numbers the questions decide, by the rank correlation of the number with
    the losses that later steps would mend, over all steps. The cost at one threshold would be a poor judge: it depends
    on the few questions near the threshold, and with 300 questions it has the wrong sign in two of ten draws of a log
    (`design/fitting.md`).
    """
    told, meant = _promising(table, signal, kind), _meant(signal)
    sign = meant if meant and told * meant > -_SURELY else math.copysign(1.0, told)
    return _threshold(table, Signal(0, sign), signal, kind)


def plain_threshold(table: EpisodeTable, feature: str, sign: float, kind: Kind) -> LearnedPolicy:
    """Return the policy that goes on while a feature, named beforehand, is high (sign 1) or low (−1)."""
    return _threshold(table, Signal(0, sign), feature, kind)


def _meant(signal: str) -> float:
    """Return 1 if by its name a high number means doubt, −1 if a low one does, 0 if the name does not say."""
    name = f"_{signal}_"
    if CONFIDENCE.fullmatch(signal) or any(f"_{word}_" in name for word in _SURE):
        return -1.0
    return 1.0 if any(f"_{word}_" in name for word in _DOUBT) else 0.0


def _promising(table: EpisodeTable, signal: str, kind: Kind) -> float:
    """Return the correlation of a number's ranks with the losses that going on to the end would mend, over all steps.

    The unit is the standard error under no correlation; above 0, a high number promises more from going on.
    """
    history, loss, decided = history_of(table), kind.loss(table), decides(table)
    features, found, square = FeatureSet((signal,), table.sources), 0.0, 0.0
    for t in range(table.arrays.horizon - 1):
        values = features.table(history, t + 1)[:, 0]
        rows = decided[:, t] & ~np.isnan(values)
        if np.count_nonzero(rows) > 1:
            ranks, mended = _centred_ranks(values[rows]), loss[rows, t] - loss[rows, -1]
            found += float((ranks * mended).sum())  # whole numbers, unless losses are graded
            square += float((ranks**2).sum()) * float(mended.var(ddof=1))
    return found / math.sqrt(square) if square > 0 else 0.0


def _centred_ranks(values: Floats) -> Ints:
    """Return twice the mid-ranks minus their mean: whole numbers that sum to 0.

    >>> _centred_ranks(np.array([0.3, 0.1, 0.3, 0.9])).tolist()
    [0, -3, 0, 3]
    """
    place, many = np.unique(values, return_inverse=True, return_counts=True)[1:]
    return np.asarray((2 * np.cumsum(many) - many - values.size)[place], dtype=np.int64)


def doubtful_verdict(table: EpisodeTable, kind: Kind | None = None) -> LearnedPolicy:
    """Return the policy that goes on while the verdict is near a coin flip: by −(p − ½)², falling in |p − ½|.

    The order is that of the verdict's uncertainty −ln max(p, 1 − p). A missing verdict counts as full doubt.
    """
    square = Design(np.array([0.5]), np.ones(1), np.zeros(1), np.ones(1), np.array([]), np.array([[0, 0]]))
    return _threshold(table, Linear(square, np.array([0.0, -1.0]), 0.0), VERDICT, kind)


def signals_of(table: EpisodeTable) -> Iterator[str]:
    """Yield the numbers for a threshold: signals and confidences that are known and vary before the last step."""
    history = history_of(table)
    found = [name for step in range(1, history.horizon) for name in offered(history, step, at_most=10**6, enough=10**6)]
    yield from dict.fromkeys(name for name in found if name in history.signals or CONFIDENCE.fullmatch(name))


def _threshold(table: EpisodeTable, scorer: Scorer, signal: str, kind: Kind | None) -> LearnedPolicy:
    return policy_of("threshold", table, [((signal,), scorer)] * (table.arrays.horizon - 1), kind)


def policy_of(
    method: str,
    table: EpisodeTable,
    steps: Sequence[tuple[tuple[str, ...], Scorer]],
    kind: Kind | None,
    *,
    kappa: float = 0.0,
) -> LearnedPolicy:
    """Return a policy that keeps every answer, with a score of going on for each step except the last.

    Args:
        method: its method, one of `policies.learned.METHODS`.
        table: the questions that it was made from.
        steps: for each step except the last its features and the score.
        kind: the kind of guarantee; None: one about the set of answers.
        kappa: the threshold if none is certified.
    """
    nothing: tuple[Scorer | None, ...] = (None,) * len(table.sources)
    sure: Sequence[tuple[Scorer | None, ...]] = [nothing] * table.arrays.horizon
    if kind is not None and kind.last_is_safe(table):
        sure = newest_answers(table).confidence
    looks = [*steps, ((), None)]
    rules = [
        StepRule(FeatureSet(names, table.sources), scorer, nothing, own)
        for (names, scorer), own in zip(looks, sure, strict=True)
    ]
    return LearnedPolicy(method, tuple(rules), kappa)


# --- One threshold per rung: for each model of a ladder, the confidence at which the ladder stops ---
# The confidences of a ladder's models have different scales, so one threshold for all models stops too early at some
# and too late at others. Here the thresholds are tuned together on training questions, for the allowed loss and for a
# series of smaller and larger losses. Each vector of thresholds stops wherever the stricter ones do (they are nested).
# So together they are one policy: a step's score is the level at which its doubt is first low enough to stop, piecewise
# linear between the tuned thresholds, and calibration sets the level.
#
# The search is exhaustive over a grid of quantiles, and is repeated on finer grids around the best point. With two
# thresholds the first grid is the finest. Running sums of a histogram give the losses and costs of all combinations.

QUANTILES = 100
"""How many thresholds are tried for each rung: quantiles of its doubt."""
CELLS = 10_201
"""How many combinations of thresholds one search tries; 101² is the finest grid for two rungs."""
LEVELS = (0.0, 0.4, 0.7, 0.85, 1.0, 1.15, 1.35, 1.8)
"""The losses that thresholds are tuned for, as parts of the one that will be allowed."""
_TARGET = LEVELS.index(1.0)

Vector: TypeAlias = tuple[int, ...]
"""For each rung, how many of its grid's thresholds apply; 0: none, so no question stops there."""


def threshold_per_rung(table: EpisodeTable, doubt: Doubt, asked: FitTarget) -> LearnedPolicy:
    """Return the policy that goes on while a step's doubt is above the threshold of that step.

    Its own threshold, `kappa`, is the level that was tuned for the requested loss.
    """
    problem = _problem(table, doubt, asked)
    path = tuned(problem, LEVELS)
    steps: list[tuple[tuple[str, ...], Scorer]] = []
    for rung, grid in enumerate(problem.grids):
        scorer = _scorer(grid, [vector[rung] for vector in path], doubt.sign)
        steps.append(((doubt.signal,), scorer))
    kappa = math.nextafter(float(_TARGET), math.inf)
    return policy_of("threshold", table, steps, asked.rules, kappa=kappa)


@dataclass(frozen=True, slots=True)
class Problem:
    """Thresholds to be tuned.

    Attributes:
        place: int64 (n, R), the index of the first threshold on each rung's grid that is at least the question's doubt
            there; the grid's size if none is.
        grids: for each rung float64, rising: the thresholds to try.
        limited, paid: float64 (n, R + 1), the contribution of stopping at a rung, or at none, to the limited sum, and
            to the sum to minimise.
        limit: the maximum of the limited sum.
        free: the limited sum if no question stops early; the search approaches `limit` from there.
    """

    place: Ints
    grids: tuple[Floats, ...]
    limited: Floats
    paid: Floats
    limit: float
    free: float


def _problem(table: EpisodeTable, doubt: Doubt, asked: FitTarget) -> Problem:
    rungs = table.arrays.horizon - 1
    values = table.signals[doubt.signal][:, :rungs] * doubt.sign
    values = np.where(decides(table)[:, :rungs] & ~np.isnan(values), values, np.inf)
    grids = tuple([_grid(values[:, rung]) for rung in range(rungs)])
    place = np.stack([np.searchsorted(grid, values[:, rung]) for rung, grid in enumerate(grids)], axis=1)
    sure = newest_answers(table).out_of_fold if asked.rules.last_is_safe(table) else None
    loss = asked.rules.loss(table, sure)
    cost = np.cumsum(prices_of(table).of_steps(table), axis=1).astype(np.float64)
    return Problem(place, grids, loss, cost, allowed(table, asked) * table.n, 0.0)


def _grid(values: Floats) -> Floats:
    known = np.unique(values[np.isfinite(values)])
    if known.size <= QUANTILES:
        return known
    finite = values[np.isfinite(values)]
    return np.unique(np.quantile(finite, np.linspace(0, 1, QUANTILES), method="lower"))


def tuned(problem: Problem, levels: Sequence[float]) -> list[Vector]:
    """Return nested thresholds for each level, strict ones first: each stops wherever the one before it does.

    Those at level 1 are tuned first; the others are tuned outwards from them, each within its neighbour's bounds. The
    levels are rising parts of the limit, 1 among them.
    """
    lowest, highest = (0,) * len(problem.grids), tuple([grid.size for grid in problem.grids])
    limits = [problem.free + level * (problem.limit - problem.free) for level in levels]
    target = levels.index(1.0)
    found = {target: search(problem, limits[target], lowest, highest)}
    for level in reversed(range(target)):
        found[level] = search(problem, limits[level], lowest, found[level + 1])
    for level in range(target + 1, len(levels)):
        found[level] = search(problem, limits[level], found[level - 1], highest)
    return [found[level] for level in range(len(levels))]


def search(problem: Problem, limit: float, low: Vector, high: Vector) -> Vector:
    """Return the cheapest thresholds between two vectors that keep a limit; the nearest to the limit if none does.

    Exact if there are at most `CELLS` combinations between the two; otherwise grids are refined around the best.
    """
    many = max(2, int(CELLS ** (1 / len(low)) + 1e-9))
    lowest, highest = np.array(low), np.array(high)
    while True:
        grids = [_spread(int(a), int(b), many) for a, b in zip(lowest, highest, strict=True)]
        at = _best(problem, limit, grids)
        best = np.array([grid[place] for grid, place in zip(grids, at, strict=True)])
        step = np.array([np.diff(grid).max(initial=0) for grid in grids])
        if (step <= 1).all():
            return tuple(best.tolist())
        # No spacing is repeated, since each window is narrower than the one before.
        reach = np.maximum((highest - lowest) // 3, 1)
        lowest = np.maximum(lowest, best - np.minimum(step, reach))
        highest = np.minimum(highest, best + np.minimum(step, reach))


def _spread(low: int, high: int, many: int) -> Ints:
    return np.unique(np.linspace(low, high, min(many, high - low + 1)).round().astype(np.int64))


def _best(problem: Problem, limit: float, grids: Sequence[Ints]) -> Vector:
    """Return the index of the best combination; the strictest of equal ones."""
    cell = np.stack([np.searchsorted(grid, problem.place[:, r], side="right") for r, grid in enumerate(grids)], axis=1)
    shape = tuple([grid.size for grid in grids])
    limited, paid = (summed(cell, weights, shape) for weights in (problem.limited, problem.paid))
    within = limited <= limit + 1e-9 * abs(limit)
    if not within.any():
        within = limited <= limited.min()
    paid = np.where(within, paid, np.inf)
    least = np.where(paid <= paid.min(), limited, np.inf)
    return tuple([int(place) for place in np.unravel_index(int(least.argmin()), shape)])


def summed(cell: Ints, weights: Floats, shape: tuple[int, ...]) -> Floats:
    """Return, for all combinations of thresholds, the sum of the weights where the questions stop, float64 `shape`.

    `cell`, int64 (n, R), is the first threshold of each rung's grid at which a question stops, the grid's size if it
    never does; `weights`, float64 (n, R + 1), of stopping at a rung, and in the last column at none.
    """
    total = np.zeros(shape)
    for rung in range(len(shape) + 1):
        axes = min(rung + 1, len(shape))
        wide = tuple([size + 1 for size in shape[:axes]])
        flat = np.ravel_multi_index(tuple(cell[:, :axes].T), wide)
        cells = np.bincount(flat, weights[:, rung], minlength=math.prod(wide)).reshape(wide)
        for axis in range(rung if rung < len(shape) else axes):  # questions that do not stop at the rungs before
            tail = np.flip(np.cumsum(np.flip(cells, axis), axis=axis), axis)
            cells = tail.take(range(1, wide[axis]), axis=axis)
        if rung < len(shape):
            cells = np.cumsum(cells, axis=rung).take(range(shape[rung]), axis=rung)
        total += cells.reshape(cells.shape + (1,) * (len(shape) - cells.ndim))
    return total


def _scorer(grid: Floats, places: Sequence[int], sign: float) -> Scorer:
    """Return the level at which a value is first low enough to stop. `places`: a rung's thresholds by level."""
    if not grid.size:
        return Constant(math.inf)  # the doubt is never known here
    knots = np.array([*_knots(grid, places)])
    return Piecewise(0, *(knots.T if sign > 0 else (knots * np.array([-1.0, 1.0]))[::-1].T))


def _knots(grid: Floats, places: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield (doubt, level), both rising: a rung's threshold at each level.

    At level −1 no question stops, and at the level after the last all do. If the threshold is the same over several
    levels, the score jumps from the first to the last of them just above it.
    """
    ends = [0, *places, int(grid.size)]
    yield math.nextafter(float(grid[0]), -math.inf), float(ends.count(0) - 2)
    for place in sorted(set(ends) - {0}):
        threshold, first = float(grid[place - 1]), ends.index(place) - 1
        last = first + ends.count(place) - 1
        yield threshold, float(first)
        if last > first and place < grid.size:
            yield math.nextafter(threshold, math.inf), float(last)
