"""What optimal stopping is fitted to: what is asked for, and what each step costs. What it loses says the guarantee.

Everything here is as if every answer of the steps taken were kept. A record that ends before its question does is
continued as if nothing changed: the same loss, and steps at their mean cost. That is for fitting alone; a certificate
counts such questions on the safe side (`conformal.rollout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Kind, get

WINSORISED_AT = 0.98
"""A quantile of a step's costs, at which they are cut for fitting: with costs whose standard deviation is 3.6 times the
mean, a handful of questions would set the slopes of all others."""


@dataclass(frozen=True, slots=True)
class FitTarget:
    """What a policy is fitted for.

    Attributes:
        kind: of the guarantee, one of `guarantees.registry.names`.
        alpha: the mean loss that the calibration will allow, of the questions that the kind speaks of; None for
            "budget".
        budget_nano_usd: for "budget", the mean cost of a question that the calibration will allow, nano-USD.
        lambda_set: what one more answer in the set is charged with, in mean steps; 0 keeps every answer. It is without
            effect on "error" and "regret", which speak of the one answer served.

    Raises:
        UsageError: everything that is wrong with it.

    >>> FitTarget("coverage", 0.1).lambda_set
    0.0
    """

    kind: str
    alpha: float | None = None
    budget_nano_usd: float | None = None
    lambda_set: float = 0.0

    def __post_init__(self) -> None:
        problems = [*self._problems()]
        if problems:
            raise UsageError("; ".join(problems) + ".")

    def _problems(self) -> Iterator[str]:
        if self.rules.on_cost:
            if self.budget_nano_usd is None or not self.budget_nano_usd > 0:
                yield f"budget_nano_usd is {self.budget_nano_usd}; it is a number above 0"
        elif self.alpha is None or not 0 <= self.alpha <= 1:
            yield f"alpha is {self.alpha}; it lies between 0 and 1"
        if not 0 <= self.lambda_set < np.inf:
            yield f"lambda_set is {self.lambda_set}; it is 0 or more"

    @property
    def rules(self) -> Kind:
        """What the kind of guarantee means."""
        return get(self.kind)

    @property
    def single(self) -> bool:
        """Whether it speaks of the one answer served, not of the set."""
        return self.rules.single

    @property
    def includes(self) -> bool:
        """Whether answers are left out of the set for what they are charged with."""
        return self.lambda_set > 0 and not self.single


class StepCost(NamedTuple):
    """What steps cost, for fitting.

    Attributes:
        values: float64 (n, T), in mean steps, cut at the 98th percentile of the step; 0 beyond the record of a complete
            question, the step's mean beyond that of one that is not.
        unit_nano_usd: what a mean step costs; None where a step counts as 1 because its cost is unknown, or nothing.
    """

    values: Floats
    unit_nano_usd: float | None


def on_record(table: EpisodeTable) -> Bools:
    """Return which steps are on record, bool (n, T)."""
    return np.asarray(np.arange(table.arrays.horizon) < table.arrays.steps[:, None])


def decides(table: EpisodeTable) -> Bools:
    """Return where a policy decides whether to go on, bool (n, T): not after the last step of a complete question."""
    last = np.arange(table.arrays.horizon) == table.arrays.steps[:, None] - 1
    found = on_record(table) & ~(last & table.arrays.complete[:, None])
    found[:, -1] = False
    return np.asarray(found)


def step_cost(table: EpisodeTable) -> StepCost:
    """Return what steps cost. Where any cost is unknown, or all are nothing, each step costs 1.

    Raises:
        UsageError: there is no question.
    """
    if not table.n:
        raise UsageError("There is no question to fit on.")
    held = on_record(table)
    known = table.cost_known and bool(table.arrays.cost[held].any())
    values = np.where(held, table.arrays.cost.astype(np.float64) if known else 1.0, np.nan)
    open_ended = ~table.arrays.complete
    for t in range(values.shape[1]):
        column, there = values[:, t], held[:, t]
        if there.any():
            np.minimum(column, np.quantile(column[there], WINSORISED_AT), out=column)
        beyond = float(column[there].mean()) if there.any() else 0.0
        column[~there] = np.where(open_ended[~there], beyond, 0.0)
    unit = float(values[held].mean()) or 1.0
    return StepCost(values / unit, unit if known else None)


def allowed(table: EpisodeTable, asked: FitTarget) -> float:
    """Return the mean loss over all questions of a table that is asked for; its `alpha` is of those spoken of.

    Raises:
        UsageError: the kind is held against a mean cost, or the log lacks what it needs.
    """
    if asked.alpha is None:
        raise UsageError("A budget allows a cost, not a loss.")
    return asked.alpha * float(asked.rules.counted(table).mean())
