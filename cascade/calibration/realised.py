"""What a policy does on logged questions, each at its own threshold: the figures of evaluations and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from cascade.calibration.samples import places
from cascade.calibration.scores import Sample
from cascade.conformal.arrays import Bools, Floats, Ints, ScoreArrays
from cascade.conformal.rollout import levels, rollout
from cascade.conformal.single import last_resort, serves, single
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.found import Found
from cascade.policies.calibrated import EVERYTHING, Threshold


@dataclass(frozen=True, slots=True)
class Played:
    """Per question, float64 (n,): probabilities where the way to answer is a chance, else 0 and 1.

    `covered`: a right answer is kept, or none of the log's answers is right. `in_set`: a right answer is kept. `right`:
    the single answer served is right. `cost` in nano-USD. `length` steps paid. `leaves`, `distinct` answers kept.
    `abstained`: nothing is served for want of confidence.
    """

    covered: Floats
    in_set: Floats
    right: Floats
    cost: Floats
    length: Floats
    leaves: Floats
    distinct: Floats
    abstained: Floats

    def take(self, rows: Ints | Bools) -> Played:
        """Return the chosen questions."""
        return Played(*(getattr(self, field.name)[rows] for field in fields(self)))


def played_of(*columns: Bools | Ints) -> Played:
    """Return what was played from the columns of `Played`, in their order."""
    return Played(*(np.asarray(column, dtype=np.float64) for column in columns))


def play(table: EpisodeTable, scores: ScoreArrays, thresholds: Threshold | Sequence[Threshold]) -> Played:
    """Return what a policy's scores bring at a threshold, or each question at one of its own.

    Where everything is kept, the scores do not matter. Where the cascade is less sure of the best answer than is asked
    for, nothing is served (`single.serves`). Where nothing is kept, the best of all answers is served
    (`single.last_resort`). Of a record that is not complete it is what is certain (`rollout`).

    Raises:
        UsageError: a threshold is no number, or there are not as many as questions.
    """
    each = [thresholds] * table.n if isinstance(thresholds, Threshold) else thresholds
    if len(each) != table.n:
        raise UsageError(f"There are {len(each)} thresholds for {table.n} questions; give one, or one for each.")
    kappa = np.array([one.kappa for one in each], dtype=np.float64)
    below = np.array([-np.inf if one.abstain_below is None else one.abstain_below for one in each], dtype=np.float64)
    whole = np.flatnonzero([one.keeps_everything for one in each])
    if whole.size:
        scores = ScoreArrays(scores.candidates.copy(), scores.next.copy())
        scores.candidates[whole], scores.next[whole] = np.inf, np.inf
    found = levels(table.arrays, scores)
    did = rollout(table.arrays, found, kappa)
    best = single(table.arrays, found, table.confidence, kappa, sure=table.sure)
    served = serves(best.sure, below)
    right = np.where(did.leaves > 0, best.right, last_resort(table.arrays, table.confidence))
    return played_of(did.covered, did.in_set, right & served, did.cost, did.length, did.leaves, did.distinct, ~served)


def play_found(sample: Sample, found: Sequence[Found]) -> Played:
    """Return what a policy does at the thresholds that were found, each question at that of its segment."""
    place = places([one.segment for one in found], sample.table)  # there is always one for all others
    each = [Threshold(one.kappa, one.keeps_everything, one.abstain_below) for one in found]
    return play(sample.table, sample.scores, [each[number] for number in place.tolist()])


def play_everything(sample: Sample) -> Played:
    """Return what keeping every answer of every step brings."""
    return play(sample.table, sample.scores, EVERYTHING)


class Realised(NamedTuple):
    """Means over questions.

    Attributes:
        n: questions.
        coverage: share with a right answer kept, or none to be had.
        in_set: share with a right answer kept.
        error: share whose single answer is wrong or missing, abstentions not counted.
        abstained: share for which nothing is served for want of confidence.
        cost_nano_usd: mean cost of the questions whose costs are all known; None where they are not more than half.
        length: mean number of steps.
        set_size: mean number of different answers kept.
    """

    n: int
    coverage: float
    in_set: float
    error: float
    abstained: float
    cost_nano_usd: float | None
    length: float
    set_size: float


def realised(table: EpisodeTable, played: Played, rows: Bools | None = None) -> Realised | None:
    """Return the means over a table's questions, or some of them, bool (n,); None of none."""
    some, priced = (played, table.priced) if rows is None else (played.take(rows), table.priced[rows])
    n = some.covered.size
    if not n:
        return None
    return Realised(
        n,
        coverage=float(some.covered.mean()),
        in_set=float(some.in_set.mean()),
        error=float((1 - some.right - some.abstained).mean()),
        abstained=float(some.abstained.mean()),
        cost_nano_usd=float(some.cost[priced].mean()) if table.shows_cost and priced.any() else None,
        length=float(some.length.mean()),
        set_size=float(some.distinct.mean()),
    )
