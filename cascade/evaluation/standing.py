"""What stands beside the candidates of a fit: ways that need no policy, and one that cannot be certified."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cascade.calibration.realised import Played
from cascade.conformal.arrays import Bools
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import ALL_STEPS, Alone, broken, knowing_everything, reference_of, simple_ways
from cascade.evaluation.contestants import Uala
from cascade.evaluation.doubt import doubt_of

KNOWING = "knowing everything"


class Standing(NamedTuple):
    """One way to answer on training questions.

    Attributes:
        name: what it is called.
        cost_usd: a question's cost; None where costs are not on record.
        length: steps; None for one who knows everything.
        kept: the share of questions, of those that the promise speaks of, on which it is kept; None where it is
            measured otherwise.
        right: the share whose one answer is right; None for one who knows everything.
    """

    name: str
    cost_usd: float | None
    length: float | None
    kept: float | None
    right: float | None


def standing(table: EpisodeTable, kind: str, alpha: float | None) -> list[Standing]:
    """Return the reference and what stands beside it, the reference first.

    UALA's threshold is tuned on these very questions: what it costs on others is no less on average.

    Args:
        table: training questions.
        kind: of the guarantee.
        alpha: the loss at which the candidates are compared; None under a budget.
    """
    reference = reference_of(table)
    right = reference.right | ~reference.known if kind == "regret" and reference.name != ALL_STEPS else None
    counted = {"budget": "coverage", "f1": None}.get(kind, kind)
    found = [_of_way(table, way, counted, right) for way in (reference, *simple_ways(table, reference))]
    doubt = doubt_of(table)
    if doubt is not None and table.arrays.horizon > 1:
        uala = Uala(doubt)
        played = uala.prepare(table, table, 0.1 if alpha is None else alpha, 0).play(table)
        found.append(_of_way(table, _played(uala.name, played), counted, right))
    if alpha is not None and counted is not None and table.cost_known and (kind != "regret" or right is not None):
        cost = knowing_everything(table, counted, alpha, right).cost_nano_usd
        if cost is not None:
            found.append(Standing(KNOWING, cost / 1e9, None, 1 - alpha, None))
    return found


def _played(name: str, played: Played) -> Alone:
    known = np.ones(played.right.size, dtype=np.bool_)
    return Alone(name, known, played.right > 0, played.in_set > 0, played.cost, played.length, played.distinct)


def _of_way(table: EpisodeTable, way: Alone, kind: str | None, reference_right: Bools | None) -> Standing:
    known = way.known
    kept = None
    if kind is not None and (kind != "regret" or reference_right is not None):
        lost = broken(table, kind, way.right, way.in_set, reference_right)[known]
        kept = float(1 - np.nanmean(lost)) if not np.isnan(lost).all() else None
    return Standing(
        way.name,
        float(way.cost[known].mean()) / 1e9 if table.cost_known else None,
        float(way.length[known].mean()),
        kept,
        float(way.right[known].mean()),
    )
