"""The input of the conformal layer: logged steps and a policy's scores, as arrays.

n questions, at most T steps each, at most m candidates a step. Absent steps and candidates are marked, not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Logged steps of n questions.

    Attributes:
        answer: int64 (n, T, m), which distinct answer a candidate is, numbered within its question; −1 = no candidate.
        correct: bool (n, T, m), whether the candidate is right; False where there is none.
        cost: int64 (n, T), what step t cost in nano-USD; 0 beyond the last logged step.
        steps: int64 (n,), how many steps are on record, 1 ≤ steps ≤ T.
        complete: bool (n,), whether all steps that the question could take are on record. Where they are not, and no
            answer on record is right, it is unknown whether a later step would have given a right one.
    """

    answer: Ints
    correct: Bools
    cost: Ints
    steps: Ints
    complete: Bools

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.answer.shape[0])

    @property
    def horizon(self) -> int:
        """T."""
        return int(self.answer.shape[1])

    @property
    def present(self) -> Bools:
        """Bool (n, T, m), where there is a candidate."""
        return self.answer >= 0

    @property
    def solvable(self) -> Bools:
        """Bool (n,), whether a right answer is on record."""
        return np.asarray(self.correct.any(axis=(1, 2)), dtype=np.bool_)

    def take(self, rows: Ints | Bools | slice) -> StepArrays:
        """Return the chosen questions; of a slice without copying."""
        return StepArrays(self.answer[rows], self.correct[rows], self.cost[rows], self.steps[rows], self.complete[rows])

    def only(self, steps: Sequence[int]) -> StepArrays:
        """Return the same questions as if no other steps existed; the steps are numbered from 1, in rising order.

        It is exact where no step's content depends on another step, as in a ladder. A question whose record ends
        before one of the chosen steps has an incomplete record.
        """
        columns, numbers = np.array(steps, dtype=np.int64) - 1, np.array(steps, dtype=np.int64)
        many = np.count_nonzero(numbers <= self.steps[:, None], axis=1)
        reached = np.maximum(many, 1)  # a record has one step at the least; here that step is empty
        return StepArrays(
            renumbered(self.answer[:, columns]),
            self.correct[:, columns],
            self.cost[:, columns],
            np.asarray(reached, dtype=np.int64),
            np.asarray(many == numbers.size, dtype=np.bool_),
        )


def renumbered(answer: Ints) -> Ints:
    """Number the answers of each question by the place where each first appears; −1 = none stays.

    >>> renumbered(np.array([[[7], [-1], [2], [7]]]))[0, :, 0].tolist()
    [0, -1, 2, 0]
    """
    flat = answer.reshape(answer.shape[0], -1)
    found = np.full(flat.shape, -1, dtype=np.int64)
    for place in range(flat.shape[1]):
        same = flat[:, : place + 1] == flat[:, place, None]
        found[:, place] = np.where(flat[:, place] >= 0, same.argmax(axis=1), -1)
    return found.reshape(answer.shape)


class ScoreArrays(NamedTuple):
    """A policy's scores on logged steps, higher = include, +inf always: float64 (n, T, m) and (n, T)."""

    candidates: Floats
    next: Floats

    def take(self, rows: Ints | Bools | slice) -> ScoreArrays:
        """Return the chosen questions; of a slice without copying."""
        return ScoreArrays(self.candidates[rows], self.next[rows])
