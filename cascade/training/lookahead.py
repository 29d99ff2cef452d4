"""The method index2: the expected loss avoided per cost of the next k steps, for the best k.

After step t, let p = P(stopping here loses), q_k = P(k more steps avoid the loss | stopping here loses) and, if a right
answer can be lost, r_k = P(k more steps cause a loss | stopping here does not lose). The score of going on is the
maximum over k of (p q_k − (1 − p) r_k) / c_k. c_k is the expected cost of k more steps, a ridge regression on the
step's features, because the same probability is worth less if the next step is expensive. Decisions in between are not
modelled ("open loop"), and no price is needed: the threshold is its inverse. p is fitted on all questions, q_k on those
where stopping loses, and r_k on the others.

References: `stopping`; Weitzman, Optimal search for the best alternative (1979), for an index of its kind.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats, Ints
from cascade.policies.estimators import Gain, Linear, Logistic
from cascade.policies.learned import LearnedPolicy
from cascade.training.estimators import Ridge, Weights, logistic
from cascade.training.stages import PENALTY, Stage, logistic_of, per_price, prior_of, rule_before
from cascade.training.stopping import Outcome, Problem, backward, policy_of, price_of_loss

_PRICE_PENALTY = 1.0
"""The penalty per column: best if the features explain half of the variance of costs (`stopping.PENALTY`)."""
_LEAST_SHARE = 0.1
"""The least predicted cost of later steps, as a share of the mean: a linear prediction may cross 0."""
_LEAST_ROWS = 10
"""With fewer questions, a conditional probability is their share, the same for all questions."""


def fit_lookahead(problem: Problem) -> LearnedPolicy:
    """Fit optimal stopping by the index.

    Probabilities are shrunk towards those of an earlier policy of this method.

    Guarantee: none; any scores are valid, and the threshold is certified on other questions.
    """
    gains = [_gain(problem, stage) for stage in problem.stages[:-1]]
    include = None if problem.inclusion is None else per_price(problem.inclusion)
    scores = _scores(problem, gains)

    def outcome_at(price: float) -> Outcome:
        return backward(problem.loss, problem.cost.values, lambda t, _: scores[:, t] >= 1.0 / price)

    price = price_of_loss(problem, outcome_at)
    return policy_of(problem, "index2", gains, include, kappa=1.0 / price)


class _Shown(NamedTuple):
    """The data that a step's probabilities are fitted on: rows that decide."""

    stage: Stage
    rows: Ints
    columns: Floats
    penalty: Floats

    def fit(self, y: Floats, weights: Floats, prior: Weights | None = None) -> Logistic:
        """Fit the probability of y, a share, on weighted rows."""
        penalty = self.penalty
        counted = weights > 0
        if np.count_nonzero(counted) < _LEAST_ROWS:
            flat = logistic(np.zeros((len(y), 1)), y, 0.0, weights=None if not counted.any() else weights)
            return logistic_of(self.stage.design, flat._replace(weights=np.zeros(self.columns.shape[1])))
        some = self.columns[counted] if not counted.all() else self.columns
        share = None if (weights[counted] == 1.0).all() else weights[counted]
        found = logistic(some, y[counted], penalty, weights=share, prior=None if prior is None else prior.weights)
        return logistic_of(self.stage.design, found)


def _gain(problem: Problem, stage: Stage) -> Gain | None:
    """Fit one step's index; None if no question decides there."""
    rows, t = stage.rows[stage.deciding], stage.step - 1
    if not rows.size:
        return None
    shown = _Shown(stage, rows, stage.columns[stage.deciding], stage.penalty(PENALTY))
    now, later = problem.loss[rows, t], problem.loss[rows, t + 1 :]
    rule = rule_before(problem.init, stage.step, problem.table.sources)
    before = rule.next if rule is not None and isinstance(rule.next, Gain) else None

    def prior(one: Logistic | None) -> Weights | None:
        return prior_of(one, rule, stage, problem.table)

    loss = shown.fit(now, np.ones(rows.size), prior(None if before is None else before.loss))
    gained, lost, paid = [], list[Logistic | None](), []
    for k in range(later.shape[1]):
        ahead = before is not None and k < len(before.gained)
        mended, broken = np.maximum(now - later[:, k], 0.0), np.maximum(later[:, k] - now, 0.0)
        gained.append(shown.fit(_share(mended, now), now, prior(before.gained[k] if before and ahead else None)))
        kept = 1.0 - now
        earlier = prior(before.lost[k] if before and ahead else None)
        lost.append(shown.fit(_share(broken, kept), kept, earlier) if broken.any() else None)
        paid.append(problem.cost.values[rows, t + 1 : t + 2 + k].sum(axis=1))
    least = [max(_LEAST_SHARE * float(one.mean()), float(problem.prices[t]) * _LEAST_SHARE) for one in paid]
    ridge = Ridge.prepare(shown.columns, stage.penalty(_PRICE_PENALTY))
    prices = [Linear(stage.design, one.weights, one.intercept) for one in map(ridge.solve, paid)]
    return Gain(loss, tuple(gained), tuple(lost), np.array(least), tuple(prices))


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _scores(problem: Problem, gains: list[Gain | None]) -> Floats:
    """Return the training questions' scores of going on, float64 (n, T − 1); −inf if nothing is decided."""
    found = np.full((problem.table.n, len(gains)), -np.inf)
    for t, (stage, gain) in enumerate(zip(problem.stages[:-1], gains, strict=True)):
        if gain is not None:
            found[stage.rows[stage.deciding], t] = gain.values(stage.raw[stage.deciding])
    return found
