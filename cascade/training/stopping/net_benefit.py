"""Net benefit: backward induction with a ridge regression after each step.

After step t the realised value of going on is

    y = μ · (loss of stopping now − loss of where the later rules stop) − cost until there.

Its regression on the features of step t is the rule: go on where it is positive. μ is the least price at which
the rules lose, on the training questions, no more than will be allowed. As μ only changes y, each design is
factorised once.

The penalty is proportional to the number of columns and does not depend on the number of rows. For k standardised
columns that together explain a share R² of y and about equally, the best is k (1 − R²) / R²; R² is small here, since
whether a later step finds an answer is mostly luck. `PENALTY` is that of R² = 0.1.

References: `training.stopping.problem`; Longstaff & Schwartz (2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.policies.estimators import Linear
from cascade.policies.learned import LearnedPolicy
from cascade.training.estimators import Ridge, Weights
from cascade.training.stopping.answers import at_price, with_inclusion
from cascade.training.stopping.problem import (
    Outcome,
    Problem,
    Walked,
    backward,
    policy_of,
    price_of_loss,
)
from cascade.training.stopping.stages import Stage, prior_of, rule_before

PENALTY = 9.0
"""For each column and column. With 1,000 questions 3 does as well, 30 costs 1 % more, 100 costs 2 to 3 % more
(`benchmarks/osc_settings.py`)."""


class Induced(NamedTuple):
    """The rules of one price.

    Attributes:
        price: μ, in mean steps.
        weights: of each step but the last, in the columns of its stage; None where no question decides.
        targets: what they were fitted to, float64 (number of deciding rows,) each.
        outcome: their mean loss and cost on the training questions.
    """

    price: float
    weights: tuple[Weights | None, ...]
    targets: tuple[Floats | None, ...]
    outcome: Outcome


def fit_net_benefit(problem: Problem, penalty: float = PENALTY) -> LearnedPolicy:
    """Fit optimal stopping by net benefit; kappa = 0 is the optimum at the price that was found.

    Args:
        problem: the training questions, and what the policy is for (`problem.build`).
        penalty: of the ridge regressions, for each column and column.

    Guarantee: none; any scores are valid, and the threshold is certified on other questions. The order of the rows
    changes nothing but rounding. A stricter alpha never gives a lower price.
    """
    induced = induce(problem, penalty)
    scorers = [
        None if found is None else Linear(stage.design, found.weights / price, found.intercept / price)
        for stage, found, price in zip(problem.stages[:-1], induced.weights, problem.prices.tolist(), strict=True)
    ]
    include = None if problem.inclusion is None else at_price(problem.inclusion, induced.price)
    return policy_of(problem, "net_benefit", scorers, include)


def induce(problem: Problem, penalty: float = PENALTY) -> Induced:
    """Find the price of a loss, and fit the rules at it."""
    steps = [_Regression.prepare(stage, penalty, problem) for stage in problem.stages[:-1]]
    price = price_of_loss(problem, lambda one: _at(problem, steps, one).outcome)
    return _at(problem, steps, price)


class _Regression(NamedTuple):
    """One step's regression on the rows that decide; None where none does, or nothing tells them apart."""

    stage: Stage
    columns: Floats
    ridge: Ridge | None
    prior: Weights | None

    @classmethod
    def prepare(cls, stage: Stage, penalty: float, problem: Problem) -> _Regression:
        columns = stage.columns if stage.deciding.all() else stage.columns[stage.deciding]
        rule = rule_before(problem.init, stage.step, problem.table.sources)
        prior = prior_of(None if rule is None else rule.next, rule, stage, problem.table)
        ridge = Ridge.prepare(columns, stage.penalty(penalty)) if len(columns) else None
        return cls(stage, columns, ridge, prior)

    def solve(self, y: Floats) -> Weights | None:
        """Return the regression of y; with an earlier policy, of what its score, scaled, leaves over."""
        if self.ridge is None:
            return None
        if self.prior is None:
            return self.ridge.solve(y)
        said = self.prior.of(self.columns)
        about = said - said.mean()
        spread = float(about @ about)
        times = max(0.0, float(about @ y) / spread) if spread > 0 else 0.0
        rest = self.ridge.solve(y - times * said)
        return Weights(rest.intercept + times * self.prior.intercept, rest.weights + times * self.prior.weights)


def _at(problem: Problem, steps: Sequence[_Regression], price: float) -> Induced:
    """Fit the rules of one price, from the last step back."""
    loss, cost = problem.loss, problem.cost.values
    if problem.inclusion is not None:
        loss, cost = with_inclusion(problem.table, problem.inclusion, cost, price)
    weights: list[Weights | None] = [None] * len(steps)
    targets: list[Floats | None] = [None] * len(steps)

    def decide(t: int, ahead: Walked) -> Bools:
        step, onward = steps[t], np.zeros(len(loss), dtype=np.bool_)
        rows = step.stage.rows[step.stage.deciding]
        if rows.size:
            y = price * (loss[rows, t] - ahead.loss[rows]) - ahead.cost[rows]
            found = step.solve(y)
            weights[t], targets[t] = found, y
            onward[rows] = False if found is None else found.of(step.columns) > 0
        return onward

    outcome = backward(loss, cost, decide)
    return Induced(price, tuple(weights), tuple(targets), outcome)
