"""The critical value of a question: the highest threshold at which a right answer is still kept.

    kappa*(q) = max over right answers of m_t(a),   +∞ where there is nothing to be found

Conformal calibration sorts these n numbers, and needs nothing else (`design/rollout.md`).
"""

from __future__ import annotations

import numpy as np

from cascade.conformal.arrays import Bools, Floats, ScoreArrays, StepArrays
from cascade.conformal.rollout import Levels, check_arrays, chunks, fill_levels, passed


def critical_kappa(steps: StepArrays, levels: Levels) -> Floats:
    """Return kappa*, float64 (n,): a question is covered at kappa exactly where kappa ≤ kappa*, −∞ meaning never.

    +∞ where no answer of all the steps there are is right, and where the right one is kept whatever kappa is. −∞ where
    the right answer is kept at no kappa: its score, or that of "next" on the way, is −∞; and where a question is not
    complete and has no right answer on record. At kappa = −∞ itself a question of kappa* = −∞ is missed all the same:
    no score of −∞ is ever included. `covered_at` says it for every kappa.

    Where a record ends before the question does it is never above what it would be, were the record complete: an
    answer of its last step is kept for its score alone. The levels must be those of `rollout.levels`, which see to it.

    >>> steps = StepArrays(
    ...     answer=np.array([[[0], [1]]]), correct=np.array([[[False], [True]]]),
    ...     cost=np.array([[10, 20]]), steps=np.array([2]), complete=np.array([True]))
    >>> levels = Levels(np.array([[np.inf, 0.3]]), np.array([[[np.inf], [0.3]]]), np.array([[[True], [True]]]))
    >>> critical_kappa(steps, levels).tolist()
    [0.3]
    """
    highest = np.empty(steps.n)
    for some in chunks(steps.n):
        _write(highest[some], steps.take(some), levels.leaf[some])
    return highest


def critical_values(steps: StepArrays, scores: ScoreArrays) -> Floats:
    """Return `critical_kappa(steps, levels(steps, scores))`, in half the time and without the memory for the levels.

    That is all that a calibration needs.

    Raises:
        UsageError: the shapes do not fit, or answers are not numbered within their question.

    >>> steps = StepArrays(
    ...     answer=np.array([[[0], [1]]]), correct=np.array([[[False], [True]]]),
    ...     cost=np.array([[10, 20]]), steps=np.array([2]), complete=np.array([True]))
    >>> critical_values(steps, ScoreArrays(np.array([[[0.9], [0.4]]]), np.array([[0.3, 0.0]]))).tolist()
    [0.3]
    """
    check_arrays(steps, scores)
    highest = np.empty(steps.n)
    for some in chunks(steps.n):
        few = steps.take(some)
        reach, leaf = np.empty(few.cost.shape), np.empty(few.answer.shape)
        fill_levels(reach, leaf, few, scores.take(some))
        _write(highest[some], few, leaf)
    return highest


def covered_at(critical: Floats, kappa: float | Floats) -> Bools:
    """Return which questions are covered at a threshold, one or one a question: bool (n,)."""
    return passed(critical, kappa)


def _write(highest: Floats, steps: StepArrays, leaf: Floats) -> None:
    """Write the critical values of some questions into `highest`."""
    highest[:] = -np.inf
    solvable = np.zeros(highest.shape, dtype=np.bool_)
    for t in range(leaf.shape[1]):
        for a in range(leaf.shape[2]):  # a handful: long strided columns are faster than many short rows
            right = steps.correct[:, t, a]
            np.maximum(highest, np.where(right, leaf[:, t, a], -np.inf), out=highest)
            solvable |= right
    highest[steps.complete & ~solvable] = np.inf
