"""Diagnose a log: how well its signals tell right from wrong, with intervals, and what the log does not record.

Nothing is fitted here: these figures explain why a policy saves money on a log, or why none can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cascade.calibration.samples import why_no_doubt
from cascade.calibration.scores import unpriced
from cascade.conformal.arrays import Bools, Floats
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import ALL_STEPS, first_step, reference_of
from cascade.evaluation.splits import CONFIDENCE, Interval, numbered, student_t_quantile
from cascade.guarantees import base
from cascade.guarantees.questions import at_every_depth, untold

_MOST = 0.5
_ONE_KIND = 2


# --- intervals over groups ---


def clustered_interval(mean: float, influence: Floats, groups: Sequence[str]) -> Interval:
    """Return the interval of a mean over questions that are correlated within groups.

    The variance is the sum of the squares of the groups' sums of influences over n², times g/(g − 1) for g groups;
    Student's t has g − 1 degrees of freedom. With fewer than two groups the bounds are unknown. `influence`, float64
    (n,), is n times each question's effect on the estimate; it sums to 0 for a mean.

    Reference: Liang & Zeger, Longitudinal data analysis using generalized linear models (1986).
    """
    member, n = numbered(groups), influence.size
    sums = np.bincount(member, weights=influence)
    g = sums.size
    if g < _ONE_KIND:
        return Interval(mean, None, None)
    spread = math.sqrt(float((sums**2).sum()) * g / (g - 1)) / n
    half = _quantile(g - 1) * spread
    return Interval(mean, mean - half, mean + half)


_NORMAL_FROM = 200


def _quantile(df: int) -> float:
    """Return Student's t-quantile; above 200 degrees of freedom that of 200, which is too wide by less than 1 %."""
    return student_t_quantile((1 + CONFIDENCE) / 2, min(df, _NORMAL_FROM))


# --- how well the signals tell right from wrong ---


class SignalUse(NamedTuple):
    """How well a signal of the first step predicts whether the answer served by stopping there is right.

    Attributes:
        name: the signal.
        known: the share of questions that have it.
        auroc: the area under the ROC curve, ties counted half: 0.5 is chance, 1 is perfect. For a signal of doubt the
            sign is reversed first.
        doubt: whether a high value means doubt.
    """

    name: str
    known: float
    auroc: Interval
    doubt: bool


def signal_uses(table: EpisodeTable) -> list[SignalUse]:
    """Return the AUROC of each signal of the first step, the highest first; constant signals are left out.

    The direction of a signal is read from the same questions, so a useless signal has an AUROC a little above 0.5.
    """
    right = first_step(table).right
    found = []
    for name, values in sorted(table.signals.items()):
        first = values[:, 0]
        known = ~np.isnan(first)
        groups = [table.groups[row] for row in np.flatnonzero(known)]
        told = auroc(first[known], right[known], groups)
        if told is None or np.unique(first[known]).size < _ONE_KIND:
            continue
        doubt = told.mean < _MOST
        found.append(SignalUse(name, float(known.mean()), _turned(told) if doubt else told, doubt))
    return sorted(found, key=lambda one: (-one.auroc.mean, one.name))


def _turned(one: Interval) -> Interval:
    low, high = one.low, one.high
    return Interval(1 - one.mean, None if high is None else 1 - high, None if low is None else 1 - low)


def auroc(values: Floats, right: Bools, groups: Sequence[str]) -> Interval | None:
    """Return the area under the ROC curve of right against wrong, and its interval; None if all are right or all wrong.

    The interval is DeLong's on the logit scale, with the questions' influences summed over groups.

    Reference: DeLong, DeLong & Clarke-Pearson, Comparing the areas under two or more correlated ROC curves (1988).

    >>> round(auroc(np.array([0.9, 0.8, 0.3, 0.4]), np.array([True, True, False, True]), list("abcd")).mean, 3)
    1.0
    """
    good, bad = values[right], values[~right]
    if not good.size or not bad.size:
        return None
    above = _share_below(good, bad)
    below = 1 - _share_below(bad, good)
    mean = float(above.mean())
    influence = np.empty(values.size)
    influence[right] = (above - mean) * values.size / good.size
    influence[~right] = (below - mean) * values.size / bad.size
    if not 0 < mean < 1:
        return _without_spread(mean, right, groups)
    return _on_logit(clustered_interval(mean, influence, groups))


