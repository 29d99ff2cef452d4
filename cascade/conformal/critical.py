"""The critical value of a question: the highest threshold at which a right answer is still kept.

    kappa*(q) = max over right answers of m_t(a),   +∞ where there is nothing to be found

Conformal calibration sorts these n numbers, and needs nothing else (`design/rollout.md`).
"""

from __future__ import annotations

import numpy as np

from cascade.conformal.arrays import Bools, Floats, StepArrays
from cascade.conformal.rollout import Levels, hopeless, passed


def critical_kappa(steps: StepArrays, levels: Levels) -> Floats:
    """Return kappa*, float64 (n,): a question is covered at kappa exactly where kappa ≤ kappa*, −∞ meaning never.

    +∞ where no answer of all the steps there are is right, and where the right one is kept whatever kappa is. −∞ where
    the right answer is kept at no kappa: its score, or that of "next" on the way, is −∞; and where a question is not
    complete and has no right answer on record. At kappa = −∞ itself a question of kappa* = −∞ is missed all the same:
    no score of −∞ is ever included. `covered_at` says it for every kappa.

    >>> steps = StepArrays(
    ...     answer=np.array([[[0], [1]]]), correct=np.array([[[False], [True]]]),
    ...     cost=np.array([[10, 20]]), steps=np.array([2]), complete=np.array([True]))
    >>> levels = Levels(np.array([[np.inf, 0.3]]), np.array([[[np.inf], [0.3]]]), np.array([[[True], [True]]]))
    >>> critical_kappa(steps, levels).tolist()
    [0.3]
    """
    right = np.where(steps.correct, levels.leaf, -np.inf)
    highest = np.max(right, axis=(1, 2), initial=-np.inf)
    highest[hopeless(steps)] = np.inf
    return np.asarray(highest, dtype=np.float64)


def covered_at(critical: Floats, kappa: float | Floats) -> Bools:
    """Return which questions are covered at a threshold, one or one a question: bool (n,)."""
    return passed(critical, kappa)
