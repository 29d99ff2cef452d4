"""The single answers that are served at every threshold, and the results along a path of thresholds.

The answer served at kappa changes only where kappa passes one of the question's own levels. So each question's answers
are ranked once for each of its levels, by `single`, and a path of any length only looks them up. The error of a served
answer is not monotone in kappa: a guarantee on it is made by tests along a path (`ltt`, `design/single-answer.md`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, Levels, StepArrays, StepFunctions, open_end, passed
from cascade.errors import UsageError

# --- The single answer out of the set, and how often it is wrong ---
# The rule is that of `engine.rank`: the answer with the highest known confidence, then the most votes, then the latest
# step, then the one that was kept first. Of the texts that count as that answer, the one with the highest confidence is
# served. Unlike coverage, the error is not monotone in kappa: a later wrong answer can displace an earlier right one.
# So a guarantee on it needs a calibration that does not assume monotonicity (`design/rollout.md`).

UNKNOWN_CONFIDENCE = -1.0  # keep in sync with engine.rank


@dataclass(frozen=True, slots=True)
class Single:
    """The single answers of n questions at one threshold.

    Attributes:
        answer: int64 (n,), the number of the answer served, −1 if nothing is kept.
        right: bool (n,), whether it is right; False if nothing is kept.
        sure: float64 (n,), the cascade's confidence in it: the highest known value of the kept candidates with this
            answer; NaN if none is known or nothing is kept.
    """

    answer: Ints
    right: Bools
    sure: Floats

    @property
    def error(self) -> float:
        """The share of questions whose single answer is wrong or missing; NaN without questions."""
        return 1 - int(np.count_nonzero(self.right)) / self.right.size if self.right.size else float("nan")


def single(
    steps: StepArrays, levels: Levels, confidence: Floats, kappa: float | Floats, *, sure: Floats | None = None
) -> Single:
    """Return the single answer that would be served for each question.

    `confidence` ranks the candidates; `sure`, by default the same, decides whether to abstain. Both are float64
    (n, T, m), NaN = unknown. `kappa` is one threshold, or one for each question.
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
    """Return whether the best of all logged answers is right, bool (n,): it is served if a walk keeps nothing.

    A walk that ends without a kept answer has gone to the last step, which had no answer (`policies.base.actions`).
    Then the engine serves the best answer of all steps (`engine.rank`), unless it may abstain. False if the record is
    not complete, because the later answers are unknown.
    """
    leaf = np.where(steps.present, np.inf, -np.inf)
    everything = Levels(np.full(steps.cost.shape, np.inf), leaf, steps.present)
    return np.asarray(single(steps, everything, confidence, np.inf).right & steps.complete, dtype=np.bool_)


def known_sure(sure: Floats) -> Floats:
    """Return the confidences with −∞ for unknown ones (NaN), which is below every bar."""
    return np.where(np.isnan(sure), -np.inf, sure)


def serves(sure: Floats, abstain_below: float | Floats) -> Bools:
    """Return where an answer is served: its confidence is at least `abstain_below`, as in `engine.abstains`.

    `abstain_below` is one bar, or one for each answer; −∞ serves every answer, +∞ only a confidence of +∞. NaN in
    `sure` means unknown, or that nothing is kept.

    >>> serves(np.array([0.6, 0.5, np.nan]), 0.6).tolist(), serves(np.array([0.5, np.nan]), -np.inf).tolist()
    ([True, False, False], [True, True])
    """
    return np.asarray(known_sure(sure) >= abstain_below, dtype=np.bool_)


def _highest(slot: Ints, values: Floats, size: int) -> Floats:
    """Return the highest known value of each place in the table, NaN if none is known."""
    highest = np.full(size, np.nan)
    np.fmax.at(highest, slot, values)
    return highest


