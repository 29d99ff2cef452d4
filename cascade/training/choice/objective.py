"""What a policy loses and costs on logged questions as its threshold falls, for each kind of guarantee.

| kind | what comes down to the allowed mean | what is then compared |
|---|---|---|
| `coverage` | the question is missed | cost |
| `solvable` | the same; a question that no step answers rightly loses nothing, and does not count | cost |
| `f1` | what the best F1 kept lacks to the best on record | cost |
| `error`, `regret` | the one answer served is wrong; for regret, and the reference right | cost |
| `budget` | minus the cost, down to minus the budget | the share of questions missed |

The losses are those that the kind of guarantee certifies: a policy is chosen by what it will be held to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from cascade.calibration.scores import Sample
from cascade.conformal.arrays import Ints
from cascade.conformal.curves import StepFunctions
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.training.choice.cost_at_loss import CostLossCurve, cost_loss_curve

Unit = Literal["nano_usd", "steps", "missed"]
_PARTS = 1_000_000
"""Parts of a step where costs are counted in steps, so that an answer may be charged with a part of one."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a step costs, and what one more answer in the set is charged with.

    Attributes:
        in_money: whether costs are nano-USD. If not, the log does not say what every step costs, each counts the same,
            and costs are numbers of steps.
        answer: what each further distinct answer in the set is charged with (lambda); 0 where the set's size is free.
        unit: how many make one of what is shown: one nano-USD, or one step.
    """

    in_money: bool
    answer: int = 0

    @property
    def unit(self) -> int:
        """How many of what is summed make one of what is shown."""
        return 1 if self.in_money else _PARTS

    def of_steps(self, table: EpisodeTable) -> Ints:
        """Return what each step costs, int64 (n, T); 0 beyond the record."""
        if self.in_money:
            return table.arrays.cost
        on_record = np.arange(table.arrays.horizon) < table.arrays.steps[:, None]
        return np.where(on_record, _PARTS, 0)


def prices_of(table: EpisodeTable, lambda_set: float = 0.0) -> Prices:
    """Return what steps and answers of a log cost; lambda is a share of what its mean step costs."""
    bare = Prices(table.cost_known)
    mean = float(bare.of_steps(table).sum()) / max(1, int(table.arrays.steps.sum()))
    return Prices(table.cost_known, round(lambda_set * mean))


class Objective(NamedTuple):
    """What policies are compared by.

    Attributes:
        guarantee: what will be promised.
        alpha: the loss that the calibration will allow; None under a budget.
        prices: what steps and answers cost.
        lambda_set: what an answer is charged with, as a share of a mean step.
    """

    guarantee: Guarantee
    alpha: float | None
    prices: Prices
    lambda_set: float = 0.0

    @classmethod
    def of(cls, table: EpisodeTable, guarantee: Guarantee, alpha: float | None, lambda_set: float = 0.0) -> Objective:
        """Return the objective on a log. Where one answer is served, the size of the set costs nothing."""
        charged = 0.0 if guarantee.single else lambda_set
        return cls(guarantee, alpha, prices_of(table, charged), charged)

    @property
    def unit(self) -> Unit:
        """What the figures are in."""
        if self.guarantee.rules.on_cost:
            return "missed"
        return "nano_usd" if self.prices.in_money else "steps"

    @property
    def divisor(self) -> float:
        """How many of what is summed make one of the unit."""
        return 1.0 if self.guarantee.rules.on_cost else float(self.prices.unit)


def curve_of(sample: Sample, guarantee: Guarantee, prices: Prices) -> CostLossCurve:
    """Return what a policy brings on n questions as its threshold falls, to be compared with others (`cost_at_loss`).

    Args:
        sample: the questions with the policy's scores; for regret those alone of which the reference is on record.
        guarantee: what will be promised.
        prices: what steps and answers cost.

    Raises:
        UsageError: the log lacks what the guarantee needs.
    """
    loss, cost = guarantee.rules.losses(sample), _costs(sample, prices)
    if guarantee.rules.on_cost:
        return cost_loss_curve(StepFunctions(-cost.start, cost.level, -cost.jump), loss)
    return cost_loss_curve(loss, cost)


def allowed_of(table: EpisodeTable, guarantee: Guarantee, alpha: float | None) -> float:
    """Return the mean that a walk is to come down to, over all of a table's questions.

    Args:
        table: the questions.
        guarantee: what will be promised.
        alpha: the loss that the calibration questions will allow, at most that of the guarantee; None under a budget.
    """
    if alpha is None:
        assert guarantee.budget_nano_usd is not None  # noqa: S101 - `Guarantee` has checked it
        return -float(guarantee.budget_nano_usd)
    return alpha * float(guarantee.rules.counted(table).mean())


def _costs(sample: Sample, prices: Prices) -> StepFunctions:
    levels, cost = sample.levels, prices.of_steps(sample.table)
    start = np.zeros(sample.table.n, dtype=np.int64)
    if not prices.answer:
        return StepFunctions(start, levels.reach, cost)
    leaf = levels.leaf.reshape(start.size, -1)
    charged = np.where(levels.first.reshape(leaf.shape), prices.answer, 0)
    return StepFunctions(start, np.hstack([levels.reach, leaf]), np.hstack([cost, charged]))
