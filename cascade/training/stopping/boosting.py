"""Net benefit with boosted trees: the targets of the ridge regressions, at their price, fitted by trees.

The later decisions behind the targets are those of the ridge rules. Trees that learned from their own would, in sample,
overfit what stopping later brings, and out of fold know less than will be served (`design/osc.md`).

Reference: `training.stopping.net_benefit`, `training.estimators.trees`.
"""

from __future__ import annotations

from typing import NamedTuple

from cascade.conformal.arrays import Floats
from cascade.episodes.table import EpisodeTable
from cascade.policies.estimators import Constant, Trees
from cascade.policies.learned import LearnedPolicy
from cascade.training.estimators.trees import boosted
from cascade.training.stopping.answers import at_price
from cascade.training.stopping.net_benefit import PENALTY, induce
from cascade.training.stopping.problem import ProblemBuilder, build, policy_of
from cascade.training.stopping.stages import FitTarget, Stage


class _Size(NamedTuple):
    """How trees are grown."""

    trees: int
    leaves: int
    learning_rate: float
    least_rows: int


_MANY = 10_000
"""Questions from which larger trees pay."""


def _size(rows: int) -> _Size:
    """Return how trees are grown on so many rows: stumps of three cuts while targets are mostly noise."""
    if rows < _MANY:
        return _Size(60, 4, 0.05, min(max(20, rows // 20), 200))
    return _Size(60, 8, 0.1, 200)


def fit_boosted(
    table: EpisodeTable,
    asked: FitTarget,
    *,
    penalty: float = PENALTY,
    confidences: bool = True,
    init: LearnedPolicy | None = None,
    seed: int = 0,
    builder: ProblemBuilder = build,
) -> LearnedPolicy:
    """Fit optimal stopping by net benefit with boosted trees.

    Args:
        table: the training questions.
        asked: what the policy is for.
        penalty: of the ridge regressions that set the price and the later decisions.
        confidences: whether to fit how likely answers are right, as `error` and `regret` always do.
        init: an earlier policy, for the ridge regressions and confidences; trees start anew (`training.notes`).
        seed: draws the folds, and the rows that bins are made of.
        builder: makes the problem; `problem.SharedProblem` shares it with other estimators.

    Guarantee: none; any scores are valid, and the threshold is certified on other questions.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        UsageError: there is no question, or the log lacks what the kind needs.
    """
    problem = builder(table, asked, confidences=confidences, init=init, seed=seed)
    induced = induce(problem, penalty, init)
    scorers = [
        _trees(stage, y, price, seed)
        for stage, y, price in zip(problem.stages[:-1], induced.targets, problem.prices.tolist(), strict=True)
    ]
    include = None if problem.inclusion is None else at_price(problem.inclusion, induced.price)
    return policy_of(problem, "boosted", scorers, include)


def _trees(stage: Stage, y: Floats | None, price: float, seed: int) -> Trees | Constant | None:
    """Fit one step's trees; where rows or features are too few for a single cut, the mean."""
    if y is None:
        return None
    return grown(stage.raw[stage.deciding], y / price, seed)


def grown(raw: Floats, y: Floats, seed: int) -> Trees | Constant:
    """Fit trees to targets (k,) of raw features (k, d); the mean alone where a cut needs more rows or features."""
    size = _size(y.size)
    if y.size < 2 * size.least_rows or not raw.shape[1]:
        return Constant(float(y.mean()))
    return boosted(raw, y, seed=seed, **size._asdict())