class _Worth(NamedTuple):
    """A flat table with a place for each answer of each question: the keys that rank the answer, and its leaves.

    `first` is the leaf that was kept first. `leader` is the leaf that is served: the one with the highest confidence,
    the first of equals. Texts that count as the same answer may still differ in a blank or a capital, and so in whether
    they are right.
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
    first[slot[::-1]] = np.arange(slot.size)[::-1]  # the last write, so the first leaf, stays
    surest_last = np.argsort(-_ranked(confidence), kind="stable")[::-1]
    leader[slot[surest_last]] = surest_last
    return _Worth(_ranked(highest), np.bincount(slot, minlength=size), latest, first, leader)


def _ranked(confidence: Floats) -> Floats:
    """Return confidences, unknown ones below all others."""
    return np.where(np.isnan(confidence), UNKNOWN_CONFIDENCE, confidence)


def _best(worth: _Worth, n: int) -> Ints:
    """Return the first kept leaf of each question's best answer, int64 (n,); −1 if nothing is kept."""
    leader = worth.leader.reshape(n, -1)
    leading = leader >= 0
    for key in (worth.confidence, worth.votes, worth.latest, -worth.first):
        keys = np.where(leading, key.reshape(n, -1), -np.inf)
        leading &= keys == keys.max(axis=1, keepdims=True)
    return np.asarray(leader[np.arange(n), leading.argmax(axis=1)], dtype=np.int64)


# --- served ---

# Questions processed at once: their tables of answers, a few kilobytes each, should stay in a processor's cache.
_CHUNK = 1 << 12
# Cells of the table of thresholds × confidences: 16 million of 8 bytes are 128 MB.
_MOST_CELLS = 1 << 24
_MOST = float(np.finfo(np.float64).max)


class PathPoint(NamedTuple):
    """One way to serve: the best answer kept at `kappa`, unless its confidence is too low.

    Attributes:
        kappa: the threshold of the policy's scores.
        abstain_below: nothing is served if the confidence of the best answer is below this or unknown, or if nothing is
            kept. −∞ serves every answer; +∞ serves nothing.
    """

    kappa: float
    abstain_below: float = -math.inf


class Outcome(NamedTuple):
    """The outcomes of n questions at one point.

    Attributes:
        loss: bool (n,), whether the question counts against the guarantee.
        abstained: bool (n,), whether nothing is served because the confidence is too low.
        cost: int64 (n,), the recorded cost in nano-USD.
        cut: bool (n,), whether the walk reaches the end of an incomplete record. Its true cost is unknown, but at least
            `cost`; the question counts as a loss unless `abstain_below` is +∞.
        asks_last: bool (n,), whether the walk takes the last step.
    """

    loss: Bools
    abstained: Bools
    cost: Ints
    cut: Bools
    asks_last: Bools


