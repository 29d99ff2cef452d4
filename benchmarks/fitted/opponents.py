"""What a fitted policy has to beat: the cost of simpler ways at exactly the same coverage of the same questions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Floats, Ints, ScoreArrays, StepArrays, hopeless, levels
from cascade.conformal.frontier import clairvoyant, frontier
from cascade.episodes.table import EpisodeTable

MIXTURE, TUNED, CLAIRVOYANT = "depth mixture", "tuned threshold", "clairvoyant"


def matched(steps: StepArrays, scores: ScoreArrays, alphas: tuple[float, ...]) -> list[float]:
    """Return the mean cost, in USD, at a coverage of exactly 1 − alpha; NaN where it is out of reach."""
    curve = frontier(steps, levels(steps, scores))
    points = [curve.matched(1 - alpha) for alpha in alphas]
    return [math.nan if point is None else point.cost / 1e9 for point in points]


def going_on(table: EpisodeTable, doubt: Floats) -> ScoreArrays:
    """Return the scores of a policy that goes on while a number is high, and keeps every answer."""
    onward = np.where(np.isnan(doubt), np.inf, doubt)
    return ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)


@dataclass(frozen=True, slots=True)
class DepthMixture:
    """The best coin between two fixed depths, every answer kept: what a policy must beat to be worth having.

    Attributes:
        depth: int64 (K,), the depths on the lower convex hull of cost over coverage.
        coverage: float64 (K,), the share of questions that each covers, rising.
        cost: float64 (K,), nano-USD a question.
    """

    depth: Ints
    coverage: Floats
    cost: Floats

    def cost_at(self, target: float) -> float | None:
        """Return the cost at a coverage: the first depth's at or below its coverage, None above the highest."""
        if target * (1 - 1e-12) > self.coverage[-1]:
            return None
        return float(np.interp(target, self.coverage, self.cost))


def depth_mixture(steps: StepArrays) -> DepthMixture:
    """Return the mixtures of "every answer of the first L steps", L = 1..T."""
    found = np.logical_or.accumulate(steps.correct.any(axis=2), axis=1)
    covered = np.count_nonzero(found | hopeless(steps)[:, None], axis=0)
    spent = np.cumsum(steps.cost.sum(axis=0))
    hull: list[tuple[int, int, int]] = []  # (questions covered, nano-USD, depth), exact
    for depth in range(steps.horizon):
        at = (int(covered[depth]), int(spent[depth]), depth + 1)
        if hull and at[0] == hull[-1][0]:
            continue  # it costs more and covers no more
        while len(hull) > 1 and not _convex(hull[-2], hull[-1], at):
            hull.pop()
        hull.append(at)
    columns = np.array(hull, dtype=np.int64).T
    return DepthMixture(columns[2], columns[0] / steps.n, columns[1] / steps.n)


def _convex(one: tuple[int, int, int], two: tuple[int, int, int], three: tuple[int, int, int]) -> bool:
    """Say whether the second point lies below the line from the first to the third."""
    return (two[1] - one[1]) * (three[0] - one[0]) < (three[1] - one[1]) * (two[0] - one[0])


def mixture_cost(steps: StepArrays, alpha: float) -> float:
    """Return what the best coin between two depths costs, USD; the coin is chosen on these very questions."""
    cost = depth_mixture(steps).cost_at(1 - alpha)
    return math.nan if cost is None else cost / 1e9


def clairvoyant_cost(steps: StepArrays, alpha: float) -> float:
    """Return the least cost of all, USD, between two numbers of questions given up as a coin would have it."""
    may = alpha * steps.n
    whole = math.floor(may + 1e-9)
    low = clairvoyant(steps, whole / steps.n)
    if whole >= steps.n:
        return low.cost / 1e9
    high = clairvoyant(steps, (whole + 1) / steps.n)
    return (low.cost + max(0.0, may - whole) * (high.cost - low.cost)) / 1e9


def single_signals(table: EpisodeTable) -> dict[str, Floats]:
    """Return every number that a threshold could look at, in both directions: float64 (n, T) by name.

    The log's signals; where it has none before the last step, the numbers of the question's text, the tokens and the
    price of the first step.
    """
    found = dict(_both_ways(signals_of(table)))
    return found or dict(_both_ways(_of_the_question(table)))


def _both_ways(numbers: dict[str, Floats]) -> Iterator[tuple[str, Floats]]:
    for name, values in sorted(numbers.items()):
        yield f"{name}, high", values
        yield f"{name}, low", -values


def signals_of(table: EpisodeTable) -> dict[str, Floats]:
    """Return the signals that are known and vary before the last step: float64 (n, T) by name."""
    return {name: values for name, values in table.signals.items() if _varies(values[:, :-1])}


def _of_the_question(table: EpisodeTable) -> dict[str, Floats]:
    shape = table.arrays.cost.shape
    columns = {f"asked.{name}": values[:, None] for name, values in table.asked.items()}
    columns["tokens of the first step"] = table.tokens[:, :1]
    columns["price of the first step"] = table.arrays.cost[:, :1].astype(np.float64)
    return {name: np.broadcast_to(values, shape).copy() for name, values in columns.items() if _varies(values)}


def _varies(values: Floats) -> bool:
    known = values[~np.isnan(values)]
    return bool(known.size) and bool(known.min() < known.max())
