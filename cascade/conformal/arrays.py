"""The input of the conformal layer: logged steps and a policy's scores, as arrays.

n questions, at most T steps each, at most m candidates a step. Absent steps and candidates are marked, not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cascade.errors import UsageError

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Parents: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Logged steps of n questions.

    Attributes:
        answer: int64 (n, T, m), which distinct answer a candidate is, numbered within its question; −1 = no candidate.
        correct: bool (n, T, m), whether the candidate is right; False where there is none.
        cost: int64 (n, T), the cost of step t in nano-USD; 0 beyond the last logged step.
        steps: int64 (n,), how many steps are on record, 1 ≤ steps ≤ T.
        complete: bool (n,), whether all steps that the question could take are on record. If they are not, and no
            answer on record is right, it is unknown whether a later step would have given a right one.
        parents: for each of the T steps the numbers of the earlier steps that it depends on; a step without any is
            always paid. None (and set to None) for a chain, in which each step depends on the one before.
    """

    answer: Ints
    correct: Bools
    cost: Ints
    steps: Ints
    complete: Bools
    parents: Parents | None = None

    def __post_init__(self) -> None:
        if self.parents is not None and self.parents == chain(self.horizon):
            object.__setattr__(self, "parents", None)

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
        """Bool (n, T, m): whether there is a candidate."""
        return self.answer >= 0

    @property
    def solvable(self) -> Bools:
        """Bool (n,): whether a right answer is on record."""
        return np.asarray(self.correct.any(axis=(1, 2)), dtype=np.bool_)

    def take(self, rows: Ints | Bools | slice) -> StepArrays:
        """Return the chosen questions; of a slice without copying."""
        return StepArrays(
            self.answer[rows],
            self.correct[rows],
            self.cost[rows],
            self.steps[rows],
            self.complete[rows],
            self.parents,
        )

    def only(self, steps: Sequence[int]) -> StepArrays:
        """Return the same questions as if no other steps existed; the steps are numbered from 1, in rising order.

        The result is exact if no step's content depends on another step, as in a ladder, or if `parents` says on which.
        A question whose record ends before one of the chosen steps has an incomplete record.

        Raises:
            UsageError: a chosen step has a parent that is not chosen.
        """
        parents = None if self.parents is None else _among(self.parents, steps)
        columns, numbers = np.array(steps, dtype=np.int64) - 1, np.array(steps, dtype=np.int64)
        many = np.count_nonzero(numbers <= self.steps[:, None], axis=1)
        reached = np.maximum(many, 1)  # a record has at least one step; here that step is empty
        return StepArrays(
            renumbered(self.answer[:, columns]),
            self.correct[:, columns],
            self.cost[:, columns],
            np.asarray(reached, dtype=np.int64),
            np.asarray(many == numbers.size, dtype=np.bool_),
            parents,
        )

    @property
    def nodes(self) -> Parents:
        """The parents of each step, given for a chain too (where `parents` is None)."""
        return chain(self.horizon) if self.parents is None else self.parents


def chain(horizon: int) -> Parents:
    """Return the parents of the steps of a chain.

    >>> chain(3)
    ((), (1,), (2,))
    """
    return tuple([(step,) if step else () for step in range(horizon)])


def ancestors(parents: Parents) -> Bools:
    """Return, for each step, the steps to be paid to reach it, itself included: bool (T, T), a row for each step.

    >>> ancestors(((), (1,), (1,), (2, 3))).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]]
    """
    found = np.eye(len(parents), dtype=np.bool_)
    for step, needed in enumerate(parents):
        for parent in needed:
            found[step] |= found[parent - 1]
    return found


def parents_problems(parents: Parents, horizon: int) -> list[str]:
    """Return the problems of the parents of T steps, in words."""
    problems = [f"parents must name those of {horizon} steps, not of {len(parents)}"] if len(parents) != horizon else []
    for number, needed in enumerate(parents, 1):
        if list(needed) != sorted(set(needed)) or any(not 1 <= parent < number for parent in needed):
            problems.append(f"the parents of step {number} must be earlier steps in rising order, not {list(needed)}")
    return problems


def _among(parents: Parents, steps: Sequence[int]) -> Parents:
    """Return the parents of the chosen steps, numbered anew."""
    number = {step: place for place, step in enumerate(steps, 1)}
    lacking = {step: [p for p in parents[step - 1] if p not in number] for step in steps}
    if any(lacking.values()):
        listed = "; ".join(f"step {step} depends on step {', '.join(map(str, p))}" for step, p in lacking.items() if p)
        raise UsageError(f"These steps cannot be taken without others: {listed}.")
    return tuple([tuple([number[parent] for parent in parents[step - 1]]) for step in steps])


def renumbered(answer: Ints) -> Ints:
    """Number the answers of each question in the order of their first appearance; −1 (no candidate) stays −1.

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
    """A policy's scores on logged steps, higher = include, +inf always: float64 (n, T, m) and (n, T).

    `next` at column t is the score of the step numbered t + 2, as it is given at the last of that step's parents: in a
    chain, that of going on from the step numbered t + 1. The last column is ignored.
    """

    candidates: Floats
    next: Floats

    def take(self, rows: Ints | Bools | slice) -> ScoreArrays:
        """Return the chosen questions; of a slice without copying."""
        return ScoreArrays(self.candidates[rows], self.next[rows])
