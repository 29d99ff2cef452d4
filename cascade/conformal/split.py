"""Split conformal calibration: the threshold that covers a fresh question with probability at least 1 − alpha.

kappa = the k-th smallest critical value of n calibration questions, k = ⌊alpha·(n + 1)⌋. A fresh question that is
exchangeable with them is then missed with probability at most k/(n + 1) ≤ alpha. The calibration questions must not
have been used for anything else, such as fitting or choosing a policy. A question with the critical value −∞ is covered
at no threshold. So if kappa itself is −∞, any number of such questions may be missed: nothing is promised.

A question's critical value kappa*(q) is the highest threshold at which a right answer is still kept
(`critical_kappa`); it is +∞ if the question is covered at every threshold. Any decision rule whose set of answers grows
as a threshold falls has critical values, and `calibrate` computes a threshold from them.

`calibrate_segments` makes a promise for each segment of questions (a tenant, a task, a language), from its own
questions alone. A segment with too few questions for alpha gets no threshold (`design/calibration.md`).

References: Vovk, Gammerman & Shafer, Algorithmic Learning in a Random World (2005), Mondrian predictors (section 4.5).
Angelopoulos et al., Conformal risk control (2022), 0/1 loss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cascade.checks import refuse, share_problems
from cascade.conformal.arrays import (
    Bools,
    Floats,
    Ints,
    Levels,
    ScoreArrays,
    StepArrays,
    as_written,
    check_arrays,
    chunks,
    fill_levels,
    passed,
)
from cascade.errors import UsageError


def needed_n(alpha: float, delta: float | None = None) -> int:
    """Return the least number of calibration questions that can certify a share alpha.

    A promise on average over calibrations needs ⌊alpha·(n + 1)⌋ ≥ 1: n ≥ 1/alpha − 1. With confidence 1 − delta, n
    questions without a loss must be enough evidence: (1 − alpha)ⁿ ≤ delta.

    Raises:
        UsageError: alpha is not above 0 and at most 1, or delta does not lie between 0 and 1.

    >>> needed_n(0.1), needed_n(0.1, 0.1), needed_n(0.05, 0.05)
    (9, 22, 59)
    """
    zero = ["alpha must be above 0"] if alpha == 0 else []
    refuse([*zero, *share_problems(ends=True, alpha=alpha), *share_problems(delta=delta)])
    share = as_written(alpha)
    if delta is None or share == 1:
        return math.ceil(1 / share) - (delta is None)
    from cascade.conformal.binomial import needed_without_loss  # a promise on average needs no tails

    return needed_without_loss(alpha, delta)


def allowed_rank(n: int, alpha: float) -> int:
    """Return k = ⌊alpha·(n + 1)⌋, alpha read as the decimal number that it is written as.

    >>> allowed_rank(200, 0.1), allowed_rank(9, 0.1), allowed_rank(8, 0.1)
    (20, 1, 0)
    """
    return allowed_misses(n + 1, alpha)


def allowed_misses(n: int, alpha: float) -> int:
    """Return ⌊alpha·n⌋, alpha read as the decimal number that it is written as (in floats, 1 − 0.18 is above 0.82).

    >>> allowed_misses(150, 0.18), 150 - (1 - 0.18) * 150 >= 27
    (27, False)
    """
    refuse(share_problems(ends=True, alpha=alpha))
    return int(as_written(alpha) * n)


def split_rank(n: int, alpha: float) -> int:
    """Return the rank of the threshold among n critical values: ⌊alpha·(n + 1)⌋, or n where alpha is almost 1.

    >>> split_rank(9, 0.1), split_rank(9, 1.0)
    (1, 9)
    """
    return min(allowed_rank(n, alpha), n)


def pac_rank(n: int, alpha: float, delta: float) -> int:
    """Return the rank of the threshold whose coverage is 1 − alpha with confidence 1 − delta, 0 if there is none.

    k = max{k : Pr[Bin(n, alpha) ≤ k − 1] ≤ delta}. Let R be the probability that a fresh question is missed at the
    k-th smallest critical value. If R > alpha, then k − 1 or fewer of the n questions lie below the alpha-quantile of
    critical values. Their number is at least Bin(n, alpha), so that happens with probability at most delta.

    >>> pac_rank(200, 0.1, 0.1), pac_rank(200, 0.1, 0.05), pac_rank(21, 0.1, 0.1)
    (15, 13, 0)
    """
    from cascade.conformal.binomial import most_losses  # as in `needed_n`

    losses = most_losses(n, alpha, delta)
    return 0 if losses is None else losses + 1


def split_kappa(critical: Floats, alpha: float) -> float:
    """Return the calibrated threshold; −∞, which keeps everything, if n is too small for alpha.

    `critical` has the calibration questions' critical values (`critical_kappa`).

    >>> split_kappa(np.array([0.3, 0.1, 0.2, 0.9]), 0.4)
    0.2
    """
    if np.isnan(critical).any():
        raise UsageError("A critical value is not a number.")
    return _at_rank(critical, split_rank(critical.size, alpha))


def _at_rank(values: Floats, k: int) -> float:
    """Return the k-th smallest value; −∞ for k = 0."""
    return float(np.partition(values, k - 1)[k - 1]) if k else -math.inf


# --- The critical value of a question: the highest threshold at which a right answer is still kept ---
# kappa*(q) = max over right answers of m_t(a),   +∞ if there is no right answer
#
# Conformal calibration sorts these n numbers and needs nothing else (`design/rollout.md`).


def critical_kappa(steps: StepArrays, levels: Levels) -> Floats:
    """Return kappa*, float64 (n,): a question is covered at kappa if and only if kappa ≤ kappa*; −∞ means never.

    +∞ if no step has a right answer, or if a right answer is kept at every kappa. −∞ if a right answer is kept at no
    kappa, because its score, or that of "next" on the way, is −∞; also if a question is incomplete and has no logged
    right answer. Even at kappa = −∞ a question with kappa* = −∞ is missed: a score of −∞ is never included.
    `covered_at` applies this rule at any kappa.

    If a record ends before the question does, kappa* is never above its value for the complete record: an answer of the
    last step is kept only by its score. `arrays.levels` ensures this, so the levels must come from there.

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
    """Return `critical_kappa(steps, levels(steps, scores))` in half the time, without storing the levels.

    A calibration needs only these values.

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
    """Return which questions are covered at a threshold, or at one threshold for each question: bool (n,)."""
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


# --- Draw one question at random from each group of questions that belong together (a document, a user) ---
#
# Outcomes within a group are correlated, so n questions of few groups hold less information than n unrelated ones. A
# calibration that ignores this covers 85 % where it promises 90 %, for 12 documents of 20 questions. If the groups are
# independent of, or exchangeable with, a fresh group, then the questions drawn, one from each group, are exchangeable
# with a question drawn at random from the fresh group. Every guarantee then holds for that question, with n the number
# of groups. The draw must not depend on any outcome, so a keyed hash decides it.
#
# Bounds on the groups' mean losses use all questions, and certify less in all but the mildest cases
# (`design/calibration.md`).
#
# Reference: Dunn, Wasserman & Ramdas, Distribution-free prediction sets for two-layer hierarchical models (2023),
# subsampling once.


def one_of_each(groups: Sequence[Hashable], *, labels: Sequence[str] | None = None, seed: int = 0) -> Ints:
    """Return one row of each group, drawn uniformly: int64, ascending.

    Args:
        groups: the group of each row; a row with None is a group by itself.
        labels: together with the seed, they decide the draw; they must differ within a group. With the questions' names
            as labels, the draw does not depend on the order of the rows. By default a row's position in its group.
        seed: the same seed gives the same rows.

    >>> one_of_each(["a", "b", "a", None, None]).tolist() in ([0, 1, 3, 4], [1, 2, 3, 4])
    True
    """
    if labels is not None and len(labels) != len(groups):
        raise UsageError(f"There are {len(groups)} groups, but {len(labels)} labels.")
    chosen: dict[Hashable, tuple[bytes, int]] = {}
    place = Counter[Hashable]()
    for row, group in enumerate(groups):
        key = (row,) if group is None else (group, None)  # the lengths differ: no row's key equals a group's
        label = f"{group!r}|{place[key]}" if labels is None else labels[row]
        place[key] += 1
        turn = sha256(f"one of each|{seed}|{label}".encode("utf-8", "replace")).digest(), row
        chosen[key] = min(chosen.get(key, turn), turn)
    return np.array(sorted(row for _, row in chosen.values()), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold, and its promise about a fresh question (`calibrate`).

    Attributes:
        kappa: the threshold: the k-th smallest critical value. −∞ if everything has to be kept.
        n: calibration questions.
        k: the rank; 0 if n is too small for alpha, or for alpha and delta.
        alpha: the share of questions that may be missed.
        delta: the probability that the calibration misleads; None for a promise on average over calibrations.
        misses: calibration questions missed at kappa: at most k − 1 unless `vacuous`. If everything is kept, the
            questions that no finite threshold covers.
    """

    kappa: float
    n: int
    k: int
    alpha: float
    delta: float | None
    misses: int

    @property
    def keeps_everything(self) -> bool:
        """Whether the promise needs every answer of every step to be kept, even one with the score −∞."""
        return self.k == 0

    @property
    def vacuous(self) -> bool:
        """Whether the calibration promises nothing, because k or more questions are missed at every threshold."""
        return self.k > 0 and self.kappa == -math.inf

    @property
    def needed_n(self) -> int | None:
        """The least number of questions that would have given a threshold; None if alpha is 0."""
        return needed_n(self.alpha, self.delta) if self.alpha > 0 else None

    @property
    def expected_coverage(self) -> float | None:
        """1 − k/(n + 1): the mean coverage over calibrations without ties, a lower bound with them; None if vacuous."""
        return None if self.vacuous else 1 - self.k / (self.n + 1)

    @property
    def coverage_sd(self) -> float | None:
        """The standard deviation of the coverage between calibrations: that of Beta(n + 1 − k, k).

        Without ties, the coverage has this distribution. 0 if everything is kept, None if vacuous.
        """
        if self.vacuous:
            return None
        return math.sqrt(self.k * (self.n + 1 - self.k) / (self.n + 2)) / (self.n + 1)


