"""Which models of a ladder are worth asking: those that cost more than they save are left out.

A ladder of five models need not ask all five: a question that only the last can answer pays for each before it. Steps
of a ladder do not depend on each other, so a log of all of them says exactly what any part of them would have cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from cascade.calibration.reference import ends_in_reference
from cascade.conformal.arrays import Ints
from cascade.episodes.table import EpisodeTable
from cascade.training.choice.crossfit import Candidate, cross_fitted
from cascade.training.choice.matched import matched
from cascade.training.choice.measuring import Terms, allowed_of, walk_of

WORTH = 0.005
"""A step is left out where that saves at least this share of the cost: less is noise."""


def may_leave_out(table: EpisodeTable, terms: Terms) -> bool:
    """Whether steps may be left out: for regret, in a ladder that ends in the reference, of three steps or more."""
    guarantee = terms.guarantee
    return (
        guarantee.kind == "regret" and not guarantee.abstain and table.arrays.horizon > 2 and ends_in_reference(table)
    )


def best_steps(
    table: EpisodeTable, fold: Ints, terms: Terms, candidate_on: Callable[[tuple[int, ...]], Candidate | None]
) -> tuple[int, ...]:
    """Return the steps that are worth their price, found by leaving out one after the other.

    Args:
        table: training questions with all steps.
        fold: int64 (n,), the fold of each: what is compared was fitted on other folds.
        terms: what will be promised, and what steps cost.
        candidate_on: how a policy on some steps is made; None where there is nothing to learn from on these.

    Returns:
        Their numbers, from 1, rising; the last step is always one of them, and at least one other.
    """

    def cost(steps: tuple[int, ...]) -> float:
        return _cost(table, fold, terms, candidate_on(steps))

    best = tuple(range(1, table.arrays.horizon + 1))
    least = cost(best)
    while len(best) > 2:
        figures = {fewer: cost(fewer) for fewer in _fewer(best)}
        found = min(figures, key=lambda one: figures[one])
        if not figures[found] < least * (1 - WORTH):
            break
        best, least = found, figures[found]
    return best


def _fewer(steps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the steps without each one of them, but never without the last."""
    yield from (steps[:at] + steps[at + 1 :] for at in range(len(steps) - 1))


def _cost(table: EpisodeTable, fold: Ints, terms: Terms, candidate: Candidate | None) -> float:
    """Return the mean cost out of fold at the loss that will be allowed; +∞ where that is never reached."""
    if candidate is None:
        return math.inf
    held, failed = cross_fitted(table, [candidate], fold)
    if failed:
        return math.inf
    sample = held[candidate.name].sample
    walk = walk_of(sample, terms.guarantee, terms.prices)
    return matched(walk, allowed_of(sample.table, terms.guarantee, terms.alpha), coin=0.0)
