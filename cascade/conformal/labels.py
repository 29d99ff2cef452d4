"""Save labels: draw a known share of the questions, and request a label only if a test's result depends on it.

Let a loss L be 0 or 1, and let a question be drawn with probability q, by a keyed hash that is independent of L.
The labelled losses D·L of independent questions are then independent with the rate q·E[L]. So "the risk is above alpha"
is "the rate of labelled losses is above q·alpha", and the exact binomial tests it. A drawn question without a label
counts as a loss, so that a missing label never helps, whatever the reason.

For the same reason labels may be requested one after the other, depending on earlier labels. Points of a path are
decided in order. At each point labels are requested until the point passes whatever the missing labels are, or fails.
So no more points are certified than with all labels.

Reference: Angelopoulos et al., Learn then test (2021); Maurer, Hothorn & Lehmacher (1995). `design/review.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from cascade.checks import refuse, share_problems
from cascade.conformal.arrays import Bools, Ints, as_written
from cascade.conformal.binomial import most_losses

LOST, KEPT, UNLABELLED = 1, 0, -1
"""The label of an output: a loss, no loss, or no label yet."""
NO_LOSS = -1
"""The number of an output that needs no label: the reference's own."""
_BITS = 64


def is_drawn(key: str, name: str, rate: float) -> bool:
    """Return whether the question with this name is drawn, with probability `rate` over keys.

    A question that is drawn at one rate is also drawn at every higher rate.

    >>> is_drawn("a key", "question 1", 1.0), is_drawn("a key", "question 1", 1e-12)
    (True, False)
    """
    check_rate(rate)
    place = hashlib.blake2b(name.encode(), key=hashlib.sha256(key.encode()).digest(), digest_size=_BITS // 8).digest()
    return bool(int.from_bytes(place) < as_written(rate) * 2**_BITS)


def check_rate(rate: float) -> None:
    """Raise UsageError if a rate is not above 0 and at most 1."""
    wrong = [*share_problems(ends=True, label_rate=rate), *(["label_rate must be above 0"] if rate == 0 else [])]
    refuse(wrong)


def sampled(alpha: float, rate: float) -> float:
    """Return the rate of labelled losses at which the risk is alpha: their product, as decimals.

    >>> sampled(0.05, 0.2), sampled(0.05, 1.0)
    (0.01, 0.05)
    """
    return float(Decimal(repr(float(alpha))) * Decimal(repr(float(rate))))


def most_labelled_losses(n: int, alpha: float, delta: float, rate: float) -> int | None:
    """Return the largest count of labelled losses among n questions that proves a risk below alpha; None without one.

    >>> most_labelled_losses(200, 0.05, 0.1, 1.0), most_labelled_losses(300, 0.05, 0.05, 0.2)
    (5, 0)
    """
    check_rate(rate)
    return most_losses(n, sampled(alpha, rate), delta)


class Walked(NamedTuple):
    """How many points of a path the labels decide so far, and which labels are needed next.

    Attributes:
        certified: points from the front that pass for every possible value of the missing labels.
        open: bool (n,), the questions whose labels the next point needs; none if no further label is needed.
        labelled: bool (n,), questions whose label was used on the way.
    """

    certified: int
    open: Bools
    labelled: Bools


def walk(outputs: Sequence[Ints], known: Ints, most: int | None) -> Walked:
    """Return how far the labels so far decide a path of thresholds, and which questions to label next.

    Args:
        outputs: for each point of the path int64 (n,), the output served, from 0; `NO_LOSS` if it needs no label.
        known: int64 (n, C), `LOST`, `KEPT` or `UNLABELLED`, for each output of each question.
        most: the most losses that still prove the risk below alpha; None if not even 0 do.

    >>> serves = [np.array([-1, -1, 0]), np.array([-1, 0, 0]), np.array([0, 0, 0])]
    >>> walk(serves, np.array([[-1], [-1], [1]]), most=1).open.tolist()
    [False, True, False]
    >>> walk(serves, np.array([[-1], [1], [1]]), most=1).certified
    1
    """
    rows = np.arange(known.shape[0])
    used = np.zeros(rows.size, dtype=np.bool_)
    nothing = np.zeros(rows.size, dtype=np.bool_)
    for at, serves in enumerate(outputs):
        said = np.where(serves == NO_LOSS, KEPT, known[rows, np.maximum(serves, 0)])
        used |= (serves != NO_LOSS) & (said != UNLABELLED)
        lost, unsaid = int(np.count_nonzero(said == LOST)), said == UNLABELLED
        if most is None or lost > most:
            return Walked(at, nothing, used)
        if lost + int(np.count_nonzero(unsaid)) > most:
            return Walked(at, unsaid, used)
    return Walked(len(outputs), nothing, used)
