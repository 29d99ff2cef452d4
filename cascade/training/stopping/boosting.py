"""Net benefit with boosted trees, which are fitted to the targets of the ridge regressions, at their price.

The later decisions behind the targets are those of the ridge rules. Trees that learned from their own would, in sample,
overfit what stopping later brings, and out of fold know less than will be served (`design/osc.md`).

Reference: `training.stopping.net_benefit`, `training.estimators.trees`.
"""

from __future__ import annotations

from typing import NamedTuple

from cascade.conformal.arrays import Floats
from cascade.policies.estimators import Constant
from cascade.policies.learned import LearnedPolicy
from cascade.policies.trees import Trees
from cascade.training.stopping.answers import at_price
from cascade.training.stopping.net_benefit import PENALTY, induce
from cascade.training.stopping.problem import Problem, policy_of
from cascade.training.stopping.stages import Stage
from cascade.training.trees import boosted


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


def fit_boosted(problem: Problem, penalty: float = PENALTY) -> LearnedPolicy:
    """Fit optimal stopping by net benefit with boosted trees; they start anew, whatever earlier policy there is.

    Args:
        problem: the training questions, and what the policy is for (`problem.build`).
        penalty: of the ridge regressions that set the price and the later decisions.

    Guarantee: none; any scores are valid, and the threshold is certified on other questions.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    induced = induce(problem, penalty)
    scorers = [
        _trees(stage, y, price, problem.seed)
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
