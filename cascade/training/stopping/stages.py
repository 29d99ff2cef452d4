"""The training questions step by step: the features, rows and columns that learned rules are fitted on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cascade.calibration.scores import history_of
from cascade.checks import refuse
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Kind, get
from cascade.policies.design import Design
from cascade.policies.estimators import Linear, Logistic, Scorer
from cascade.policies.features import FeatureSet, offered
from cascade.policies.history import History
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.training.estimators import Ridge, Weights, make_design, with_products

# --- What optimal stopping is fitted to: what is asked for, and what each step costs. What it loses says the guarantee
# Everything here is as if every answer of the steps taken were kept. A record that ends before its question does is
# continued as if nothing changed: the same loss, and steps at their mean cost. That is for fitting alone; a certificate
# counts such questions on the safe side (`conformal.rollout`).

WINSORISED_AT = 0.98
"""A quantile of a step's costs, at which they are cut for fitting: with costs whose standard deviation is 3.6 times the
mean, a handful of questions would set the slopes of all others."""


@dataclass(frozen=True, slots=True)
class FitTarget:
    """The promise that a policy is fitted for.

    Attributes:
        kind: of the guarantee, one of `guarantees.registry.names`.
        alpha: the mean loss that the calibration will allow, of the questions that the kind speaks of; None for
            "budget".
        budget_nano_usd: for "budget", the mean cost of a question that the calibration will allow, nano-USD.
        lambda_set: what one more answer in the set is charged with, in mean steps; 0 keeps every answer. It is without
            effect on "error" and "regret", which speak of the one answer served.

    Raises:
        UsageError: lists every problem.

    >>> FitTarget("coverage", 0.1).lambda_set
    0.0
    """

    kind: str
    alpha: float | None = None
    budget_nano_usd: float | None = None
    lambda_set: float = 0.0

    def __post_init__(self) -> None:
        problems = [*self._problems()]
        refuse(problems)

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
        """The rules of the kind of guarantee."""
        return get(self.kind)

    @property
    def single(self) -> bool:
        """Whether the promise is about the one answer served, not about the set."""
        return self.rules.single

    @property
    def includes(self) -> bool:
        """Whether answers may be left out of the set because of their charge."""
        return self.lambda_set > 0 and not self.single


class StepCost(NamedTuple):
    """The costs of steps, for fitting.

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
    """Return the costs of steps. Where any cost is unknown, or all are 0, each step costs 1.

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
        UsageError: the kind bounds a mean cost, or the log lacks what it needs.
    """
    if asked.alpha is None:
        raise UsageError("A budget allows a cost, not a loss.")
    return asked.alpha * float(asked.rules.counted(table).mean())


# --- stages ---

PRODUCTS_TIMES = 100.0
"""How much more a product of two features is penalised than a feature. 30 to 300 do as well, and 1 costs 2 to 5 % more
with 1,000 questions (`benchmarks/osc_settings.py`)."""
MOST_MULTIPLIED = 20
"""Columns beyond which there are no products: 20 make 210, each with a weight to be learned."""
_LEAST_PRIOR = 20
"""Rows on which an earlier policy must have a finite score to be started from."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The data for one step's rule.

    Attributes:
        step: its number, from 1.
        features: the features that the rule reads.
        rows: int64 (k,), the questions that reached the step.
        deciding: bool (k,), where going on is to be decided after it (`stages.decides`).
        raw: float64 (k, d), the features; NaN = missing.
        design: how they become columns.
        columns: float64 (k, D).
    """

    step: int
    features: FeatureSet
    rows: Ints
    deciding: Bools
    raw: Floats
    design: Design
    columns: Floats

    def multiplied(self) -> Stage:
        """Return the same step with squares and products of features, where there are not too many."""
        if not self.rows.size or self.design.columns > MOST_MULTIPLIED:
            return self
        design = with_products(self.design, self.raw)
        return replace(self, design=design, columns=design.rows(self.raw))

    def penalty(self, each: float) -> Floats:
        """Return the penalty of each column, float64 (D,): `each` times the features' columns, more of products.

        With k columns of which each explains about as much, and a share R² explained in all, the best penalty of a
        ridge regression on standardised columns is k (1 − R²) / R²: it grows with the columns and not with the rows.
        """
        plain = self.design.width + self.design.indicators.size
        found = np.full(self.design.columns, float(each * max(plain, 1)))
        found[plain:] *= PRODUCTS_TIMES
        return found


def staged(table: EpisodeTable) -> list[Stage]:
    """Return the steps of a table, T of them. One that no question reached has no rows and no features."""
    history, held, deciding = history_of(table), on_record(table), decides(table)
    return [_stage(history, t + 1, held[:, t], deciding[:, t]) for t in range(table.arrays.horizon)]


def multiplies(table: EpisodeTable) -> bool:
    """Whether products change anything: whether some step that is decided at has few enough columns."""
    return any(stage.rows.size and 0 < stage.design.columns <= MOST_MULTIPLIED for stage in staged(table)[:-1])


def _stage(history: History, step: int, held: Bools, deciding: Bools) -> Stage:
    rows = np.flatnonzero(held)
    if not rows.size:
        nothing, none = np.empty((0, 0)), np.empty(0)
        whole = np.empty(0, dtype=np.int64)
        empty = Design(none, none, none, none, whole, whole.reshape(0, 2))
        return Stage(step, FeatureSet((), history.sources), rows, deciding[rows], nothing, empty, nothing)
    features = FeatureSet(offered(history, step), history.sources)
    raw = features.table(history, step)[rows]
    design = make_design(raw, products=False)
    return Stage(step, features, rows, deciding[rows], raw, design, design.rows(raw))


def rule_before(init: LearnedPolicy | None, step: int, sources: tuple[str, ...]) -> StepRule | None:
    """Return an earlier policy's rule of a step, where it is of the same sources and has one."""
    if init is None or init.sources != sources or step > init.horizon:
        return None
    return init.rules[step - 1]


def prior_of(scorer: Scorer | None, rule: StepRule | None, stage: Stage, table: EpisodeTable) -> Weights | None:
    """Return the projection of an earlier rule's score on a stage's columns, as their weights.

    A linear form over features of the same names is represented as it is, whatever its scaling and clipping were but
    for what is clipped; what other features said is represented as far as these can. Of a probability it is the logit.
    None where it says something of too few questions: its signals are no longer there.
    """
    if rule is None or not isinstance(scorer, Linear | Logistic) or not stage.design.columns:
        return None
    raw = rule.features.table(history_of(table), stage.step)[stage.rows]
    linear = scorer if isinstance(scorer, Linear) else scorer.linear
    values = linear.values(raw)
    if isinstance(scorer, Logistic):
        with np.errstate(invalid="ignore"):  # where a value is infinite, and left out below
            values = scorer.slope * values + scorer.offset
    finite = np.isfinite(values)
    if np.count_nonzero(finite) < _LEAST_PRIOR:
        return None
    columns = stage.columns[finite]
    return Ridge.prepare(columns, 1e-6 * len(columns)).solve(values[finite])