@dataclass(frozen=True, slots=True)
class Served:
    """The single answers of n questions at every threshold.

    Each question has L levels and L + 1 states. State j holds from the question's j-th level down to the next one, and
    state 0 above the first level, where nothing is kept.

    Attributes:
        level: float64 (n, L), descending: the thresholds at which the state changes, −∞ = never.
        loss: bool (n, L + 1), whether the answer served in state j breaks the guarantee.
        sure: float64 (n, L + 1), the confidence of the answer served; NaN = unknown, or nothing is kept.
        reach: float64 (n, T), the levels of the steps.
        cost: int64 (n, T), the cost of each step in nano-USD.
        cut: float64 (n,), the level at which the walk reaches the end of an incomplete record; −∞ = never.
    """

    level: Floats
    loss: Bools
    sure: Floats
    reach: Floats
    cost: Ints
    cut: Floats

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.level.shape[0])

    def take(self, rows: Ints | Bools) -> Served:
        """Return the chosen questions, repetitions allowed."""
        return Served(*(getattr(self, name)[rows] for name in self.__slots__))

    def state(self, kappa: float) -> Ints:
        """Return the state of each question at a threshold: int64 (n,)."""
        bar = max(kappa, -_MOST)  # every finite level reaches −∞; a level of −∞ does not
        return np.asarray(np.count_nonzero(self.level >= bar, axis=1), dtype=np.int64)

    def at(self, point: PathPoint) -> Outcome:
        """Return the outcome of each question at one point."""
        _check_path([point])
        bar, rows, state = max(point.kappa, -_MOST), np.arange(self.n), self.state(point.kappa)
        abstained = ~serves(self.sure[rows, state], point.abstain_below)
        paid = self.reach >= bar
        cost = np.where(paid, self.cost, 0).sum(axis=1, dtype=np.int64)
        return Outcome(self.loss[rows, state] & ~abstained, abstained, cost, self.cut >= bar, paid[:, -1])

    def losses(self) -> StepFunctions:
        """Return whether each question breaks the guarantee, as a function of kappa.

        The loss may rise as kappa falls, because a later wrong answer can displace a right one.

        >>> level, loss = np.array([[np.inf, 0.4, 0.2]]), np.array([[True, True, False, True]])
        >>> found = Served(level, loss, sure=np.zeros((1, 4)), reach=level, cost=np.array([[1, 2, 4]]), cut=np.zeros(1))
        >>> [int(found.losses().at(kappa)[0]) for kappa in (0.5, 0.4, 0.2)]
        [1, 0, 1]
        """
        loss = self.loss.astype(np.int64)
        jump, held = np.zeros(self.level.shape, dtype=np.int64), loss[:, 0].copy()
        for j in range(self.level.shape[1]):
            # Of equal levels only the last is a state that ever holds (`served`).
            ends = self.level[:, j] > (self.level[:, j + 1] if j + 1 < self.level.shape[1] else -np.inf)
            jump[:, j] = np.where(ends, loss[:, j + 1] - held, 0)
            held = np.where(ends, loss[:, j + 1], held)
        return StepFunctions(loss[:, 0], self.level, jump)

    def along(self, path: Sequence[PathPoint]) -> ServedPath:
        """Return the totals at every point of a path of P points, in O(nL log P).

        Raises:
            UsageError: the path is empty, holds NaN, or combines too many thresholds with too many confidences.
        """
        _check_path(path)
        kappas, at_kappa = np.unique(np.array([point.kappa for point in path]), return_inverse=True)
        bars, at_bar = np.unique(np.array([point.abstain_below for point in path]), return_inverse=True)
        counts = self.counts(kappas, bars)
        chosen = at_kappa.reshape(-1), at_bar.reshape(-1)
        return ServedPath(
            tuple(path), self, counts.losses[chosen], self.n - counts.stayed[chosen], counts.cost_nano_usd[chosen[0]]
        )

    def counts(self, kappas: Floats, bars: Floats) -> Counts:
        """Return the totals for every pair of a threshold and a confidence, both ascending without repetitions.

        Raises:
            UsageError: there are more than 2^24 pairs.
        """
        if (kappas.size + 1) * (bars.size + 1) > _MOST_CELLS:
            raise UsageError(
                f"{kappas.size:,} thresholds × {bars.size:,} confidences are too many; give a path of fewer points"
            )
        losses, stayed = _tables(self, kappas, bars)
        spent = np.zeros(kappas.size + 1, dtype=np.int64)
        np.add.at(spent, _below(kappas, self.reach), self.cost)
        return Counts(losses, stayed, _suffix(spent)[1:])


class Counts(NamedTuple):
    """Totals over the questions at K thresholds and B confidences: int64 (K, B), and (K,) of cost in nano-USD."""

    losses: Ints
    stayed: Ints  # not abstaining
    cost_nano_usd: Ints


@dataclass(frozen=True, slots=True)
class ServedPath:
    """The outcomes of n questions at each of P points: exact counts.

    Attributes:
        path: the points.
        served: the questions.
        losses: int64 (P,), the number of questions that break the guarantee.
        abstained: int64 (P,), the number of questions for which nothing is served because the confidence is too low.
        cost_nano_usd: int64 (P,), the total recorded cost.
    """

    path: tuple[PathPoint, ...]
    served: Served
    losses: Ints
    abstained: Ints
    cost_nano_usd: Ints

    @property
    def n(self) -> int:
        """The number of questions."""
        return self.served.n

    def at(self, index: int) -> Outcome:
        """Return the outcome of each question at a point of the path."""
        return self.served.at(self.path[index])


