"""The training questions step by step: what features, rows and columns every learned rule is fitted on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cascade.calibration.scores import history_of
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.episodes.table import EpisodeTable
from cascade.policies.design import Design
from cascade.policies.estimators import Linear, Logistic, Scorer
from cascade.policies.features import FeatureSet, offered
from cascade.policies.history import History
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.training.estimators.design import make_design, with_products
from cascade.training.estimators.ridge import Ridge
from cascade.training.stopping.targets import decides, on_record

PRODUCTS_TIMES = 100.0
"""How much more a product of two features is penalised than a feature. 30 to 300 do as well, and 1 costs 2 to 5 % more
with 1,000 questions (`benchmarks/osc_settings.py`)."""
MOST_MULTIPLIED = 20
"""Columns beyond which there are no products: 20 make 210, each with a weight to be learned."""
_LEAST_PRIOR = 20
"""Rows on which an earlier policy must have a finite score to be started from."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What there is to fit one step's rule on.

    Attributes:
        step: its number, from 1.
        features: what is looked at.
        rows: int64 (k,), the questions that reached the step.
        deciding: bool (k,), where going on is to be decided after it (`targets.decides`).
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


class Prior(NamedTuple):
    """What an earlier policy says at a step, in the columns of a stage: weights (D,) and intercept."""

    weights: Floats
    intercept: float

    def of(self, columns: Floats) -> Floats:
        """Return its values, (k, D) -> (k,)."""
        return np.asarray(columns @ self.weights + self.intercept)


def rule_before(init: LearnedPolicy | None, step: int, sources: tuple[str, ...]) -> StepRule | None:
    """Return an earlier policy's rule of a step, where it is of the same sources and has one."""
    if init is None or init.sources != sources or step > init.horizon:
        return None
    return init.rules[step - 1]


def prior_of(scorer: Scorer | None, rule: StepRule | None, stage: Stage, table: EpisodeTable) -> Prior | None:
    """Return what a scorer of an earlier rule says, as weights of a stage's columns: its projection on them.

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
    fit = Ridge.prepare(columns, 1e-6 * len(columns)).solve(values[finite])
    return Prior(fit.weights, fit.intercept)
