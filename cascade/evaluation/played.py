"""What the ways to answer that are compared did on n questions, and the means of it that are reported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cascade.calibration.realised import Played, play, played_of
from cascade.conformal.arrays import ScoreArrays
from cascade.conformal.rollout import hopeless
from cascade.episodes.table import EpisodeTable, Walk
from cascade.policies.calibrated import Threshold


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
    """Return what a policy's scores bring at one threshold; the single answer is served however sure it is."""
    return play(table, scores, Threshold(kappa))


def played_walk(table: EpisodeTable, walk: Walk) -> Played:
    """Return what a logged walk brought; a question that it was not logged for counts as missed, at no cost."""
    covered, never = walk.covered | hopeless(table.arrays), np.zeros(table.n, dtype=np.bool_)
    return played_of(covered, walk.covered, walk.right, walk.cost, walk.length, walk.leaves, walk.distinct, never)


def means(table: EpisodeTable, played: Played) -> Means:
    """Return the means over a table's questions."""
    solvable = table.arrays.solvable
    return Means(
        coverage=float(played.covered.mean()),
        covered_given_solvable=float(played.in_set[solvable].mean()) if solvable.any() else None,
        unsolvable=float(hopeless(table.arrays).mean()),
        in_set=float(played.in_set.mean()),
        accuracy=float(played.right.mean()),
        cost_usd=float(played.cost[table.priced].mean()) / 1e9 if table.shows_cost else None,
        avg_length=float(played.length.mean()),
        leaves=float(played.leaves.mean()),
        set_size=float(played.distinct.mean()),
    )
