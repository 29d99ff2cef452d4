"""The content of a fitted policy's plot: the cost of keeping the promise more or less often."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import CLAIRVOYANT, BaselineFigures, clairvoyant_cost, label
from cascade.guarantees.base import Kind
from cascade.training.choice.choosing import Choice, Judged
from cascade.training.choice.objective import CostLossCurve, curve_of

_POINTS = 200
"""Points of a curve: more cannot be seen."""
_BOUND = tuple(round(0.02 * k, 2) for k in range(26))
"""The shares given up at which the bound is drawn."""


class Mark(NamedTuple):
    """One way to answer: how often it keeps the promise, and what it costs."""

    name: str
    kept: float
    cost: float


class Drawing(NamedTuple):
    """All that is drawn. Costs are USD per 1,000 questions, or steps a question where costs are not on record.

    Attributes:
        title: what the questions are called.
        kept, cost: what the axes say.
        curve: (kept, cost) of the chosen policy at its thresholds, on questions that each of its models had not seen.
        bound: the same of one who knows every answer, the clairvoyant bound.
        candidates: what each candidate costs where it keeps what is asked for, by name.
        baselines: ways to answer without a fitted policy.
        certified: the policy at its certified threshold, on the calibration questions.
        target: what is promised; None under a budget.
    """

    title: str
    kept: str
    cost: str
    curve: tuple[tuple[float, float], ...]
    bound: tuple[tuple[float, float], ...]
    candidates: tuple[Mark, ...]
    baselines: tuple[Mark, ...]
    certified: Mark | None
    target: float | None


def drawing(choice: Choice, baselines: Sequence[BaselineFigures], certified: Mark | None) -> Drawing:
    """Return what is drawn of a choice.

    Args:
        choice: the candidates, and the chosen one's scores on questions that its models had not seen.
        baselines: the baselines on the same questions.
        certified: the policy at its certified threshold.
    """
    sample, objective = choice.sample, choice.objective
    table, kind = sample.table, objective.guarantee.rules
    matched = [(one.name, one.matched) for one in _told(choice) if one.matched is not None]
    free = replace(objective.prices, answer=0)  # what answers are charged with is no cost
    walk, share = curve_of(sample, objective.guarantee, free), float(kind.counted(table).mean())
    scale = 1e-6 if objective.prices.in_money else 1 / objective.prices.unit
    budget = objective.guarantee.budget_nano_usd if kind.on_cost else None
    if budget is None:
        per_unit = 1e-6 if objective.prices.in_money else 1.0
        marks = [Mark(name, 1 - (objective.alpha or 0.0), cost * per_unit) for name, cost in matched]
    else:
        marks = [Mark(name, 1 - missed, budget * scale) for name, missed in matched]
    curve = tuple(_curve(walk, share, scale, turned=budget is not None))
    ways = tuple(_marks(baselines, in_money=objective.prices.in_money))
    least = min([kept for kept, _ in curve] + [way.kept for way in ways])  # the bound goes no further to the left
    bound = _bound(table, kind) if objective.prices.in_money else ()
    return Drawing(
        title=table.dataset,
        kept=kind.kept,
        cost="cost, USD per 1,000 questions" if objective.prices.in_money else "steps a question",
        curve=curve,
        bound=tuple([point for point in bound if point[0] >= least]),
        candidates=tuple(marks),
        baselines=ways,
        certified=certified,
        target=None if objective.guarantee.alpha is None else 1 - objective.guarantee.alpha,
    )


def _told(choice: Choice) -> Iterator[Judged]:
    """Yield the candidates that are drawn: the best of each method, and the chosen one."""
    best: dict[str, float] = {}
    for one in choice.judged:
        if one.matched is not None:
            best[one.method] = min(_compared(one), best.get(one.method, math.inf))
    drawn: set[str] = set()
    for one in choice.judged:
        least = one.matched is not None and _compared(one) == best[one.method] and one.method not in drawn
        if one.chosen or least:
            drawn |= {one.method} if least else set()
            yield one


def _compared(one: Judged) -> float:
    """Return what a candidate is compared by: its figure, and what its answers are charged with."""
    return (one.matched or 0.0) + (one.charge or 0.0)


def _curve(walk: CostLossCurve, share: float, scale: float, *, turned: bool) -> Iterator[tuple[float, float]]:
    """Yield points of a walk; `turned` where costs come down and losses are compared, as under a budget."""
    gap = float(walk.gap.sum()) + np.concatenate([[0.0], np.cumsum(walk.gap_jump)])
    value = float(walk.value.sum()) + np.concatenate([[0.0], np.cumsum(walk.value_jump)])
    ends = np.append(walk.start, walk.row.size)
    chosen = np.unique(np.linspace(0, ends.size - 1, _POINTS).round().astype(np.int64))
    for at in ends[chosen]:
        lost, paid = (value[at], -gap[at]) if turned else (gap[at], value[at])
        yield float(1 - lost / walk.n / share), float(paid / walk.n * scale)


def _bound(table: EpisodeTable, kind: Kind) -> Iterator[tuple[float, float]]:
    for alpha in _BOUND:
        cost = clairvoyant_cost(table, kind, alpha)
        if cost is not None:
            yield 1 - alpha, cost / 1e6


def _marks(baselines: Sequence[BaselineFigures], *, in_money: bool) -> Iterator[Mark]:
    for one in baselines:
        cost = one.length if not in_money else None if one.cost_usd is None else one.cost_usd * 1e3
        if one.kept is not None and cost is not None and one.name != CLAIRVOYANT:
            yield Mark(label(one.name), one.kept, cost)
