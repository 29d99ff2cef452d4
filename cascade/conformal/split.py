"""Split conformal calibration: the threshold that covers a fresh question with probability at least 1 − alpha.

kappa = the k-th smallest critical value of n calibration questions, k = ⌊alpha·(n + 1)⌋. A fresh question that is
exchangeable with them is then missed with probability at most k/(n + 1) ≤ alpha. The calibration questions may have
been used for nothing else: not for fitting, not for choosing. A question of the critical value −∞ is covered at no
threshold. So where kappa itself comes out as −∞, such questions are missed however many they are: nothing is promised.

Reference: Vovk, Gammerman & Shafer (2005); Angelopoulos et al., Conformal risk control (2022), 0/1 loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from hashlib import sha256

import numpy as np

from cascade.checks import refuse, share_problems
from cascade.conformal.arrays import Bools, Floats, Ints, ScoreArrays, StepArrays
from cascade.conformal.binomial import as_written, most_losses
from cascade.conformal.rollout import Levels, check_arrays, chunks, fill_levels, passed
from cascade.errors import UsageError


def allowed_rank(n: int, alpha: float) -> int:
    """Return k = ⌊alpha·(n + 1)⌋, alpha read as the decimal number that it is written as.

    >>> allowed_rank(200, 0.1), allowed_rank(9, 0.1), allowed_rank(8, 0.1)
    (20, 1, 0)
    """
    return allowed_misses(n + 1, alpha)


def allowed_misses(n: int, alpha: float) -> int:
    """Return ⌊alpha·n⌋, alpha read as the decimal number that it is written as: 1 − 0.18 is a little more than 0.82.

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
    """Return the rank of the threshold whose coverage is 1 − alpha with confidence 1 − delta, 0 where there is none.

    k = max{k : Pr[Bin(n, alpha) ≤ k − 1] ≤ delta}. Let R be the probability that a fresh question is missed at the
    k-th smallest critical value. If R > alpha, then k − 1 or fewer of the n questions lie below the alpha-quantile of
    critical values, whose number is Bin(n, alpha) at the least: that happens with probability at most delta.

    >>> pac_rank(200, 0.1, 0.1), pac_rank(200, 0.1, 0.05), pac_rank(21, 0.1, 0.1)
    (15, 13, 0)
    """
    losses = most_losses(n, alpha, delta)
    return 0 if losses is None else losses + 1


def split_kappa(critical: Floats, alpha: float) -> float:
    """Return the calibrated threshold; −∞, which keeps everything, where n is too small for alpha.

    Args:
        critical: float64 (n,), the calibration questions' critical values (`split.critical_kappa`).
        alpha: the share of questions that may be missed.

    Raises:
        UsageError: alpha lies outside 0..1, or a critical value is NaN.

    >>> split_kappa(np.array([0.3, 0.1, 0.2, 0.9]), 0.4)
    0.2
    """
    if np.isnan(critical).any():
        raise UsageError("A critical value is not a number.")
    k = split_rank(critical.size, alpha)
    return float("-inf") if k == 0 else float(np.partition(critical, k - 1)[k - 1])


# --- The critical value of a question: the highest threshold at which a right answer is still kept ---
# kappa*(q) = max over right answers of m_t(a),   +∞ where there is nothing to be found
#
# Conformal calibration sorts these n numbers, and needs nothing else (`design/rollout.md`).


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


# --- Draw one question at random from each group of questions that belong together (a document, a user) ---
#
# Outcomes within a group are correlated, so n questions of few groups tell less than n unrelated ones. If they are
# calibrated as if they were unrelated, 12 documents of 20 questions cover 85 % where 90 % is promised. If the groups
# are independent of, or exchangeable with, a fresh group, then the questions drawn, one from each, are exchangeable
# with a question drawn at random from the fresh group. Every guarantee then holds for that question, with n the number
# of groups. The draw must not depend on any outcome, so a keyed hash decides it.
#
# Bounds on the groups' mean losses use all questions, and certify less in all but the mildest cases
# (`benchmarks/clusters.py`, `design/clusters.md`).
#
# Reference: Dunn, Wasserman & Ramdas, Distribution-free prediction sets for two-layer hierarchical models (2023),
# subsampling once.


def one_of_each(groups: Sequence[Hashable], *, labels: Sequence[str] | None = None, seed: int = 0) -> Ints:
    """Return one row of each group, each row of a group as likely as the others: int64, ascending.

    Args:
        groups: the group of each row; None = of no group, a group by itself.
        labels: decide the draw together with the seed, and must differ within a group. If they are the questions'
            names, the order of the rows changes nothing. By default a row's position within its group.
        seed: the same seed gives the same rows.

    Raises:
        UsageError: the number of labels differs from the number of rows.

    >>> one_of_each(["a", "b", "a", None, None]).tolist() in ([0, 1, 3, 4], [1, 2, 3, 4])
    True
    """
    if labels is not None and len(labels) != len(groups):
        raise UsageError(f"There are {len(groups)} groups, and {len(labels)} labels.")
    chosen: dict[Hashable, tuple[bytes, int]] = {}
    place = Counter[Hashable]()
    for row, group in enumerate(groups):
        key = (row,) if group is None else (group, None)  # no row's number is a group's name
        label = f"{group!r}|{place[key]}" if labels is None else labels[row]
        place[key] += 1
        turn = sha256(f"one of each|{seed}|{label}".encode("utf-8", "replace")).digest(), row
        chosen[key] = min(chosen.get(key, turn), turn)
    return np.array(sorted(row for _, row in chosen.values()), dtype=np.int64)
