"""Episodes as one table of arrays: what fitting, calibrating, evaluating and comparing read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, StepArrays


@dataclass(frozen=True, slots=True)
class Walk:
    """What one fixed way to answer brought on the same questions: the guide alone, a prompted model that decides.

    Attributes:
        known: bool (n,), whether this way was logged for the question; the other arrays mean nothing where not.
        covered: bool (n,), whether a right answer is among those kept.
        right: bool (n,), whether the answer served is right.
        cost: int64 (n,), nano-USD.
        length: int64 (n,), steps.
        leaves, distinct: int64 (n,), answers kept, and how many of them differ.
    """

    known: Bools
    covered: Bools
    right: Bools
    cost: Ints
    length: Ints
    leaves: Ints
    distinct: Ints

    def take(self, rows: Ints | Bools) -> Walk:
        """Return the chosen questions."""
        return Walk(*(getattr(self, name)[rows] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """Logged questions with all their steps.

    Attributes:
        dataset: what the questions are called.
        ids: an episode's id each.
        groups: what a split must not cut through, each (a document, a user; the question itself by default).
        sources: the m places of a step's candidates ("base", "guide"; "answer" in a ladder).
        arrays: answers, truth and costs.
        confidence: float64 (n, T, m), the strategy's own estimate that a candidate is right; NaN = unknown.
        signals: float64 (n, T) by name; NaN = unknown.
        walks: other ways to answer the same questions, by name.
        cost_known: False where any cost is unknown; then no cost may be shown.
    """

    dataset: str
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    sources: tuple[str, ...]
    arrays: StepArrays
    confidence: Floats
    signals: Mapping[str, Floats]
    walks: Mapping[str, Walk]
    cost_known: bool = True

    @property
    def n(self) -> int:
        """The number of questions."""
        return self.arrays.n

    def take(self, rows: Ints | Bools) -> EpisodeTable:
        """Return the chosen questions."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return EpisodeTable(
            self.dataset,
            tuple([self.ids[i] for i in chosen]),
            tuple([self.groups[i] for i in chosen]),
            self.sources,
            self.arrays.take(chosen),
            self.confidence[chosen],
            {name: values[chosen] for name, values in self.signals.items()},
            {name: walk.take(chosen) for name, walk in self.walks.items()},
            self.cost_known,
        )
