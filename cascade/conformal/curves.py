"""Step functions of kappa, one a question, and their sum at every threshold, in integers.

A quantity of a question (its cost, its loss) changes only at the levels of `rollout`. So n of them are n·J jumps, and
their sum is a sort and a running sum: exact, no grid. Numbers that are no integers are counted in units of 2⁻³⁰,
rounded to the unfavourable side by who makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.conformal.rollout import passed
from cascade.errors import UsageError

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
        units: how many units make one of what is counted (a loss of 1, one nano-USD).
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
        """Return the mean over the questions at a threshold; None of no questions."""
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
        """Refuse what does not fit together, and sums that 64 bits would not hold."""
        shape = self.level.shape
        if len(shape) != 2 or self.jump.shape != shape or self.start.shape != shape[:1]:
            raise UsageError(
                f"start, level and jump must have the shapes (n,), (n, J) and (n, J),"
                f" not {self.start.shape}, {shape} and {self.jump.shape}"
            )
        if np.isnan(self.level).any():
            raise UsageError("a level is not a number")
        most = np.abs(self.start.astype(np.float64)).sum() + np.abs(self.jump.astype(np.float64)).sum()
        if most > _INT64 / 2:  # far from where the sum of float64 itself could be off
            raise UsageError(f"the sum over {self.n} questions may not fit into 64 bits; use a smaller unit")

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.start.shape[0])

    def at(self, kappa: float | Floats) -> Ints:
        """Return the values at one threshold, or at one a question: int64 (n,), in units."""
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