def served(
    steps: StepArrays,
    levels: Levels,
    confidence: Floats,
    *,
    sure: Floats | None = None,
    reference_right: Bools | None = None,
) -> Served:
    """Return the single answers of n questions at every threshold.

    Args:
        steps: the log.
        levels: the log's levels under a policy, from `arrays.levels`.
        confidence: float64 (n, T, m), the strategy's confidences, which rank the candidates; NaN = unknown.
        sure: float64 (n, T, m), the cascade's confidences, which decide whether to abstain; `confidence` by default.
        reference_right: bool (n,), whether the reference (such as the guide alone) is right. If given, a loss is a
            *regret*: the answer served is wrong and the reference is right. Otherwise a loss is an *error*: the answer
            served is wrong.

    If nothing is kept, the best of all answers is served (`served.last_resort`), or nothing if the point abstains, as
    in the engine. Abstaining is not a loss. A question with an incomplete record counts as wrong once the walk reaches
    the end of the record, because the later answers are unknown. So no count is below the true one.

    >>> steps = StepArrays(
    ...     answer=np.array([[[0], [1]]]), correct=np.array([[[True], [False]]]),
    ...     cost=np.array([[10, 20]]), steps=np.array([2]), complete=np.array([True]))
    >>> found = served(steps, Levels(np.array([[np.inf, 0.3]]), np.array([[[np.inf], [0.3]]]), steps.correct),
    ...                np.array([[[0.5], [0.8]]]))
    >>> along = found.along([PathPoint(0.4), PathPoint(0.3), PathPoint(0.3, abstain_below=0.9)])
    >>> along.losses.tolist(), along.abstained.tolist(), along.cost_nano_usd.tolist()
    ([0, 1, 0], [0, 0, 1], [10, 30, 30])
    """
    figures = _Figures(confidence, confidence if sure is None else sure)
    _check(steps, levels, figures, reference_right)
    cut = np.where(open_end(steps), levels.reach, -np.inf).max(axis=1)
    heights = levels.leaf.reshape(steps.n, steps.horizon * steps.answer.shape[2])
    if (cut > -np.inf).any():
        heights = np.concatenate([heights, cut[:, None]], axis=1)
    level = -np.sort(-heights, axis=1)
    found = Served(
        level=level,
        loss=np.ones((steps.n, level.shape[1] + 1), dtype=np.bool_),
        sure=np.full((steps.n, level.shape[1] + 1), np.nan),
        reach=levels.reach,
        cost=steps.cost,
        cut=cut,
    )
    found.loss[:, 0] = ~last_resort(steps, confidence)  # the state in which nothing is kept
    for start in range(0, steps.n, _CHUNK):
        some = np.arange(start, min(start + _CHUNK, steps.n))
        _rank(found, some, steps.take(some), levels.take(some), figures.take(some))
    if reference_right is not None:
        found.loss[:] &= reference_right[:, None]
    return found


def served_losses(
    steps: StepArrays,
    levels: Levels,
    confidence: Floats,
    path: Sequence[PathPoint],
    *,
    sure: Floats | None = None,
    reference_right: Bools | None = None,
) -> ServedPath:
    """Return the totals at every point of a path: `served` and its `along` in one call.

    Raises:
        UsageError: the shapes of the arrays differ, or the path is empty or holds NaN.
    """
    _check_path(path)
    return served(steps, levels, confidence, sure=sure, reference_right=reference_right).along(path)


class _Figures(NamedTuple):
    """Two confidences of each candidate, float64 (n, T, m): `confidence` ranks, `sure` decides whether to abstain."""

    confidence: Floats
    sure: Floats

    def take(self, rows: Ints) -> _Figures:
        return _Figures(self.confidence[rows], self.sure[rows])


