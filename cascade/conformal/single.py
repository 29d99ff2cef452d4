"""One answer out of the set: what a caller gets who asks for one text, and how often it is wrong.

The rule is that of `engine.rank`: the answer with the highest known confidence, then the most votes, then the latest
step, then the one that was kept first. Of the texts that count as that answer, the surest is served. Unlike coverage
its error is not monotone in kappa: a later answer that is wrong can displace an earlier right one. So a guarantee on it
needs a calibration that does without monotony (`design/rollout.md`).
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
        sure: float64 (n,), how sure the cascade is of it: the highest known figure of the kept candidates that give it;
            NaN where none is known or nothing is kept.
    """

    answer: Ints
    right: Bools
    sure: Floats

    @property
    def error(self) -> float:
        """The share of questions whose single answer is wrong or missing; NaN of no questions."""
        return 1 - int(np.count_nonzero(self.right)) / self.right.size if self.right.size else float("nan")


def single(
    steps: StepArrays, levels: Levels, confidence: Floats, kappa: float | Floats, *, sure: Floats | None = None
) -> Single:
    """Return the answers that would be served.

    Args:
        steps: the log.
        levels: its levels under a policy.
        confidence: float64 (n, T, m), how sure the strategy is of a candidate, which ranks them; NaN = unknown.
        kappa: one threshold, or float64 (n,), one a question.
        sure: float64 (n, T, m), how sure the cascade is of a candidate, for abstaining (`EpisodeTable.sure`); NaN =
            unknown. The confidence by default.

    Raises:
        UsageError: confidence or sure has another shape than the answers, or kappa does not fit.
    """
    figures = {"confidence": confidence, "sure": confidence if sure is None else sure}
    for name, given in figures.items():
        if given.shape != steps.answer.shape:
            raise UsageError(f"{name} must have the shape {steps.answer.shape}, not {given.shape}")
    kept = passed(levels.leaf, kappa)
    row, t, a = np.nonzero(kept)  # in the order in which answers are kept
    slot = row * (steps.answer.shape[1] * steps.answer.shape[2]) + steps.answer[kept]
    found = Single(np.full(steps.n, -1), np.zeros(steps.n, dtype=np.bool_), np.full(steps.n, np.nan))
    if not row.size:
        return found
    worth = _worth(slot, t, confidence[kept], steps.answer.size)
    leader = _best(worth, steps.n)
    served = np.flatnonzero(leader >= 0)
    leaf = leader[served]
    found.answer[served] = steps.answer[served, t[leaf], a[leaf]]
    found.right[served] = steps.correct[served, t[leaf], a[leaf]]
    found.sure[served] = _highest(slot, figures["sure"][kept], steps.answer.size)[slot[leaf]]
    return found


def last_resort(steps: StepArrays, confidence: Floats) -> Bools:
    """Return whether the best of all answers on record is right, bool (n,): what is served where a walk keeps nothing.

    A walk that ends without a kept answer has gone to the last step, which brought none (`conformal.actions`). Then the
    engine serves the best answer of all steps (`engine.rank`), unless it may abstain. False where the record is not
    complete: what would have come is unknown.

    Args:
        steps: the log.
        confidence: float64 (n, T, m), how sure the strategy is of a candidate; NaN = unknown.
    """
    leaf = np.where(steps.present, np.inf, -np.inf)
    everything = Levels(np.full(steps.cost.shape, np.inf), leaf, steps.present)
    return np.asarray(single(steps, everything, confidence, np.inf).right & steps.complete, dtype=np.bool_)


def known_sure(sure: Floats) -> Floats:
    """Return how sure the cascade is of answers, −∞ where that is not known (NaN): no higher than any bar."""
    return np.where(np.isnan(sure), -np.inf, sure)


def serves(sure: Floats, abstain_below: float | Floats) -> Bools:
    """Return where an answer is served: the cascade is at least as sure of it as is asked for. `engine.abstains`.

    Args:
        sure: float64 (n,), how sure it is; NaN where that is not known or nothing is kept.
        abstain_below: what is asked for, one bar or one an answer; −∞ serves whatever there is, +∞ nothing short of it.

    >>> serves(np.array([0.6, 0.5, np.nan]), 0.6).tolist(), serves(np.array([0.5, np.nan]), -np.inf).tolist()
    ([True, False, False], [True, True])
    """
    return np.asarray(known_sure(sure) >= abstain_below, dtype=np.bool_)


def _highest(slot: Ints, values: Floats, size: int) -> Floats:
    """Return the highest known value of each place in the table, NaN where none is known."""
    highest = np.full(size, np.nan)
    np.fmax.at(highest, slot, values)
    return highest


class _Worth(NamedTuple):
    """A table with a place for each answer of each question, flat: what it is ranked by, and its leaves.

    `first` is the leaf that was kept first, and `leader` the one that is served: the surest, of equals the first. Texts
    that count as the same answer may still differ in a blank or a capital, and so in which of them is right.
    """

    confidence: Floats
    votes: Ints
    latest: Ints
    first: Ints
    leader: Ints


def _worth(slot: Ints, t: Ints, confidence: Floats, size: int) -> _Worth:
    """Gather kept leaves, in the order in which they were kept, by their places in the table."""
    highest = _highest(slot, confidence, size)
    latest, first, leader = np.full(size, -1), np.full(size, -1), np.full(size, -1)
    np.maximum.at(latest, slot, t)
    first[slot[::-1]] = np.arange(slot.size)[::-1]  # the last write stays
    surest_last = np.argsort(-_ranked(confidence), kind="stable")[::-1]
    leader[slot[surest_last]] = surest_last
    return _Worth(_ranked(highest), np.bincount(slot, minlength=size), latest, first, leader)


def _ranked(confidence: Floats) -> Floats:
    """Return confidences, unknown ones below all others."""
    return np.where(np.isnan(confidence), UNKNOWN_CONFIDENCE, confidence)


def _best(worth: _Worth, n: int) -> Ints:
    """Return the first kept leaf of each question's best answer, int64 (n,); −1 where nothing is kept."""
    leader = worth.leader.reshape(n, -1)
    leading = leader >= 0
    for key in (worth.confidence, worth.votes, worth.latest, -worth.first):
        keys = np.where(leading, key.reshape(n, -1), -np.inf)
        leading &= keys == keys.max(axis=1, keepdims=True)
    return np.asarray(leader[np.arange(n), leading.argmax(axis=1)], dtype=np.int64)
