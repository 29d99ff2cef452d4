"""What one way to answer did on n questions, and the means of it that are reported."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, ScoreArrays
from cascade.conformal.rollout import hopeless, levels, rollout
from cascade.conformal.single import single
from cascade.episodes.table import EpisodeTable, Walk


@dataclass(frozen=True, slots=True)
class Played:
    """Per question, float64 (n,): probabilities where the way to answer is a chance, else 0 and 1.

    `covered`: a right answer is kept, or none of the log's answers is right. `in_set`: a right answer is kept. `right`:
    the single answer served is right. `cost` in nano-USD. `length` steps paid. `leaves`, `distinct` answers kept.
    """

    covered: Floats
    in_set: Floats
    right: Floats
    cost: Floats
    length: Floats
    leaves: Floats
    distinct: Floats

    def take(self, rows: Ints | Bools) -> Played:
        """Return the chosen questions."""
        return Played(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Means:
    """Means over questions; None where a cost is unknown, or no question is solvable."""

    coverage: float
    covered_given_solvable: float | None
    unsolvable: float
    in_set: float
    accuracy: float
    cost_usd: float | None
    avg_length: float
    leaves: float
    set_size: float


def played_at(table: EpisodeTable, scores: ScoreArrays, kappa: float) -> Played:
    """Return what a policy's scores bring at a threshold."""
    found = levels(table.arrays, scores)
    outcomes = rollout(table.arrays, found, kappa)
    right = single(table.arrays, found, table.confidence, kappa).right
    return _floats(
        outcomes.covered, outcomes.in_set, right, outcomes.cost, outcomes.length, outcomes.leaves, outcomes.distinct
    )


def played_walk(table: EpisodeTable, walk: Walk) -> Played:
    """Return what a logged walk brought; a question that it was not logged for counts as missed, at no cost."""
    covered = walk.covered | hopeless(table.arrays)
    return _floats(covered, walk.covered, walk.right, walk.cost, walk.length, walk.leaves, walk.distinct)


def _floats(*columns: Bools | Ints) -> Played:
    return Played(*(np.asarray(column, dtype=np.float64) for column in columns))


def means(table: EpisodeTable, played: Played) -> Means:
    """Return the means over a table's questions."""
    solvable = table.arrays.solvable
    return Means(
        coverage=float(played.covered.mean()),
        covered_given_solvable=float(played.in_set[solvable].mean()) if solvable.any() else None,
        unsolvable=float(hopeless(table.arrays).mean()),
        in_set=float(played.in_set.mean()),
        accuracy=float(played.right.mean()),
        cost_usd=float(played.cost.mean()) / 1e9 if table.cost_known else None,
        avg_length=float(played.length.mean()),
        leaves=float(played.leaves.mean()),
        set_size=float(played.distinct.mean()),
    )