def _on_logit(found: Interval) -> Interval:
    """Return the interval of a probability made on the logit scale, so that it lies within 0 and 1.

    The half width is divided by mean (1 − mean), the derivative of the logit there (the delta method).

    Reference: Pepe, The statistical evaluation of medical tests for classification and prediction (2003), 5.2.3.
    """
    mean, high = found.mean, found.high
    if high is None:
        return found
    logit, half = math.log(mean / (1 - mean)), (high - mean) / (mean * (1 - mean))
    return Interval(mean, *(_expit(bound) for bound in (logit - half, logit + half)))


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-min(max(value, -_STEEPEST), _STEEPEST)))


_STEEPEST = 700.0
"""`math.exp` overflows beyond this."""


def _without_spread(mean: float, right: Bools, groups: Sequence[str]) -> Interval:
    """Return the interval if a signal separates right from wrong on all pairs, or on none.

    DeLong's variance is 0 then. All of m pairs that share no group are separated with probability AUROC^m, so an AUROC
    below (1 − confidence)/2 to the power 1/m is rejected (the exact binomial test).
    """
    kinds = (right, ~right)
    pairs = min(len({groups[row] for row in np.flatnonzero(rows).tolist()}) for rows in kinds)
    if len(set(groups)) < _ONE_KIND:
        return Interval(mean, None, None)
    bound = float(((1 - CONFIDENCE) / 2) ** (1 / pairs))
    return Interval(mean, bound, 1.0) if mean == 1 else Interval(mean, 0.0, 1 - bound)


def _share_below(values: Floats, others: Floats) -> Floats:
    """Return the share of the others that lies below each value, ties counted half."""
    ordered = np.sort(others)
    left, side = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return np.asarray((left + side) / (2 * ordered.size), dtype=np.float64)


def default_kind(table: EpisodeTable, against: str | None = None) -> str:
    """Return the default guarantee of a proof.

    It is agreement if the reference's output is the truth, or the kind for which people judged the differences from it.
    It is regret if the reference (`reference_of`) is one model's answer and the answer that a cascade would serve is
    known; otherwise coverage, which needs neither.
    """
    if table.truth is not None:
        return table.truth.asked or base.default_kind(compared=True)
    if reference_of(table, against).name == ALL_STEPS or untold(at_every_depth(table)):
        return "coverage"
    return "regret"


def unknowns(table: EpisodeTable) -> Iterator[str]:
    """Yield sentences about what the log does not record."""
    if not table.cost_known:
        lack = unpriced(table)
        yield (
            f"The log lacks a cost for {lack:,} of {table.n:,} questions, so no saving in money can be shown: that "
            "needs the costs of more than half."
        )
    open_ended = 1 - float(table.arrays.complete.mean())
    if open_ended > 0:
        yield (
            f"The records of {open_ended:.1%} of the questions end before the last step: a policy that goes on there "
            "counts as having missed."
        )
    if not table.texts_known.any():
        yield "The log does not have the answers' texts, so it is unknown whether two answers agree."
    why = why_no_doubt(table)
    if why is not None and table.arrays.horizon > 1:
        yield f"There is no baseline with a threshold on how sure a model is: {why}."
    many = untold(at_every_depth(table))
    if many:
        yield (
            f"Votes decide which one answer is served on {many} of {table.n} questions, and the log does not record "
            "which of their answers are the same: coverage can be shown, but not regret or error, and how often the "
            "one answer is wrong is a guess."
        )
