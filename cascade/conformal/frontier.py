"""The whole frontier of a policy: coverage, cost, length and set size at every threshold there is.

Each is a step function of kappa that changes only at the levels of `rollout`. So the levels of all questions are sorted
once, and each curve is a running sum of integers: O(nT log nT), exact, no grid. As kappa falls none of them falls
(`design/rollout.md`). The two bounds that a frontier is read against stand at the end of the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascade.conformal.arrays import Floats, Ints, StepArrays
from cascade.conformal.rollout import Levels, hopeless
from cascade.errors import UsageError

_STEP, _FIRST, _FOUND = np.uint8(1), np.uint8(2), np.uint8(4)
# A share such as 1 − 0.4 is off by at most one unit in the last place (1e-16); one question of 10⁷ is 1e-7.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Point:
    """Means over the questions at one threshold, or at a mixture of two.

    Attributes:
        kappa: the threshold; of a mixture the lower, the more careful one.
        coverage: share of questions covered, in the sense of `rollout.Outcomes.covered`.
        in_set: share of questions with a right answer kept.
        cost: nano-USD a question.
        length: steps paid a question.
        leaves: answers kept a question, repetitions counted.
        distinct: different answers kept a question.
    """

    kappa: float
    coverage: float
    in_set: float
    cost: float
    length: float
    leaves: float
    distinct: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """What n questions bring at every threshold. Point k holds for kappa[k + 1] < kappa ≤ kappa[k], the last one below.

    Attributes:
        n: the number of questions.
        kappa: float64 (K,), descending from +∞.
        covered: int64 (K,), questions covered.
        found: int64 (K,), questions with a right answer kept.
        cost_nano_usd: int64 (K,), the total.
        steps: int64 (K,), steps paid.
        kept: int64 (K,), answers kept, repetitions counted.
        different: int64 (K,), different answers kept, summed over the questions.
    """

    n: int
    kappa: Floats
    covered: Ints
    found: Ints
    cost_nano_usd: Ints
    steps: Ints
    kept: Ints
    different: Ints

    @property
    def coverage(self) -> Floats:
        """float64 (K,), the share of questions covered."""
        return self.covered / self.n

    @property
    def in_set(self) -> Floats:
        """float64 (K,), the share of questions with a right answer kept."""
        return self.found / self.n

    @property
    def cost(self) -> Floats:
        """float64 (K,), nano-USD a question."""
        return self.cost_nano_usd / self.n

    @property
    def length(self) -> Floats:
        """float64 (K,), steps paid a question."""
        return self.steps / self.n

    @property
    def leaves(self) -> Floats:
        """float64 (K,), answers kept a question, repetitions counted."""
        return self.kept / self.n

    @property
    def distinct(self) -> Floats:
        """float64 (K,), different answers kept a question."""
        return self.different / self.n

    def index(self, kappa: float | Floats) -> Ints:
        """Return which point holds at a threshold, or at each of several."""
        if np.isnan(kappa).any():
            raise UsageError("kappa is not a number; give a threshold, −inf for everything, +inf for the least")
        above = self.kappa.size - np.searchsorted(self.kappa[::-1], kappa, side="left")
        return np.asarray(above - 1, dtype=np.int64)

    def point(self, k: int) -> Point:
        """Return point k."""
        sums = (self.covered, self.found, self.cost_nano_usd, self.steps, self.kept, self.different)
        return Point(float(self.kappa[k]), *(int(total[k]) / self.n for total in sums))

    def at(self, kappa: float) -> Point:
        """Return what holds at a threshold; `kappa` of the result is the highest threshold with the same outcome."""
        return self.point(int(self.index(kappa)))

    def at_coverage(self, target: float) -> Point | None:
        """Return the cheapest point that covers at least `target` of the questions; None where no threshold does."""
        k = self._reaching(target)
        return None if k is None else self.point(k)

    def matched(self, target: float) -> Point | None:
        """Return the means at a coverage of exactly `target`, for a fair comparison of policies at one coverage.

        Coverage rises in jumps. Between two, a coin is tossed for each question between the cheapest thresholds of
        the two neighbouring coverages; its mean is linear in between, so that this is a policy that one could serve.
        A target at or below the first point's coverage gives the first point: there is nothing cheaper than it, and
        its coverage may be above the target (the floor). None where the target lies above the highest coverage.
        """
        upper = self._reaching(target)
        if upper is None or upper == 0:
            return None if upper is None else self.point(0)
        below = int(self.covered[upper - 1])
        lower = int(np.searchsorted(self.covered, below, side="left"))
        weight = min(1.0, max(0.0, (target * self.n - below) / (int(self.covered[upper]) - below)))
        return _mixed(self.point(lower), self.point(upper), weight)

    def _reaching(self, target: float) -> int | None:
        """Return the first point whose coverage is at least the target."""
        needed = _at_least(target, self.n)
        k = int(np.searchsorted(self.covered, needed, side="left"))
        return k if k < self.covered.size else None


def frontier(steps: StepArrays, levels: Levels) -> Frontier:
    """Return the frontier of a policy on logged questions.

    Args:
        steps: the log.
        levels: its levels under the policy, by `rollout.levels`.

    Raises:
        UsageError: there is no question.
    """
    _need_questions(steps)
    jumps = _jumps(steps, levels)
    order = np.argsort(-jumps.level)
    level, kind, cost = jumps.level[order], jumps.kind[order], np.cumsum(jumps.cost[order])
    # Equal levels are one point: the sums after the last of them.
    ends = np.append(np.flatnonzero(level[1:] != level[:-1]), level.size - 1)
    paid, different, found = (np.cumsum((kind & flag) != 0, dtype=np.int64) for flag in (_STEP, _FIRST, _FOUND))
    found = found[ends]
    return Frontier(
        n=steps.n,
        kappa=level[ends],
        covered=found + np.count_nonzero(hopeless(steps)),
        found=found,
        cost_nano_usd=cost[ends],
        steps=paid[ends],
        kept=ends + 1 - paid[ends],
        different=different[ends],
    )


class _Jumps(NamedTuple):
    """Everything that happens at some kappa: a step is paid, or an answer is kept."""

    level: Floats
    cost: Ints
    kind: NDArray[np.uint8]


def _jumps(steps: StepArrays, levels: Levels) -> _Jumps:
    paid, kept = levels.reach > -np.inf, levels.leaf > -np.inf
    kinds = np.where(levels.first, _FIRST, np.uint8(0))
    kinds[_finding(steps, levels)] |= _FOUND
    leaf = levels.leaf[kept]
    reach = levels.reach[paid]
    return _Jumps(
        level=np.concatenate([reach, leaf]),
        cost=np.concatenate([steps.cost[paid], np.zeros(leaf.size, dtype=np.int64)]),
        kind=np.concatenate([np.full(reach.size, _STEP), kinds[kept]]),
    )


def _finding(steps: StepArrays, levels: Levels) -> tuple[Ints, Ints, Ints]:
    """Return where the right answer of the highest level is: one leaf for each question that has one to keep."""
    right = np.where(steps.correct, levels.leaf, -np.inf).reshape(steps.n, -1)
    place = right.argmax(axis=1) if right.shape[1] else np.zeros(steps.n, dtype=np.int64)
    row = np.flatnonzero(right.max(axis=1, initial=-np.inf) > -np.inf)
    t, a = np.divmod(place[row], levels.leaf.shape[2])
    return row, t, a


class Clairvoyant(NamedTuple):
    """What nobody can do better than.

    Attributes:
        cost: nano-USD a question.
        coverage: share of questions covered, in the sense of `rollout.Outcomes.covered`.
        given_up: questions that have a right answer and were left after one step.
    """

    cost: float
    coverage: float
    given_up: int


def clairvoyant(steps: StepArrays, alpha: float) -> Clairvoyant:
    """Return the least possible cost where at most ⌊alpha·n⌋ questions that have a right answer are given up.

    It knows each question's first right step and pays up to it; it pays one step where there is none, and where it
    gives up. It gives up those where finding is dearest. No policy on these steps with as few misses costs less.

    Raises:
        UsageError: alpha does not lie in 0..1, or there is no question.
    """
    _need_questions(steps)
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha must lie in 0..1, not {alpha:g}")
    solvable = steps.solvable
    first_right = steps.correct.any(axis=2).argmax(axis=1)  # 0 where there is none
    spent = np.cumsum(steps.cost, axis=1)[np.arange(steps.n), first_right]
    beyond = np.sort((spent - steps.cost[:, 0])[solvable])
    may = steps.n - _at_least(1 - alpha, steps.n)
    given_up = min(may, int(np.count_nonzero(beyond)))
    total = int(steps.cost[:, 0].sum()) + int(beyond[: beyond.size - given_up].sum())
    covered = int(np.count_nonzero(solvable | hopeless(steps))) - given_up
    return Clairvoyant(total / steps.n, covered / steps.n, given_up)


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
        if _number(target) * (1 - _ROUNDING) > self.coverage[-1]:
            return None
        return float(np.interp(target, self.coverage, self.cost))


def depth_mixture(steps: StepArrays) -> DepthMixture:
    """Return the mixtures of "every answer of the first L steps", L = 1..T.

    Raises:
        UsageError: there is no question.
    """
    _need_questions(steps)
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


def _mixed(one: Point, other: Point, weight: float) -> Point:
    """Return the means of a coin that takes `other` with probability `weight`."""
    means = (
        (1 - weight) * getattr(one, name) + weight * getattr(other, name) for name in Point.__slots__ if name != "kappa"
    )
    return Point(other.kappa, *means)


def _at_least(share: float, n: int) -> int:
    """Return how many of n questions are at least a share of them, the share's rounding forgiven."""
    return math.ceil(_number(share) * n * (1 - _ROUNDING))


def _number(share: float) -> float:
    if not math.isfinite(share):
        raise UsageError(f"a share of the questions must be a number such as 0.9, not {share}")
    return share


def _need_questions(steps: StepArrays) -> None:
    if not steps.n:
        raise UsageError("there is no question to take a mean of; check the filter or the split")