def _rank(found: Served, rows: Ints, steps: StepArrays, levels: Levels, figures: _Figures) -> None:
    """Fill in the states of some questions. Of several equal levels only the last one's state ever holds."""
    level, cut = found.level[rows], found.cut[rows]
    for j in range(level.shape[1]):
        below = level[:, j + 1] if j + 1 < level.shape[1] else -np.inf
        here = np.flatnonzero(level[:, j] > below)
        if not here.size:
            continue
        kappa = level[here, j]
        some = figures.take(here)
        best = single(steps.take(here), levels.take(here), some.confidence, kappa, sure=some.sure)
        unknown = cut[here] >= kappa
        found.loss[rows[here], j + 1] = ~best.right | unknown
        found.sure[rows[here], j + 1] = np.where(unknown, _MOST, best.sure)


def _tables(found: Served, kappas: Floats, bars: Floats) -> tuple[Ints, Ints]:
    """Return the losses and the questions that do not abstain, int64 (K, B) each.

    State j of a question holds for a range of thresholds, and its answer is served at the confidences up to its own: a
    rectangle of the table. The corners are counted, then summed in both directions.
    """
    shape = kappas.size + 1, bars.size + 1
    edge = np.zeros((found.n, found.level.shape[1] + 2), dtype=np.int64)
    edge[:, 0], edge[:, 1:-1] = kappas.size, _below(kappas, found.level)
    reach = np.searchsorted(bars, known_sure(found.sure), side="right")  # at how many it is served: `served.serves`
    enter, leave = edge[:, 1:] * shape[1] + reach, edge[:, :-1] * shape[1] + reach
    held = edge[:, 1:] < edge[:, :-1]
    tables = []
    for chosen in (held & found.loss, held):
        corners = _count(enter[chosen], shape) - _count(leave[chosen], shape)
        tables.append(_suffix(np.cumsum(corners, axis=0)[:-1].T)[1:].T)
    return tables[0], tables[1]


def _below(kappas: Floats, heights: Floats) -> Ints:
    """Return how many of the thresholds each level reaches; −∞ reaches none."""
    many = np.searchsorted(kappas, heights, side="right")
    return np.asarray(np.where(heights > -np.inf, many, 0), dtype=np.int64)


def _count(cells: Ints, shape: tuple[int, int]) -> Ints:
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)


def _suffix(totals: Ints) -> Ints:
    """Return sums from each place to the end, along the first axis."""
    return np.asarray(np.cumsum(totals[::-1], axis=0)[::-1], dtype=np.int64)


def _check(steps: StepArrays, levels: Levels, figures: _Figures, reference_right: Bools | None) -> None:
    problems = [
        f"{name} must have the shape {steps.answer.shape}, not {given.shape}"
        for name, given in (("levels.leaf", levels.leaf), ("confidence", figures.confidence), ("sure", figures.sure))
        if given.shape != steps.answer.shape
    ]
    if reference_right is not None and (reference_right.shape != (steps.n,) or reference_right.dtype != np.bool_):
        problems.append(f"reference_right must be one bool for each of {steps.n} questions")
    if problems:
        raise UsageError("; ".join(problems))


def _check_path(path: Sequence[PathPoint]) -> None:
    """Raise UsageError if a path has no point, or a point with NaN."""
    if not path:
        raise UsageError("A path needs at least one point.")
    wrong = [str(k) for k, point in enumerate(path) if math.isnan(point.kappa) or math.isnan(point.abstain_below)]
    if wrong:
        raise UsageError(f"kappa and abstain_below must be numbers; not so at point {', '.join(wrong)} of the path.")


