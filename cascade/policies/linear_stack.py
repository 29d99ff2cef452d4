"""The linear forms of a step's rule, added up together for one row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cascade.conformal.arrays import Floats
from cascade.policies.design import GO_ON, Design, Designed, Memo, fixed, weighed
from cascade.policies.estimators import Linear, Scorer


class Bank(NamedTuple):
    """Linear forms of one design, which are added up together: one row takes half the time.

    Attributes:
        design: of all.
        lines: k forms.
        weights: float64 (k, D).
        intercepts: float64 (k,).
        whole: a design whose columns begin with those of `design`, and are made anyway; None where there is none.
    """

    design: Design
    lines: tuple[Linear, ...]
    weights: Floats
    intercepts: Floats
    whole: Design | None = None

    def fill(self, memo: Memo) -> None:
        """Put what the forms give for the memo's one row into the memo, each added in the order of its columns."""
        if self.whole is not None:
            rows, unforeseen = memo.designed(self.whole)
            memo.designs[self.design] = Designed(rows[: self.design.columns], unforeseen)
        made = memo.designed(self.design)
        if made.unforeseen is not None:
            memo.totals.update(dict.fromkeys(self.lines, GO_ON))
            return
        totals = weighed(self.intercepts, self.weights, made.rows).tolist()
        memo.totals.update(zip(self.lines, totals, strict=True))


def banks(scorers: Iterable[Scorer]) -> tuple[Bank, ...]:
    """Return the linear forms in scorers, those of one design together."""
    lines = {id(line): line for scorer in scorers for line in scorer.lines}
    designs = {id(line.design): line.design for line in lines.values()}
    found = []
    for design in designs.values():
        some = tuple([line for line in lines.values() if line.design is design])
        weights = fixed([line.weights for line in some], "float64")
        intercepts = fixed([line.intercept for line in some], "float64")
        whole = next((other for other in designs.values() if design.begins(other)), None)
        found.append(Bank(design, some, weights, intercepts, whole))
    return tuple(found)
