"""Decide which models of a ladder are worth asking, and leave out those that cost more than they save.

A ladder of five models need not ask all five: a question that only the last model can answer pays for every model
before it. The steps of a ladder do not depend on each other, so a log of all of them shows exactly what any subset of
them would have cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from cascade.conformal.arrays import Ints, Parents
from cascade.episodes.table import EpisodeTable
from cascade.training.choice.cost_at_loss import cost_at_loss
from cascade.training.choice.crossfit import Candidate, cross_fitted
from cascade.training.choice.objective import Objective, allowed_of, curve_of

WORTH = 0.005
"""A step is left out if that saves at least this share of the cost. A smaller saving is noise."""


def may_leave_out(table: EpisodeTable, objective: Objective) -> bool:
    """Return whether steps may be left out: in a ladder of three or more whose last answer keeps the promise."""
    guarantee = objective.guarantee
    return not guarantee.abstain and table.arrays.horizon > 2 and guarantee.rules.last_is_safe(table)


def best_steps(
    table: EpisodeTable, fold: Ints, objective: Objective, candidate_on: Callable[[tuple[int, ...]], Candidate | None]
) -> tuple[int, ...]:
    """Return the steps that are worth their price, found by leaving out one step after another.

    Args:
        table: training questions with all steps.
        fold: int64 (n,), the fold of each question, which is scored by a policy fitted on the other folds.
        objective: what will be promised, and what steps cost.
        candidate_on: makes a policy for some steps; returns None where these steps give nothing to learn from.

    Returns:
        Their numbers, from 1, in ascending order: the last step and at least one other.
    """

    def cost(steps: tuple[int, ...]) -> float:
        return _cost(table, fold, objective, candidate_on(steps))

    best = tuple(range(1, table.arrays.horizon + 1))
    least = cost(best)
    while len(best) > 2:
        figures = {fewer: cost(fewer) for fewer in _fewer(best, table.parents)}
        found = min(figures, key=lambda one: figures[one], default=best)
        if not figures.get(found, math.inf) < least * (1 - WORTH):
            break
        best, least = found, figures[found]
    return best


def _fewer(steps: tuple[int, ...], parents: Parents | None) -> Iterator[tuple[int, ...]]:
    """Yield the steps with one of them left out, for each but the last and those that a step depends on."""
    for at in range(len(steps) - 1):
        needed = () if parents is None else {p for step in steps if step != steps[at] for p in parents[step - 1]}
        if steps[at] not in needed:
            yield steps[:at] + steps[at + 1 :]


def _cost(table: EpisodeTable, fold: Ints, objective: Objective, candidate: Candidate | None) -> float:
    """Return the mean cost out of fold at the loss that will be allowed; +∞ where no threshold reaches it."""
    if candidate is None:
        return math.inf
    held, failed = cross_fitted(table, [candidate], fold)
    if failed:
        return math.inf
    sample = held[candidate.name].sample
    walk = curve_of(sample, objective.guarantee, objective.prices)
    return cost_at_loss(walk, allowed_of(sample.table, objective.guarantee, objective.alpha), coin=0.0)
