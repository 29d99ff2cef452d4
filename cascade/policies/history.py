"""Logged steps as a policy may read them: without any information on which answers are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class History:
    """Steps of n questions, at most T each, with m places for candidates. NaN means unknown. It has no labels.

    Attributes:
        sources: the m places ("base", "guide"); "answer" for a place that several models fill (in a ladder).
        answer: int64 (n, T, m), which distinct answer a candidate is, numbered within its question; −1 = none.
        texts_known: bool (n,), whether equal numbers mean equal texts. Without texts in the log, its table counts all
            right answers of a question as one: agreement would then leak the labels, so it is NaN.
        confidence: float64 (n, T, m), the strategy's own estimate that a candidate is right.
        signals: float64 (n, T) by name (`design/signals.md`).
        asked: float64 (n,) by name, numbers of the question's text (`policies.question_features`).
        cost: float64 (n, T), nano-USD of each step.
        tokens: float64 (n, T), input and output tokens of each step.
        steps: int64 (n,), how many steps are on record.
        complete: bool (n,), whether these are all that the question could take.
        bought: bool (n, T), the steps on record where some before the last were left out; None: all up to `steps`.
    """

    sources: tuple[str, ...]
    answer: Ints
    texts_known: Bools
    confidence: Floats
    signals: Mapping[str, Floats]
    asked: Mapping[str, Floats]
    cost: Floats
    tokens: Floats
    steps: Ints
    complete: Bools
    bought: Bools | None = None

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.answer.shape[0])

    @property
    def horizon(self) -> int:
        """T."""
        return int(self.answer.shape[1])

    def has(self, step: int) -> Bools:
        """Return whether a step, numbered from 1, is on record: bool (n,)."""
        there = self.steps >= step
        return there if self.bought is None else there & self.bought[:, step - 1]

    def take(self, rows: Ints | Bools | slice) -> History:
        """Return the chosen questions; of a slice without copying."""
        return History(
            self.sources,
            self.answer[rows],
            self.texts_known[rows],
            self.confidence[rows],
            {name: values[rows] for name, values in self.signals.items()},
            {name: values[rows] for name, values in self.asked.items()},
            self.cost[rows],
            self.tokens[rows],
            self.steps[rows],
            self.complete[rows],
            None if self.bought is None else self.bought[rows],
        )

    def only(self, steps: Sequence[int]) -> History:
        """Return the same questions as if there were no other steps; numbered from 1, in rising order.

        Signals that compare a step with others keep their values.
        """
        columns = np.array(steps, dtype=np.int64) - 1
        there = np.count_nonzero(np.array(steps, dtype=np.int64) <= self.steps[:, None], axis=1)
        return replace(
            self,
            answer=self.answer[:, columns],
            confidence=self.confidence[:, columns],
            signals={name: values[:, columns] for name, values in self.signals.items()},
            cost=self.cost[:, columns],
            tokens=self.tokens[:, columns],
            steps=np.asarray(there, dtype=np.int64),
            bought=None if self.bought is None else self.bought[:, columns],
        )