# --- Find the questions where the single answer depends on which answers are equal, in logs that do not record this ---
#
# Answers are ranked by confidence, then by votes, then the latest first (`single`). A log without texts does not show
# which answers are the same. If all right ones counted as one answer, right answers would vote for each other. This
# rarely matters: a promise depends only on whether the served answer is right, and equal texts are equally right.
#
# * One kept answer alone has the highest confidence: it is served, whichever answers equal it.
# * Two answers are kept with the same confidence: if one is right and the other wrong, they differ, and the later one
#   is served; if both are right, or both wrong, so is the answer served.
# * Three or more are kept, and several have the highest confidence: votes decide, and the votes are unknown.


def votes_decide(
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
        levels: the levels under a policy, by `arrays.levels`.
        confidence: float64 (n, T, m), the confidences that rank the candidates; NaN = unknown.
        sure: float64 (n, T, m), given if the cascade may abstain: then the confidence of the answer served, the highest
            value of all equal answers, must not depend on which answers are equal either.
        kappa: the threshold, if only one matters; None = all.
        present: bool (n, T, m), the answers that may be served if none is kept (`served.last_resort`); None if nothing
            is served then.

    >>> leaf, tie = np.array([[[np.inf], [0.4], [0.2]]]), np.full((1, 3, 1), np.nan)
    >>> told = np.array([[[0.3], [0.6], [0.5]]])
    >>> levels = Levels(leaf[:, :, 0], leaf, leaf > -np.inf)
    >>> votes_decide(levels, tie).tolist(), votes_decide(levels, told).tolist()
    ([True], [False])
    """
    n, steps, places = levels.leaf.shape
    leaf, ranked = (one.reshape(n, steps * places) for one in (levels.leaf, confidence))
    ranked = _ranked(ranked)
    found = np.zeros(n, dtype=np.bool_)
    # The kept answers change only at a question's own levels; a level of −∞ is never reached.
    bars = leaf.T if kappa is None else [np.full(n, max(kappa, -_MOST))]
    for bar in bars:
        kept = (leaf >= bar[:, None]) & (bar > -np.inf)[:, None]
        top = _top(kept, ranked)
        found |= (kept.sum(axis=1) > 2) & (top.sum(axis=1) > 1)
        if sure is not None:
            figures = np.where(kept, known_sure(sure.reshape(leaf.shape)), -np.inf)
            found |= _served(top, places, figures) < figures.max(axis=1, initial=-np.inf)
    if present is not None:
        there = present.reshape(leaf.shape) & (leaf.max(axis=1) < (np.inf if kappa is None else kappa))[:, None]
        found |= (there.sum(axis=1) > 2) & (_top(there, ranked).sum(axis=1) > 1)
    return found


def _top(kept: Bools, ranked: Floats) -> Bools:
    """Return the kept answers with the highest confidence of their question, bool (n, answers)."""
    best = np.where(kept, ranked, -np.inf).max(axis=1, initial=-np.inf)
    return np.asarray(kept & (ranked == best[:, None]))


def _served(top: Bools, places: int, figures: Floats) -> Floats:
    """Return the value of each question's latest `top` answer, the first within its step: float64 (n,)."""
    number: Ints = np.arange(top.shape[1])
    turn = number // places * places + places - 1 - number % places
    at = np.where(top, turn, -1).argmax(axis=1)
    return np.asarray(figures[np.arange(len(top)), at], dtype=np.float64)


def served_right(arrays: StepArrays, confidence: Floats) -> Bools:
    """Return whether the one answer served after each step is right if every answer so far is kept: bool (n, T).

    Beyond the end of a record the last value is repeated.
    """
    return np.stack([right_after(arrays, confidence, step) for step in range(1, arrays.horizon + 1)], axis=1)


def right_after(arrays: StepArrays, confidence: Floats, step: int) -> Bools:
    """Return whether the answer served after a step, from 1, is right: bool (n,)."""
    kept = arrays.present & (np.arange(arrays.horizon) < step)[None, :, None]
    leaf = np.where(kept, np.inf, -np.inf)
    return single(arrays, Levels(leaf[:, :, 0], leaf, kept), confidence, 0.0).right
