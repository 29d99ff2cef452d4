"""Results on each segment of the questions, over the splits: a mean over all questions hides the worst segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats, Ints

LEAST = 20
"""With fewer questions a segment's share is mostly noise, and the worst of many segments is one with bad luck."""


class SegmentFigures(NamedTuple):
    """The results on one segment of the questions.

    Attributes:
        name: the segment.
        questions: the number of its test questions.
        broken: the share of them on which the promise is broken; in a comparison, the share not covered.
        saving: the saving as a share of the reference's cost; None if costs are unknown.
    """

    name: str
    questions: int
    broken: float
    saving: float | None


@dataclass(slots=True)
class Segments:
    """Sums over the splits' test questions, by segment."""

    segments: Sequence[str | None]
    _of: Ints = field(init=False)
    _names: list[str] = field(init=False)
    _sums: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._names = sorted({one for one in self.segments if one is not None})
        number = {name: at for at, name in enumerate(self._names)}
        self._of = np.array([number.get(one, -1) if one is not None else -1 for one in self.segments], dtype=np.int64)
        self._sums = np.zeros((4, len(self._names)))

    def add(self, rows: Ints, broken: Floats, cost: Floats, paid: Floats) -> None:
        """Add a split's test questions.

        `broken` is 1 if a question breaks the promise, 0 if not, and NaN if unknown; `cost` is the method's cost, and
        `paid` the reference's. All are float64 (k,).
        """
        known = (self._of[rows] >= 0) & ~np.isnan(broken)
        of = self._of[rows][known]
        for at, column in enumerate((broken, np.ones(rows.size), cost, paid)):
            self._sums[at] += np.bincount(of, weights=column[known], minlength=len(self._names))

    def found(self, *, cost_known: bool) -> tuple[SegmentFigures, ...]:
        """Return the segments with enough questions, the worst first; nothing if there is only one."""
        sizes = np.bincount(self._of[self._of >= 0], minlength=len(self._names))
        broken, seen, cost, paid = self._sums
        found = [
            SegmentFigures(
                name,
                int(sizes[at]),
                float(broken[at] / seen[at]),
                float(1 - cost[at] / paid[at]) if cost_known and paid[at] > 0 else None,
            )
            for at, name in enumerate(self._names)
            if sizes[at] >= LEAST and seen[at]
        ]
        return tuple(sorted(found, key=lambda one: (-one.broken, one.name))) if len(found) > 1 else ()
