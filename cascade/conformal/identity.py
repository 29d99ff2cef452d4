"""Find the questions where the single answer depends on which answers are equal, in logs that do not record this.

Answers are ranked by confidence, then by votes, then the latest first (`single`). A log without texts does not show
which answers are the same, and counting all right ones as one answer would let the truth vote. This rarely matters,
because a promise asks only whether the served answer is right, and equal texts are equally right:

* One kept answer alone has the highest confidence: it is served, whatever equals it.
* Two answers are kept, as sure as one another: where one is right and the other wrong they differ, and the latest is
  served; where both are right, or both wrong, so is what is served.
* Three or more are kept, and the highest confidence is shared: the votes decide, and whose they are is not known.
"""

from __future__ import annotations

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.conformal.rollout import Levels
from cascade.conformal.served import UNKNOWN_CONFIDENCE, known_sure

_LOWEST = -float(np.finfo(np.float64).max)
"""Stands for a threshold of −∞, which every finite level reaches, and no level of −∞ (`rollout.passed`)."""


def hangs_on_identity(
    levels: Levels,
    confidence: Floats,
    *,
    sure: Floats | None = None,
    kappa: float | None = None,
    present: Bools | None = None,
) -> Bools:
    """Return the questions on which, at some threshold, votes decide whether the served answer is right: bool (n,).

    The function reads no truth and no answer, only which candidates are kept at each threshold and their confidences.

    Args:
        levels: the levels under a policy, by `rollout.levels`.
        confidence: float64 (n, T, m), what ranks the candidates; NaN = unknown.
        sure: float64 (n, T, m), given where the cascade may abstain: then how sure it is of the answer served, the
            highest figure of all that equal it, must not hang on that either.
        kappa: the threshold, where only one matters; None = all.
        present: bool (n, T, m), where there is an answer that may be served where none is kept (`served.last_resort`);
            None where there is none.

    >>> leaf, tie = np.array([[[np.inf], [0.4], [0.2]]]), np.full((1, 3, 1), np.nan)
    >>> told = np.array([[[0.3], [0.6], [0.5]]])
    >>> levels = Levels(leaf[:, :, 0], leaf, leaf > -np.inf)
    >>> hangs_on_identity(levels, tie).tolist(), hangs_on_identity(levels, told).tolist()
    ([True], [False])
    """
    n, steps, places = levels.leaf.shape
    leaf, ranked = (one.reshape(n, steps * places) for one in (levels.leaf, confidence))
    ranked = np.where(np.isnan(ranked), UNKNOWN_CONFIDENCE, ranked)
    found = np.zeros(n, dtype=np.bool_)
    # What is kept changes at a question's own levels alone; one of −∞ is never reached.
    bars = leaf.T if kappa is None else [np.full(n, max(kappa, _LOWEST))]
    for bar in bars:
        kept = (leaf >= bar[:, None]) & (bar > -np.inf)[:, None]
        best = np.where(kept, ranked, -np.inf).max(axis=1, initial=-np.inf)
        top = kept & (ranked == best[:, None])
        found |= (kept.sum(axis=1) > 2) & (top.sum(axis=1) > 1)
        if sure is not None:
            figures = np.where(kept, known_sure(sure.reshape(leaf.shape)), -np.inf)
            found |= _served(top, places, figures) < figures.max(axis=1, initial=-np.inf)
    if present is not None:
        there = present.reshape(leaf.shape) & (leaf.max(axis=1) < (np.inf if kappa is None else kappa))[:, None]
        best = np.where(there, ranked, -np.inf).max(axis=1, initial=-np.inf)
        found |= (there.sum(axis=1) > 2) & ((there & (ranked == best[:, None])).sum(axis=1) > 1)
    return found


def _served(top: Bools, places: int, figures: Floats) -> Floats:
    """Return the figure of the latest, in its step the first, of each question's likeliest answers: float64 (n,)."""
    number: Ints = np.arange(top.shape[1])
    turn = number // places * places + places - 1 - number % places
    at = np.where(top, turn, -1).argmax(axis=1)
    return np.asarray(figures[np.arange(len(top)), at], dtype=np.float64)
