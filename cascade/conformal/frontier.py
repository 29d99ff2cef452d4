"""The whole frontier of a policy: coverage, cost, length and set size at every possible threshold.

Each is a step function of kappa that changes only at the levels of `arrays`. So the levels of all questions are sorted
once, and each curve is a running sum of integers: O(nT log nT), exact, without a grid. As kappa falls, no curve falls
(`design/rollout.md`). The end of the file has the clairvoyant bound, with which a frontier is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cascade.checks import refuse, share_problems
from cascade.conformal.arrays import Bools, Floats, Ints, Levels, StepArrays, ancestors, hopeless, point_at
from cascade.errors import UsageError

# The rounding error of a share such as 1 − 0.4 is at most one unit in the last place (1e-16); one question of 10⁷ is
# 1e-7.
_ROUNDING = 1e-12
# Jumps, of 22 bytes each, that are sorted at once: 1.4 MB stay in a processor's cache. With fewer than 16 blocks,
# splitting costs more than it saves.
_BLOCK, _FEW = 1 << 16, 16
_Counts: TypeAlias = NDArray[np.int16]  # within one step


@dataclass(frozen=True, slots=True)
class Point:
    """Means over the questions at one threshold, or at a mixture of two.

    Attributes:
        kappa: the threshold; for a mixture the lower (more careful) of the two.
        coverage: share of questions covered, in the sense of `arrays.Outcomes.covered`.
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
    """Totals of n questions at every threshold. Point k holds for kappa[k + 1] < kappa ≤ kappa[k].

    The last point holds for every kappa up to its own.

    Attributes:
        n: the number of questions.
        kappa: float64 (K,), descending from +∞.
        covered: int64 (K,), questions covered.
        found: int64 (K,), questions with a right answer kept.
        cost_nano_usd: int64 (K,), the total.
        steps: int64 (K,), steps paid.
        kept: int64 (K,), answers kept, repetitions counted.
        different: int64 (K,), different answers kept, counted within each question.
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
    def cost(self) -> Floats:
        """float64 (K,), nano-USD a question."""
        return self.cost_nano_usd / self.n

    def index(self, kappa: float | Floats) -> Ints:
        """Return the index of the point that holds at a threshold, or at each of several."""
        return point_at(self.kappa, kappa)

    def point(self, k: int) -> Point:
        """Return point k."""
        sums = (self.covered, self.found, self.cost_nano_usd, self.steps, self.kept, self.different)
        return Point(float(self.kappa[k]), *(int(total[k]) / self.n for total in sums))

    def at(self, kappa: float) -> Point:
        """Return the point that holds at a threshold; its `kappa` is the highest threshold with the same outcome."""
        return self.point(int(self.index(kappa)))

    def at_coverage(self, target: float) -> Point | None:
        """Return the cheapest point that covers at least `target` of the questions; None if no threshold does."""
        k = self._reaching(target)
        return None if k is None else self.point(k)

    def matched(self, target: float) -> Point | None:
        """Return the means at a coverage of exactly `target`, for a fair comparison of policies at one coverage.

        Coverage rises in jumps. Between two jumps, a random draw chooses for each question between the cheapest
        thresholds of the two neighbouring coverages. The means are linear in the probability of the draw, and such a
        policy could be served. A target at or below the first point's coverage gives the first point, which is the
        cheapest; its coverage may be above the target. None if the target is above the highest coverage.
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
    """Return the frontier of a policy on logged questions."""
    _need_questions(steps)
    found = _finding(steps, levels)
    jumps = _jumps(steps, levels, found)
    kappa = np.empty(jumps.fall.size + 1)
    sums = np.empty((5, kappa.size), dtype=np.int64)
    kappa[0], sums[:, 0], end = np.inf, _always(steps, levels, found), 1
    for block in _blocks(jumps):
        end = _run(block, kappa, sums, end)
    cost, paid, kept, different, hits = sums[:, :end]
    return Frontier(
        n=steps.n,
        kappa=kappa[:end],
        covered=hits + np.count_nonzero(hopeless(steps)),
        found=hits,
        cost_nano_usd=cost,
        steps=paid,
        kept=kept,
        different=different,
    )


def _finding(steps: StepArrays, levels: Levels) -> Bools:
    """Mark, for each question with a right answer that can be kept, the right leaf with the highest level."""
    right = np.where(steps.correct, levels.leaf, -np.inf).reshape(steps.n, steps.correct[0].size)
    highest = right.max(axis=1, initial=-np.inf)
    row = np.flatnonzero(highest > -np.inf)
    found = np.zeros(right.shape, dtype=np.bool_)
    found[row, right[row].argmax(axis=1)] = True
    return found.reshape(levels.leaf.shape)


def _always(steps: StepArrays, levels: Levels, found: Bools) -> list[int]:
    """Return the sums that hold at every kappa: cost, steps, answers, different answers, questions found."""
    paid, kept = levels.reach == np.inf, levels.leaf == np.inf
    counts = [int(np.count_nonzero(marks)) for marks in (paid, kept, kept & levels.first, kept & found)]
    return [int(steps.cost[paid].sum()), *counts]


class _Jumps(NamedTuple):
    """The jumps at finite levels. If an answer is kept at the level at which its step is paid, both are one jump."""

    fall: Floats  # minus the level: rising as kappa falls
    cost: Ints
    paid: Bools
    kept: _Counts
    different: _Counts
    found: Bools

    def take(self, rows: Ints) -> _Jumps:
        """Return the chosen jumps."""
        return _Jumps(*(column[rows] for column in self))  # type: ignore[arg-type]


