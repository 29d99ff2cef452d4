"""Fit which call to buy next, or when to stop, by backward regressions over the sets of bought offers.

A state is the set of offers bought so far; the last offer of the list is the reference, which ends the walk. In each
state, from the largest set back to the empty one, the value of buying an offer j that may follow is

    y_j = μ · (loss of stopping now − loss of where the later rules stop) − price of j − cost of what they buy then.

Its regression on the features of the state predicts the value of j: the rule buys the offer with the highest prediction
if that is above 0. This is net benefit (`stopping`) with several ways to go on. Which offer is the best does not depend
on the threshold. So a policy's walks are nested as the threshold falls, and every promise is certified as for a ladder.
The score is value per cost: the value is divided by the whole cost of going on, so that a threshold acts like another
price of the loss.

A log of all offers gives the result of each set, since an offer depends only on its parents. With up to `ALL_SETS`
offers all sets are states; with more, an offer is followed by the next one or by the reference.

Guarantee: none. Any scores are valid; the threshold is certified on other questions.

References: `training.stopping`; Longstaff & Schwartz (2001).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cascade.calibration.scores import history_of
from cascade.conformal.arrays import Floats, Parents
from cascade.episodes.table import AGREEMENT, EpisodeTable
from cascade.errors import UsageError
from cascade.policies.base import History, Takes
from cascade.policies.design import Design
from cascade.policies.estimators import Best, Constant, Linear, Mean, Scorer
from cascade.policies.features import ASKED, MOST_OFFERED, FeatureSet, offered
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.policies.trees import Trees
from cascade.training.estimators import Ridge, Weights, make_design
from cascade.training.stages import FitTarget
from cascade.training.stopping import PENALTY, Outcome, Problem, Walked, price_of_loss

State: TypeAlias = tuple[int, ...]
ALL_SETS, MOST_OFFERS = 6, 12
"""The most offers with which all sets are states; and the most offers that are supported."""
_COMPARING = frozenset({AGREEMENT, "answer_share", "judge_share"})
"""Signals that depend on which offers were bought before. The features `votes` and `equals` replace them."""
_LEAST_COST = 0.01
"""The least cost of going on by which the value is divided, in mean steps."""


def offers_of(table: EpisodeTable) -> Parents | None:
    """Return the parents of a log's offers; None unless its steps are single calls that can be left out.

    A ladder's models do not read each other's answers. For other lists the log records what each step reads.
    """
    horizon = table.arrays.horizon
    if table.arrays.answer.shape[2] != 1 or not 2 <= horizon <= MOST_OFFERS:
        return None
    return ((),) * horizon if table.parents is None else table.parents


def further(state: State, parents: Parents) -> State:
    """Return the offers that may be bought next, by their numbers.

    >>> further((), ((), (1,), ())), further((1,), ((), (1,), ()))
    ((1, 3), (2, 3))
    """
    last = max(state, default=0)
    ahead = [j for j in range(last + 1, len(parents) + 1) if {*parents[j - 1]} <= {*state}]
    if len(parents) > ALL_SETS and state:
        ahead = [j for j in ahead if j in {ahead[0], len(parents)}]
    return tuple(ahead)


def states_of(parents: Parents) -> tuple[State, ...]:
    """Return the sets of offers that can be bought without the reference, smaller ones first.

    >>> states_of(((), (), ()))
    ((), (1,), (2,), (1, 2))
    """
    found: list[State] = [()]
    for state in found:  # it grows
        found += [(*state, j) for j in further(state, parents) if j < len(parents)]
    return tuple(found)


class _StateRows(NamedTuple):
    """The data for the rule of a state, on n questions.

    Attributes:
        features: the features of the state.
        raw: float64 (n, d), their values, NaN = missing.
        design: the design that makes columns of them.
        columns: float64 (n, D), the columns.
        ridge: the factorised regression; None if no column varies.
        ahead: the numbers of the offers that may follow.
    """

    features: FeatureSet
    raw: Floats
    design: Design
    columns: Floats
    ridge: Ridge | None
    ahead: State


class _Rules(NamedTuple):
    """The rules of one price, by state: the weights that predict the value of each offer, their targets, the costs."""

    weights: Mapping[State, Sequence[Weights]]
    targets: Mapping[State, Sequence[Floats]]
    costs: Mapping[State, Sequence[float]]
    outcome: Outcome


def fit_purchases(problem: Problem, *, trees: bool = False) -> LearnedPolicy:
    """Fit which offer to buy next and when to stop; an earlier policy is not used.

    Questions that lack an offer are left out. With `trees`, the mean of a ridge regression and of boosted trees
    predicts an offer's value if there are enough requests for a cut; the price of a loss and the later decisions are
    those of the ridge regressions.
    """
    table = problem.table
    parents = offers_of(table)
    if parents is None:
        raise UsageError(f"{table.dataset} is not a log of 2 to {MOST_OFFERS} offers that are single calls.")
    whole = np.flatnonzero(table.arrays.steps == table.arrays.horizon)
    if not whole.size:
        raise UsageError(f"No question of {table.dataset} has all offers in the log.")
    part, cost = table.take(whole), problem.cost.values[whole]
    states = states_of(parents)
    sure = _sure(part)
    stages = {state: _stage(history_of(part), state, parents) for state in states}
    lost = {state: _lost(part, problem.asked, state, sure) for state in states}
    price = price_of_loss(problem, lambda one: _at(stages, lost, cost, one).outcome)
    rules = _at(stages, lost, cost, price)
    return _policy(part, stages, rules, sure, problem.seed if trees else None)


def _sure(table: EpisodeTable) -> Floats:
    """Return the share of right answers of each offer, (T,), and 1 for the last; it ranks bought answers.

    Equal answers count as one, with the highest of their shares.
    """
    right = table.arrays.correct[:, :, 0].mean(axis=0)
    return np.asarray(np.append(np.clip(right[:-1], 0.01, 0.98), 1.0))


def _lost(table: EpisodeTable, asked: FitTarget, state: State, sure: Floats) -> Floats:
    """Return the loss of stopping with these offers, float64 (n,); 0 before any was bought."""
    if not state:
        return np.zeros(table.n)
    columns = np.array(state) - 1
    part = replace(table, parents=None, arrays=replace(table.arrays, parents=None)).only(state)
    ranked = np.where(part.arrays.present, sure[columns][None, :, None], np.nan)
    return np.asarray(asked.rules.loss(part, ranked)[:, -1])


def _features_in(history: History, state: State) -> FeatureSet:
    """Return the features worth fitting on in a state; before any call they are numbers of the request."""
    bare = replace(history, signals={name: one for name, one in history.signals.items() if name not in _COMPARING})
    if state:
        return FeatureSet(offered(bare.only(state), len(state)), history.sources)
    every = offered(bare, 1, at_most=10**6, enough=10**6)
    return FeatureSet(tuple([name for name in every if name.startswith(ASKED)])[:MOST_OFFERED], history.sources)


def _values_in(features: FeatureSet, history: History, state: State) -> Floats:
    """Return the values of features in a state, float64 (n, d), NaN = missing."""
    return features.table(history.only(state) if state else history, max(1, len(state)))


def _stage(history: History, state: State, parents: Parents) -> _StateRows:
    features = _features_in(history, state)
    raw = _values_in(features, history, state)
    design = make_design(raw)
    columns = design.rows(raw)
    ridge = Ridge.prepare(columns, PENALTY * columns.shape[1]) if columns.shape[1] else None
    return _StateRows(features, raw, design, columns, ridge, further(state, parents))


def _at(stages: Mapping[State, _StateRows], lost: Mapping[State, Floats], cost: Floats, price: float) -> _Rules:
    """Fit the rules of one price, from the largest sets back."""
    n, last = cost.shape
    ahead: dict[State, tuple[Floats, Floats]] = {(last,): (np.zeros(n), np.zeros(n))}
    weights, targets, costs = dict[State, list[Weights]](), dict[State, list[Floats]](), dict[State, list[float]]()
    for state, stage in reversed([*stages.items()]):
        after = [ahead[(last,) if j == last else (*state, j)] for j in stage.ahead]
        later = [Walked(loss, rest + cost[:, j - 1]) for j, (loss, rest) in zip(stage.ahead, after, strict=True)]
        targets[state] = [price * (lost[state] - one.loss) - one.cost for one in later]
        ridge = stage.ridge
        weights[state] = [
            Weights(float(y.mean()), np.zeros(0)) if ridge is None else ridge.solve(y) for y in targets[state]
        ]
        costs[state] = [float(one.cost.mean()) for one in later]
        told = np.stack([one.of(stage.columns) for one in weights[state]], axis=1)
        best = told.argmax(axis=1)
        onward = np.ones(n, dtype=np.bool_) if not state else told.max(axis=1) > 0
        ahead[state] = (
            np.where(onward, _chosen([one.loss for one in later], best), lost[state]),
            np.where(onward, _chosen([one.cost for one in later], best), 0.0),
        )
    loss, spent = ahead[()]
    return _Rules(weights, targets, costs, Outcome(float(loss.mean()), float(spent.mean())))


def _chosen(values: Sequence[Floats], best: Any) -> Floats:
    return np.asarray(np.stack(values, axis=1)[np.arange(best.size), best])


def _policy(
    table: EpisodeTable, stages: Mapping[State, _StateRows], rules: _Rules, sure: Floats, seed: int | None
) -> LearnedPolicy:
    """Return the policy of fitted rules; with a seed, their mean with trees fitted to the same targets."""
    from cascade.training.trees import grown

    nothing = (None,) * len(table.sources)
    found: list[StepRule] = []
    for state, stage in stages.items():
        worth: list[Scorer] = []
        for weights, y in zip(rules.weights[state], rules.targets[state], strict=True):
            line = _line(stage, weights)
            trees = None if seed is None else grown(stage.raw, y, seed)
            worth.append(Mean((line, trees)) if isinstance(trees, Trees) else line)
        costs = np.maximum(np.array(rules.costs[state]), _LEAST_COST)
        confidence = (Constant(float(sure[state[-1] - 1] if state else 0.0)),) * len(table.sources)
        best = Best(np.array(stage.ahead), costs, tuple(worth))
        found.append(StepRule(stage.features, best, nothing, confidence))
    horizon = table.arrays.horizon
    found.append(StepRule(FeatureSet((), table.sources), None, nothing, (Constant(1.0),) * len(table.sources)))
    states = (*stages, (horizon,))
    return LearnedPolicy("purchases", tuple(found), takes=Takes(calls=True), states=states)


def _line(stage: _StateRows, weights: Weights) -> Scorer:
    if not stage.columns.shape[1]:
        return Constant(weights.intercept)
    return Linear(stage.design, weights.weights, weights.intercept)
