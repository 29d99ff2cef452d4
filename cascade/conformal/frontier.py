"""The whole frontier of a policy: coverage, cost, length and set size at every possible threshold.

Each is a step function of kappa that changes only at the levels of `arrays`. So the levels of all questions are sorted
once, and each curve is a running sum of integers: O(nT log nT), exact, no grid. As kappa falls none of them falls
(`design/rollout.md`). The two bounds that a frontier is read against stand at the end of the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cascade.checks import refuse, share_problems
from cascade.conformal.arrays import Bools, Floats, Ints, Levels, StepArrays, ancestors, hopeless, passed
from cascade.errors import UsageError

# A share such as 1 − 0.4 is off by at most one unit in the last place (1e-16); one question of 10⁷ is 1e-7.
_ROUNDING = 1e-12
# Jumps, of 22 bytes each, that are sorted at once: 1.4 MB stay in a processor's cache. Below 16 blocks splitting costs
# more than it saves.
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
    """Totals of n questions at every threshold. Point k holds for kappa[k + 1] < kappa ≤ kappa[k], the last one below.

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
        """Return the index of the point that holds at a threshold, or at each of several."""
        if np.isnan(kappa).any():
            raise UsageError("kappa is not a number; give a threshold, −inf for everything, +inf for the least")
        above = self.kappa.size - np.searchsorted(self.kappa[::-1], kappa, side="left")
        return np.asarray(above - 1, dtype=np.int64)

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

        Coverage rises in jumps. Between two jumps, a coin chooses for each question between the cheapest thresholds of
        the two neighbouring coverages. The means are linear in the coin's probability, and such a policy could be
        served. A target at or below the first point's coverage gives the first point, which is the cheapest; its
        coverage may be above the target. None if the target is above the highest coverage.
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
        levels: its levels under the policy, by `arrays.levels`.

    Raises:
        UsageError: there is no question.
    """
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
    """Mark, for each question with a right answer to keep, the right leaf with the highest level."""
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
        return _Jumps(
            self.fall[rows],
            self.cost[rows],
            self.paid[rows],
            self.kept[rows],
            self.different[rows],
            self.found[rows],
        )


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
    """Split jumps into blocks of falling kappa that fit a processor's cache; one level lies in one block.

    Sorting 10⁷ numbers at once would wait for memory at almost every step.
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
        coverage: share of questions covered, in the sense of `arrays.Outcomes.covered`.
        given_up: questions that have a right answer but stop after the steps without parents.
    """

    cost: float
    coverage: float
    given_up: int


def clairvoyant(steps: StepArrays, alpha: float) -> Clairvoyant:
    """Return the least possible cost if at most ⌊alpha·n⌋ questions that have a right answer are given up.

    The clairvoyant knows each question's right steps. It always pays the steps without parents. Then it pays for the
    cheapest right step, with the steps that this one depends on, unless there is none or it gives the question up. It
    gives up the questions where this costs most. No policy on these steps with as few misses costs less.

    Raises:
        UsageError: alpha does not lie in 0..1, or there is no question.
    """
    _need_questions(steps)
    refuse(share_problems(ends=True, alpha=alpha))
    solvable = steps.solvable
    roots = np.array([not parents for parents in steps.nodes])
    least = steps.cost @ roots
    up_to = steps.cost @ (ancestors(steps.nodes) | roots).T  # (n, T), the cost of each step with all before it
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


# --- Step functions of kappa, one a question, and their sum at every threshold, in integers ---
# A quantity of a question (its cost, its loss) changes only at the levels of `arrays`. So n of them are n·J jumps, and
# their sum is a sort and a running sum: exact, no grid. Numbers that are no integers are counted in units of 2⁻³⁰,
# rounded to the unfavourable side by who makes them.

UNITS = 1 << 30
"""Units of a graded loss of 1. 2⁻³⁰ is below what any quality is known to, and 2³³ losses still fit into 64 bits."""
_INT64 = float(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Curve:
    """The sum over n questions at every threshold. Point k holds for kappa[k + 1] < kappa ≤ kappa[k], the last below.

    Attributes:
        n: the number of questions.
        kappa: float64 (K,), descending from +∞.
        total: int64 (K,), the sum in units.
        units: how many units make up 1 (a loss of 1, one nano-USD).
    """

    n: int
    kappa: Floats
    total: Ints
    units: int = 1

    def index(self, kappa: float | Floats) -> Ints:
        """Return which point holds at a threshold, or at each of many: int64 of the same shape.

        Raises:
            UsageError: kappa is not a number.
        """
        if np.isnan(kappa).any():
            raise UsageError("kappa is not a number; give a threshold, −inf for everything, +inf for the least")
        return np.asarray(self.kappa.size - 1 - np.searchsorted(self.kappa[::-1], kappa, side="left"), dtype=np.int64)

    def sum_at(self, kappa: float) -> Fraction:
        """Return the sum at a threshold, exactly."""
        return Fraction(int(self.total[self.index(kappa)]), self.units)

    def mean_at(self, kappa: float) -> float | None:
        """Return the mean over the questions at a threshold; None without questions."""
        return float(self.sum_at(kappa) / self.n) if self.n else None


@dataclass(frozen=True, slots=True)
class StepFunctions:
    """n step functions of kappa: start + the jumps whose level is reached, in integer units.

    Attributes:
        start: int64 (n,), the value at a threshold that no level reaches.
        level: float64 (n, J), where it jumps as kappa falls: at level ≥ kappa, −∞ = never.
        jump: int64 (n, J), by how much.
        units: how many units make one of what is counted.
    """

    start: Ints
    level: Floats
    jump: Ints
    units: int = 1

    def __post_init__(self) -> None:
        """Raise UsageError if the arrays do not fit together, or if their sums need more than 64 bits."""
        shape = self.level.shape
        if len(shape) != 2 or self.jump.shape != shape or self.start.shape != shape[:1]:
            raise UsageError(
                f"start, level and jump must have the shapes (n,), (n, J) and (n, J),"
                f" not {self.start.shape}, {shape} and {self.jump.shape}"
            )
        if np.isnan(self.level).any():
            raise UsageError("a level is not a number")
        most = np.abs(self.start.astype(np.float64)).sum() + np.abs(self.jump.astype(np.float64)).sum()
        if most > _INT64 / 2:  # far below the range in which the float64 sum itself could be wrong
            raise UsageError(f"the sum over {self.n} questions may not fit into 64 bits; use a smaller unit")

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.start.shape[0])

    def at(self, kappa: float | Floats) -> Ints:
        """Return the values at one threshold, or at one threshold for each question: int64 (n,), in units."""
        reached = passed(self.level, kappa)
        return np.asarray(self.start + np.where(reached, self.jump, 0).sum(axis=1), dtype=np.int64)

    def take(self, rows: Ints | Bools) -> StepFunctions:
        """Return the chosen questions."""
        return StepFunctions(self.start[rows], self.level[rows], self.jump[rows], self.units)

    def curve(self) -> Curve:
        """Return their sum at every threshold, in O(nJ log nJ), exactly.

        >>> two = StepFunctions(np.array([5, 5]), np.array([[0.5], [np.inf]]), np.array([[-5], [-2]]))
        >>> curve = two.curve()
        >>> curve.kappa.tolist(), curve.total.tolist()
        ([inf, 0.5], [8, 3])
        """
        always = self.level == np.inf
        first = int(self.start.sum()) + int(self.jump[always].sum())
        moving = np.isfinite(self.level) & (self.jump != 0)
        fall, jump = -self.level[moving], self.jump[moving]
        order = np.argsort(fall)
        fall = fall[order]
        ends = np.flatnonzero(np.append(fall[1:] != fall[:-1], np.ones(min(1, fall.size), dtype=np.bool_)))
        total = first + np.cumsum(jump[order], dtype=np.int64)[ends]
        return Curve(self.n, np.append(np.inf, -fall[ends]), np.append(first, total), self.units)
