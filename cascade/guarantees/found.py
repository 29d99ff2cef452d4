"""The result of a calibration: a threshold, and its outcomes on the calibration questions."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools
from cascade.conformal.served import PathPoint

Path: TypeAlias = tuple[PathPoint, ...]
"""Points to test one after the other, fixed without the calibration questions."""


class Found(NamedTuple):
    """A threshold and how it came about.

    Attributes:
        segment: the questions that it serves: a segment's, or where None all that no other threshold serves.
        rows: bool (n,), the calibration questions that it serves.
        n: the questions that it was set on.
        kappa: the threshold.
        k: its rank; None where it was set otherwise.
        misses: calibration questions that count against the promise at the threshold; None where none are counted.
        keeps_everything: whether the questions were too few, so that everything is kept.
        abstain_below: nothing is served below this confidence; None without abstention.
        needed_n: how many questions would have done, where they were too few and that is known.
        chance: the probability that so many do; None where they do for certain, or where that is not known.
        refused: why nothing can be promised, in words; None where it can.
    """

    segment: str | None
    rows: Bools
    n: int
    kappa: float
    k: int | None = None
    misses: int | None = None
    keeps_everything: bool = False
    abstain_below: float | None = None
    needed_n: int | None = None
    chance: float | None = None
    refused: str | None = None


class Misses(NamedTuple):
    """Which questions count against a promise at its threshold, bool (n,) each.

    Attributes:
        missed: whether the question does, with what its record does not show on the side of a miss.
        surely: whether it does whatever is not on record.
        counted: whether it is one that the promise surely speaks of.
    """

    missed: Bools
    surely: Bools
    counted: Bools


def everywhere(n: int) -> Bools:
    """Return all of n questions: bool (n,)."""
    return np.ones(n, dtype=np.bool_)
