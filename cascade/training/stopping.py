"""Optimal stopping: the problem that its estimators are fitted to, the price of a loss, and net benefit, the simplest.

A policy that keeps every answer only decides when to stop (`design/fitting.md`): it minimises the mean cost under a
bound on the mean loss. With a price μ on the loss the best rule goes on if

    Q_t(h) = E[ μ · (loss of stopping now − loss of stopping later) − cost of going on | h ] > 0,

if later decisions are optimal too. The estimators differ in how they estimate Q: net benefit (`fit_net_benefit`) by
backward induction with a ridge regression after each step, `fit_purchases` (`purchases`) for each call that may be
bought next.

All scores are benefit per price: at each step, Q is divided by the mean cost of the next step. At kappa = 0 the
division changes nothing. At other thresholds it makes the threshold act like another price of the loss: near Q = 0 a
change of μ by dμ moves Q by dμ · E[loss removed] = dμ/μ · E[cost], so Q / E[cost] shifts by the same amount at all
steps.

Guarantee of every policy made here: none. Any scores are valid; `calibration` certifies the promise on questions that
the fit has not seen.

Reference: Longstaff & Schwartz, Valuing American options by simulation (2001), for regressions on realised values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.episodes.table import EpisodeTable
from cascade.policies.design import GO_ON
from cascade.policies.estimators import Constant, Linear, Scorer
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.training.estimators import Ridge, Weights
from cascade.training.stages import (
    Answers,
    FitTarget,
    Stage,
    StepCost,
    allowed,
    fit_answers,
    newest_answers,
    own_answers,
    staged,
    step_cost,
)

_LEAST_PRICE = 0.01
"""The least divisor of scores, in mean steps, since a step may be free."""
LOW, HIGH, HALVINGS = -6.0, 14.0, 12
"""The prices of a loss that are tried, as powers of two of a mean step's cost, to 0.3 %. At the lowest, a loss is worth
1/64 of a step; at the highest, 16,000 steps."""
_AIM = 0.75
"""The share of the allowed loss that is the aim. At a price at which a step pays for all questions at once, the loss
drops by more than needed; the lowest such price then ignores the later steps. Otherwise the value hardly matters: from
0.5 to 1 costs differ by 1.5 % or less."""


class Problem(NamedTuple):
    """The input of an estimator, on n questions of T steps.

    Attributes:
        table: the training questions.
        asked: the promise to fit for.
        stages: the features of each step, T of them.
        loss: float64 (n, T), the loss of stopping after each step (`Kind.loss`).
        cost: the cost of each step, in mean steps.
        answers: the probabilities that answers are right.
        seed: the seed of the folds and of trees.
    """

    table: EpisodeTable
    asked: FitTarget
    stages: tuple[Stage, ...]
    loss: Floats
    cost: StepCost
    answers: Answers
    seed: int = 0

    @property
    def prices(self) -> Floats:
        """The mean cost of the next step, float64 (T − 1,): for each step, over the questions that decide after it."""
        following = [self.cost.values[stage.rows[stage.deciding], stage.step] for stage in self.stages[:-1]]
        means = [float(some.mean()) if some.size else 1.0 for some in following]
        return np.maximum(np.array(means, dtype=np.float64), _LEAST_PRICE)


def build(table: EpisodeTable, asked: FitTarget, *, confidences: bool = True, seed: int = 0) -> Problem:
    """Return a table's stopping problem.

    Without `confidences` the probabilities that answers are right are fitted only for the single answer, whose loss
    depends on which is served.
    """
    cost, stages = step_cost(table), tuple(staged(table))
    if asked.rules.last_is_safe(table):
        answers = newest_answers(table)
    elif confidences or asked.single:
        answers = fit_answers(table, stages, seed=seed)
    else:
        answers = own_answers(table)
    loss = asked.rules.loss(table, answers.out_of_fold)
    return Problem(table, asked, stages, loss, cost, answers, seed)


ProblemBuilder: TypeAlias = Callable[..., Problem]
"""`build`, or a function with the same signature."""


class SharedProblem:
    """A `build` for several estimators in turn, which share the problem of a table.

    Only the problem of the last table is kept; a table is recognised by object identity.
    """

    def __init__(self) -> None:
        self._last: tuple[EpisodeTable, tuple[object, ...], Problem] | None = None

    def __call__(self, table: EpisodeTable, asked: FitTarget, **more: Any) -> Problem:
        """Return the same as `build`."""
        key = (asked, *sorted(more.items()))
        if self._last is None or self._last[0] is not table or self._last[1] != key:
            self._last = table, key, build(table, asked, **more)
        return self._last[2]


def policy_of(
    problem: Problem,
    method: str,
    onward: Sequence[Scorer | None],
    include: Sequence[Sequence[Scorer | None]] | None = None,
    kappa: float = 0.0,
) -> LearnedPolicy:
    """Return the policy with these scores.

    Args:
        problem: the problem that it was fitted on.
        method: one of `policies.learned.METHODS`.
        onward: the scores of going on, T − 1 of them; None, if no question was left to fit one, always goes on.
        include: the scores of the answers, T times m; None keeps all answers.
        kappa: the threshold if none is certified.
    """
    nothing = (None,) * len(problem.table.sources)
    rules = []
    for t, stage in enumerate(problem.stages):
        last = t == len(problem.stages) - 1
        following = None if last else onward[t] or Constant(GO_ON)
        kept = nothing if include is None else tuple(include[t])
        answers = problem.answers
        rules.append(StepRule(stage.features, following, kept, answers.confidence[t], answers.incumbent[t]))
    return LearnedPolicy(method, tuple(rules), kappa)


class Outcome(NamedTuple):
    """Mean loss and cost of the rules fitted at a price, on the training questions."""

    loss: float
    cost: float


def price_of_loss(problem: Problem, outcome_at: Callable[[float], Outcome]) -> float:
    """Return the least price μ at which the rules lose at most the allowed loss.

    By bisection in the logarithm along fixed points, so that a stricter target never gives a lower price. If no price
    reaches the allowed loss, return the least price that loses as little as the highest. The aim is a little below the
    allowed loss (`_AIM`), and below the loss of the first step alone, so that the scores are accurate near the future
    threshold. `outcome_at` returns the mean loss and cost, in mean steps, of the rules of a price.
    """
    enough = _enough(problem, outcome_at)
    low, high = LOW, HIGH
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if enough(outcome_at(2.0**middle)):
            high = middle
        else:
            low = middle
    return float(2.0**high)


def _enough(problem: Problem, outcome_at: Callable[[float], Outcome]) -> Callable[[Outcome], bool]:
    """Return the test whether a price is high enough."""
    aim = _AIM * min(allowed(problem.table, problem.asked), float(problem.loss[:, 0].mean()))
    aim = max(aim, outcome_at(2.0**HIGH).loss)
    return lambda outcome: outcome.loss <= aim


class Walked(NamedTuple):
    """Loss and cost of going on at a step and then following the later rules: float64 (n,) each.

    The cost is that of the steps from the next one on.
    """

    loss: Floats
    cost: Floats


def backward(loss: Floats, cost: Floats, decide: Callable[[int, Walked], Bools]) -> Outcome:
    """Walk back from the last step to the first; return the mean loss and cost of the decisions.

    `decide` is called with t, from T − 2 down to 0, and with loss and cost of going on after step t + 1; it says
    whether to go on, bool (n,). Loss and cost are float64 (n, T).
    """
    horizon = loss.shape[1]
    ahead = Walked(loss[:, -1], cost[:, -1])
    for t in range(horizon - 2, -1, -1):
        onward = decide(t, ahead)
        ahead = Walked(np.where(onward, ahead.loss, loss[:, t]), np.where(onward, ahead.cost, 0.0) + cost[:, t])
    return Outcome(float(ahead.loss.mean()), float(ahead.cost.mean()))


# --- Net benefit ---
# After step t the realised value of going on is
#
#     y = μ · (loss of stopping now − loss of where the later rules stop) − cost until there.
#
# Its regression on the features of step t is the rule: go on if the prediction is positive. μ is the least price at
# which the rules keep the loss on the training questions within the allowed loss. As μ only changes y, each design is
# factorised once.
#
# The penalty is proportional to the number of columns and does not depend on the number of rows. For k standardised
# columns that together explain a share R² of y, in about equal parts, the best penalty is k (1 − R²) / R². R² is small
# here, since whether a later step finds an answer is mostly luck. `PENALTY` is the best one for R² = 0.1.

PENALTY = 9.0
"""The penalty per column. With 1,000 questions 3 does as well, 30 costs 1 % more, 100 costs 2 to 3 % more."""


class Induced(NamedTuple):
    """The rules of one price.

    Attributes:
        price: μ, in mean steps.
        weights: for each step but the last, the weights of its rule; None if no question decides there.
        outcome: the mean loss and cost of the rules.
    """

    price: float
    weights: tuple[Weights | None, ...]
    outcome: Outcome


def fit_net_benefit(problem: Problem) -> LearnedPolicy:
    """Fit optimal stopping by net benefit; kappa = 0 is the optimum at the price that was found.

    The penalty of a column in the ridge regressions is `PENALTY` times the number of columns.

    Guarantee: none; any scores are valid, and the threshold is certified on other questions. The order of the rows
    changes only rounding. A stricter alpha never gives a lower price.
    """
    rules = induce(problem)
    scorers = [
        None if fitted is None else Linear(stage.design, fitted.weights / price, fitted.intercept / price)
        for stage, fitted, price in zip(problem.stages[:-1], rules.weights, problem.prices.tolist(), strict=True)
    ]
    return policy_of(problem, "net_benefit", scorers)


def induce(problem: Problem) -> Induced:
    """Find the price of a loss, and fit the rules at that price."""
    steps = [_Regression.prepare(stage) for stage in problem.stages[:-1]]
    price = price_of_loss(problem, lambda one: _at(problem, steps, one).outcome)
    return _at(problem, steps, price)


class _Regression(NamedTuple):
    """One step's regression on the rows that decide; None if there are none, or no column varies."""

    stage: Stage
    columns: Floats
    ridge: Ridge | None

    @classmethod
    def prepare(cls, stage: Stage) -> _Regression:
        columns = stage.columns if stage.deciding.all() else stage.columns[stage.deciding]
        return cls(stage, columns, Ridge.prepare(columns, stage.penalty(PENALTY)) if len(columns) else None)

    def solve(self, y: Floats) -> Weights | None:
        return None if self.ridge is None else self.ridge.solve(y)


def _at(problem: Problem, steps: Sequence[_Regression], price: float) -> Induced:
    """Fit the rules of one price, from the last step back."""
    loss, cost = problem.loss, problem.cost.values
    weights: list[Weights | None] = [None] * len(steps)

    def decide(t: int, ahead: Walked) -> Bools:
        step, onward = steps[t], np.zeros(len(loss), dtype=np.bool_)
        rows = step.stage.rows[step.stage.deciding]
        if rows.size:
            y = price * (loss[rows, t] - ahead.loss[rows]) - ahead.cost[rows]
            found = step.solve(y)
            weights[t] = found
            onward[rows] = False if found is None else found.of(step.columns) > 0
        return onward

    outcome = backward(loss, cost, decide)
    return Induced(price, tuple(weights), outcome)
