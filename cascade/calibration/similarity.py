"""Calibrate the cosine similarity above which two texts count as the same, on pairs that people have judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from cascade.conformal.binomial import lower_tail
from cascade.errors import NotCertifiedError, UsageError

GRID = tuple(Fraction(at, 100) for at in range(99, 0, -1))
"""The thresholds that are tried, in this order."""
STARTS = tuple(Fraction(at, 100) for at in (99, 95, 90, 85, 80, 75, 70, 60, 50, 40))
"""The first thresholds of the walks down the grid, fixed before any pair is read; the walks share delta evenly."""


def similarity_threshold(
    cosines: Sequence[float], same: Sequence[bool], *, alpha: float, delta: float = 0.1
) -> Fraction:
    """Return the least threshold above which at most a share alpha of pairs differ, with confidence 1 − delta.

    Learn then Test by fixed sequences from several starts. The exact binomial tests each threshold on the pairs whose
    cosine reaches it, at delta divided by the number of starts; the first threshold that fails ends its walk.

    Args:
        cosines: the cosine similarity of each judged pair.
        same: for each pair, whether people judged that the two texts mean the same.
        alpha: the share of pairs above the threshold that may differ.
        delta: the probability that the threshold promises too much.

    Guarantee: with probability 1 − delta over the judged pairs, a new pair of the same kind whose cosine reaches the
        threshold differs with probability at most alpha.

    Raises:
        UsageError: the two lists differ in length, or a share is outside (0, 1).
        NotCertifiedError: no threshold passes its test.

    Reference: Angelopoulos, Bates, Candès, Jordan and Lei, Learn then Test (2021).

    >>> similarity_threshold([0.9] * 60 + [0.5] * 40, [True] * 60 + [False] * 40, alpha=0.1)
    Fraction(51, 100)
    """
    if len(cosines) != len(same) or not 0 < alpha < 1 or not 0 < delta < 1:
        raise UsageError("Each cosine needs a judgement, and alpha and delta must be between 0 and 1.")
    level = delta / len(STARTS)
    found = [least for start in STARTS if (least := _walk(start, cosines, same, alpha, level)) is not None]
    if not found:
        raise NotCertifiedError(
            f"No threshold can be promised at alpha {alpha} and delta {delta} from {len(cosines):,} judged pairs. "
            f"Judge at least {math.ceil(math.log(level) / math.log1p(-alpha))} pairs of nearly equal texts, "
            "or allow a larger alpha."
        )
    return min(found)


def _walk(
    start: Fraction, cosines: Sequence[float], same: Sequence[bool], alpha: float, level: float
) -> Fraction | None:
    """Return the last threshold that passes its test on a walk down from a start; None if the first one fails."""
    found = None
    for threshold in GRID[GRID.index(start) :]:
        reach = [told for cosine, told in zip(cosines, same, strict=True) if cosine >= threshold]
        if not reach or lower_tail(reach.count(False), len(reach), alpha) > level:
            break
        found = threshold
    return found
