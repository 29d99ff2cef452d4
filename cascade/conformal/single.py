"""One answer out of the set: what a caller gets who asks for one text, and how often it is wrong.

The rule is that of `engine.rank`: the answer with the highest known confidence, then the most votes, then the latest
step, then the one that was kept first. Unlike coverage its error is not monotone in kappa: a later answer that is
wrong can displace an earlier right one. So a guarantee on it needs a calibration that does without monotony
(`design/rollout.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, StepArrays
from cascade.conformal.rollout import Levels, passed
from cascade.errors import UsageError

UNKNOWN_CONFIDENCE = -1.0  # keep in sync with engine.rank


@dataclass(frozen=True, slots=True)
class Single:
    """The single answers of n questions at one threshold.

    Attributes:
        answer: int64 (n,), which distinct answer is served, −1 where nothing is kept.
        right: bool (n,), whether it is right; False where nothing is kept.
    """

    answer: Ints
    right: Bools

    @property
    def error(self) -> float:
        """The share of questions whose single answer is wrong or missing; NaN of no questions."""
        return 1 - int(np.count_nonzero(self.right)) / self.right.size if self.right.size else float("nan")


def single(steps: StepArrays, levels: Levels, confidence: Floats, kappa: float | Floats) -> Single:
    """Return the answers that would be served.

    Args:
        steps: the log.
        levels: its levels under a policy.
        confidence: float64 (n, T, m), how sure the strategy is of a candidate; NaN = unknown.
        kappa: one threshold, or float64 (n,), one a question.

    Raises:
        UsageError: confidence has another shape than the answers, or kappa does not fit.
    """
    if confidence.shape != steps.answer.shape:
        raise UsageError(f"confidence must have the shape {steps.answer.shape}, not {confidence.shape}")
    kept = passed(levels.leaf, kappa)
    row, t, a = np.nonzero(kept)  # in the order in which answers are kept
    slot = row * (steps.answer.shape[1] * steps.answer.shape[2]) + steps.answer[kept]
    leader = _best(_worth(slot, t, confidence[kept], steps.answer.size), steps.n) if row.size else np.full(steps.n, -1)
    served = np.flatnonzero(leader >= 0)
    leaf = leader[served]
    answer = np.full(steps.n, -1, dtype=np.int64)
    right = np.zeros(steps.n, dtype=np.bool_)
    answer[served] = steps.answer[served, t[leaf], a[leaf]]
    right[served] = steps.correct[served, t[leaf], a[leaf]]
    return Single(answer, right)


class _Worth(NamedTuple):
    """A table with a place for each answer of each question, flat: what it is ranked by, and its first kept leaf."""

    sure: Floats
    votes: Ints
    latest: Ints
    leader: Ints


def _worth(slot: Ints, t: Ints, confidence: Floats, size: int) -> _Worth:
    """Gather kept leaves, in the order in which they were kept, by their places in the table."""
    known = ~np.isnan(confidence)
    sure = np.full(size, -np.inf)
    np.maximum.at(sure, slot[known], confidence[known])
    sure[np.bincount(slot[known], minlength=size) == 0] = UNKNOWN_CONFIDENCE
    latest, leader = np.full(size, -1), np.full(size, -1)
    np.maximum.at(latest, slot, t)
    leader[slot[::-1]] = np.arange(slot.size)[::-1]  # the last write, so the first leaf, stays
    return _Worth(sure, np.bincount(slot, minlength=size), latest, leader)


def _best(worth: _Worth, n: int) -> Ints:
    """Return the first kept leaf of each question's best answer, int64 (n,); −1 where nothing is kept."""
    leader = worth.leader.reshape(n, -1)
    leading = leader >= 0
    for key in (worth.sure, worth.votes, worth.latest, -worth.leader):
        keys = np.where(leading, key.reshape(n, -1), -np.inf)
        leading &= keys == keys.max(axis=1, keepdims=True)
    return np.asarray(leader[np.arange(n), leading.argmax(axis=1)], dtype=np.int64)