def _jumps(steps: StepArrays, levels: Levels, found: Bools) -> _Jumps:
    paid = np.isfinite(levels.reach)
    joint = np.empty(levels.leaf.shape, dtype=np.bool_)
    kept, different = np.zeros((2, *paid.shape), dtype=np.int16)
    hit = np.zeros(paid.shape, dtype=np.bool_)
    for a in range(levels.leaf.shape[2]):  # a handful: long strided columns are faster than many short rows
        with_step = np.equal(levels.leaf[:, :, a], levels.reach, out=joint[:, :, a])
        kept += with_step
        different += with_step & levels.first[:, :, a]
        hit |= with_step & found[:, :, a]
    alone = np.isfinite(levels.leaf) & ~joint
    reach, leaf = levels.reach[paid], levels.leaf[alone]
    fall = np.concatenate([reach, leaf])
    return _Jumps(
        fall=np.negative(fall, out=fall),
        cost=np.concatenate([steps.cost[paid], np.zeros(leaf.size, dtype=np.int64)]),
        paid=np.arange(fall.size) < reach.size,
        kept=np.concatenate([kept[paid], np.ones(leaf.size, dtype=np.int16)]),
        different=np.concatenate([different[paid], levels.first[alone]]),
        found=np.concatenate([hit[paid], found[alone]]),
    )


def _blocks(jumps: _Jumps) -> Iterator[_Jumps]:
    """Split jumps into blocks of falling kappa that fit into a processor's cache; equal levels are in one block.

    This is for speed: sorting 10⁷ numbers at once would wait for memory at almost every step.
    """
    many = min(jumps.fall.size // _BLOCK, 1 << 16)
    if many < _FEW:
        if jumps.fall.size:
            yield jumps
        return
    sample = np.random.default_rng(0).choice(jumps.fall, size=64 * many)  # affects speed, not results
    edges = np.unique(np.sort(sample)[64::64])
    block = np.searchsorted(edges, jumps.fall, side="right").astype(np.uint16)
    order = np.argsort(block, kind="stable")  # a radix sort: the numbers have 16 bits
    ends = np.cumsum(np.bincount(block))
    for start, end in pairwise([0, *ends.tolist()]):
        if end > start:
            yield jumps.take(order[start:end])


def _run(block: _Jumps, kappa: Floats, sums: Ints, start: int) -> int:
    """Append the points of a block to the first `start` points; return the new number of points."""
    order = np.argsort(block.fall)
    fall = block.fall[order]
    ends = np.append(np.flatnonzero(fall[1:] != fall[:-1]), fall.size - 1)  # equal levels are one point
    end = start + ends.size
    np.negative(fall[ends], out=kappa[start:end])
    counts: tuple[Ints | Bools | _Counts, ...] = (block.cost, block.paid, block.kept, block.different, block.found)
    for row, count in zip(sums, counts, strict=True):
        np.add(np.cumsum(count[order], dtype=np.int64)[ends], row[start - 1], out=row[start:end])
    return end


class Clairvoyant(NamedTuple):
    """The best result that any policy can reach on these steps.

    Attributes:
        cost: nano-USD a question.
        coverage: share of questions covered.
        given_up: questions that have a right answer but stop after the steps without parents.
    """

    cost: float
    coverage: float
    given_up: int


def clairvoyant(steps: StepArrays, alpha: float) -> Clairvoyant:
    """Return the least possible cost if at most ⌊alpha·n⌋ questions that have a right answer are given up.

    The clairvoyant knows each question's right steps. It always pays for the steps without parents. Then it pays for
    the cheapest right step and the steps that this step depends on, unless there is none or it gives up the question.
    It gives up the questions where this costs most. No policy on these steps with as few misses costs less.

    Raises:
        UsageError: alpha does not lie in 0..1, or there is no question.
    """
    _need_questions(steps)
    refuse(share_problems(ends=True, alpha=alpha))
    solvable = steps.solvable
    roots = np.array([not parents for parents in steps.nodes])
    least = steps.cost @ roots
    up_to = steps.cost @ (ancestors(steps.nodes) | roots).T  # (n, T), the cost of each step with all that it needs
    spent = np.where(steps.correct.any(axis=2), up_to, np.iinfo(np.int64).max).min(axis=1)
    beyond = np.sort((spent - least)[solvable])
    may = steps.n - _at_least(1 - alpha, steps.n)
    given_up = min(may, int(np.count_nonzero(beyond)))
    total = int(least.sum()) + int(beyond[: beyond.size - given_up].sum())
    covered = int(np.count_nonzero(solvable | hopeless(steps))) - given_up
    return Clairvoyant(total / steps.n, covered / steps.n, given_up)


def _mixed(one: Point, other: Point, weight: float) -> Point:
    """Return the means of a random choice that takes `other` with probability `weight`."""
    means = (
        (1 - weight) * getattr(one, name) + weight * getattr(other, name) for name in Point.__slots__ if name != "kappa"
    )
    return Point(other.kappa, *means)


def _at_least(share: float, n: int) -> int:
    """Return the least count of n questions that is at least this share of them, ignoring rounding of the share."""
    return math.ceil(_number(share) * n * (1 - _ROUNDING))


def _number(share: float) -> float:
    if not math.isfinite(share):
        raise UsageError(f"a share of the questions must be a number such as 0.9, not {share}")
    return share


def _need_questions(steps: StepArrays) -> None:
    if not steps.n:
        raise UsageError("there is no question to take a mean of; check the filter or the split")