def calibrate(
    critical_values: ArrayLike,
    alpha: float,
    *,
    delta: float | None = None,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Calibration:
    """Return the highest threshold with the promise that a fresh question is missed with probability at most alpha.

    Guarantee: let the n calibration questions and a fresh one be exchangeable, used for nothing else before (neither
    for fitting nor for choosing). Then

        without delta:  Pr[fresh missed and not vacuous] ≤ k/(n + 1) ≤ alpha,             k = ⌊alpha·(n + 1)⌋
        with delta:     Pr[ Pr[fresh missed | calibration] > alpha and not vacuous ] ≤ delta

    The second needs independent questions from one distribution; k is the largest rank with
    Pr[Bin(n, alpha) ≤ k − 1] ≤ delta. The first is on average over calibrations: a single calibration may cover less
    (`Calibration.coverage_sd`). Both hold with ties and infinite values. If k is 0, everything must be kept. A
    calibration is vacuous if k or more questions have the critical value −∞: then nothing is promised
    (`Calibration.vacuous`).

    Args:
        critical_values: n numbers, any sequence or array of one dimension; ±∞ allowed.
        alpha: the share of questions that may be missed, 0..1.
        delta: the probability that the calibration misleads; None for a promise on average over calibrations.
        groups: n labels, if questions belong together (to one document, one user); None = no group. One question of
            each group counts, drawn at random (`split.one_of_each`), and the promise is about a random question of a
            fresh group: `Calibration.n` is the number of groups, which take the place of the questions above.
        seed: the seed of that draw.

    Raises:
        UsageError: alpha or delta lies outside its range, a critical value is missing or not a number, or the numbers
            of groups and values differ. The error lists every problem.

    Reference: Vovk, Gammerman & Shafer, Algorithmic Learning in a Random World (2005); with delta Vovk, Conditional
    validity of inductive conformal predictors (2012), by the exact binomial law.

    >>> found = calibrate([0.31, 0.12, 0.55, 0.47, 0.93, 0.28, 0.76, 0.64, 0.83], alpha=0.2)
    >>> found.kappa, found.k, found.misses, found.expected_coverage
    (0.28, 2, 1, 0.8)
    >>> calibrate([0.31, 0.12, 0.55], alpha=0.2).keeps_everything, calibrate([0.31, 0.12, 0.55], alpha=0.2).needed_n
    (True, 4)
    >>> calibrate([0.3, 0.3, 0.4, 0.6, 0.9, 0.8], alpha=0.25, groups=["a", "a", "a", "b", "b", "c"]).n
    3
    """
    values = _checked(critical_values, alpha, delta, groups)
    if groups is not None:
        values = values[one_of_each(groups, seed=seed)]
    n = values.size
    k = split_rank(n, alpha) if delta is None else pac_rank(n, alpha, delta)
    kappa = _at_rank(values, k)
    misses = n - int(np.count_nonzero(passed(values, kappa)))
    return Calibration(kappa, n, k, float(alpha), None if delta is None else float(delta), misses)


def _checked(
    critical_values: ArrayLike, alpha: float, delta: float | None, groups: Sequence[Hashable] | None
) -> Floats:
    """Return the critical values as an array, or raise one error that lists every problem."""
    wrong = [*share_problems(ends=True, alpha=alpha), *share_problems(delta=delta)]
    try:
        values = np.asarray(critical_values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UsageError("; ".join([*wrong, "the critical values must be numbers"]) + ".") from None
    if values.ndim != 1:
        wrong.append(f"the critical values must have one dimension, not the shape {values.shape}")
    elif groups is not None and len(groups) != values.size:
        wrong.append(f"there are {values.size} critical values, but {len(groups)} groups")
    missing = np.flatnonzero(np.isnan(values))
    if missing.size:
        wrong.append(f"{missing.size} of {values.size} critical values are not a number, the first at {missing[0]}")
    refuse(wrong)
    return values


_QUOTED = 3  # labels that an error shows


def calibrate_segments(
    critical_values: ArrayLike,
    segments: Sequence[str | None],
    alpha: float,
    *,
    delta: float | None = None,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> dict[str, Calibration]:
    """Return the calibration of each segment of questions, from its own questions alone, sorted by name.

    Guarantee: let the n calibration questions and a fresh one be exchangeable together with their segments, used for
    nothing else before. Without delta, a fresh question is missed with probability at most alpha, given that it belongs
    to a particular segment with a threshold. With delta, for independent questions, a segment's threshold misses more
    than alpha of its questions with probability at most delta; this holds for each segment, not for all segments at
    once. A segment with too few questions has no threshold (`Calibration.keeps_everything`).

    Args:
        critical_values: n numbers; ±∞ allowed (`calibrate`).
        segments: n labels; a question with None belongs to no segment and is left out.
        alpha: the share of each segment's questions that may be missed, 0..1.
        delta: the probability that a segment's calibration misleads; for K segments together use delta/K.
        groups: n labels, if questions belong together; one question of each group in each segment counts, drawn at
            random, as in `calibrate`.
        seed: the seed of that draw.

    Raises:
        UsageError: as `calibrate`; or the numbers of segments and values differ, or a label is not a text.

    >>> values = [0.31, 0.12, 0.55, 0.47, 0.93, 0.28, 0.76, 0.64]
    >>> found = calibrate_segments(values, ["de", "de", "de", "de", "fr", "fr", "it", "it"], alpha=0.25)
    >>> found["de"].kappa, found["fr"].keeps_everything, found["fr"].n, found["fr"].needed_n
    (0.12, True, 2, 3)
    """
    n = calibrate(critical_values, alpha, delta=delta).n  # also checks them
    values = np.asarray(critical_values, dtype=np.float64)
    if groups is not None:
        if not n == len(groups) == len(segments):
            raise UsageError(f"There are {n} critical values, but {len(segments)} segments and {len(groups)} groups.")
        keys = [None if group is None else (label, group) for label, group in zip(segments, groups, strict=True)]
        chosen = one_of_each(keys, seed=seed)
        values, segments, n = values[chosen], [segments[row] for row in chosen.tolist()], chosen.size
    rows = _rows_by_segment(segments, n)
    return {name: calibrate(values[rows[name]], alpha, delta=delta) for name in sorted(rows)}


def _rows_by_segment(segments: Sequence[object], n: int) -> dict[str, Ints]:
    """Return which rows belong to each segment."""
    if len(segments) != n:
        raise UsageError(f"There are {n} critical values, but {len(segments)} segments.")
    codes: dict[Any, int] = {}
    code = np.fromiter((codes.setdefault(segment, len(codes)) for segment in segments), dtype=np.int64, count=n)
    wrong = [repr(label) for label in codes if label is not None and not isinstance(label, str)]
    if wrong:
        shown = ", ".join(wrong[:_QUOTED]) + (", …" if len(wrong) > _QUOTED else "")
        raise UsageError(f"A segment must be a text, or None for a question without one; not {shown}.")
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(codes)))
    rows = zip(codes, np.split(order, ends[:-1]), strict=True) if n else ()
    return {name: own for name, own in rows if name is not None}
