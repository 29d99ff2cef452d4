"""The training questions step by step, and how likely each answer is right there.

`staged` gives the features, rows and columns that learned rules are fitted on; `fit_answers` estimates which answer is
right. Guarantee: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cascade.calibration.samples import FOLDS, folds
from cascade.calibration.scores import history_of
from cascade.checks import refuse
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.conformal.served import right_after, served_right
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Kind, get
from cascade.policies.base import History
from cascade.policies.design import Design
from cascade.policies.estimators import Constant, Linear, Logistic
from cascade.policies.features import FeatureSet, offered
from cascade.policies.learned import beside
from cascade.training.estimators import (
    Slope,
    Weights,
    logistic,
    make_design,
    platt,
    probabilities,
)

# --- The inputs of optimal stopping: the target, and the cost of each step. The kind of guarantee defines the loss
# Everything here assumes that every answer of the steps taken is kept. If a record ends early, its later steps get the
# same loss and their mean cost. This is for fitting only; a certificate counts such questions conservatively
# (`conformal.arrays`).

WINSORISED_AT = 0.98
"""The quantile at which a step's costs are clipped for fitting: if their standard deviation is 3.6 times the mean, a
few questions would otherwise set the slopes of all others."""


@dataclass(frozen=True, slots=True)
class FitTarget:
    """The promise that a policy is fitted for.

    Attributes:
        kind: the kind of the guarantee, one of `guarantees.base.KINDS.names`.
        alpha: the mean loss that the calibration will allow, over the questions that the kind covers.

    Raises:
        UsageError: lists every problem.

    >>> FitTarget("coverage", 0.1).single
    False
    """

    kind: str
    alpha: float

    def __post_init__(self) -> None:
        get(self.kind)
        refuse([*self._problems()])

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.alpha <= 1:
            yield f"alpha is {self.alpha}; it must lie between 0 and 1"

    @property
    def rules(self) -> Kind:
        """The rules of the kind of guarantee."""
        return get(self.kind)

    @property
    def single(self) -> bool:
        """Whether the promise is about the one answer served, not about the set."""
        return self.rules.single


class StepCost(NamedTuple):
    """The costs of steps, for fitting.

    Attributes:
        values: float64 (n, T), in mean steps, clipped at the 98th percentile of the step; beyond the record 0 for a
            complete question, and the step's mean for an incomplete one.
        unit_nano_usd: the cost of a mean step; None if every step counts as 1 because costs are unknown or 0.
    """

    values: Floats
    unit_nano_usd: float | None


def on_record(table: EpisodeTable) -> Bools:
    """Return which steps the log has, bool (n, T)."""
    return np.asarray(np.arange(table.arrays.horizon) < table.arrays.steps[:, None])


def decides(table: EpisodeTable) -> Bools:
    """Return where a policy decides whether to go on, bool (n, T): not after the last step of a complete question."""
    last = np.arange(table.arrays.horizon) == table.arrays.steps[:, None] - 1
    found = on_record(table) & ~(last & table.arrays.complete[:, None])
    found[:, -1] = False
    return np.asarray(found)


def step_cost(table: EpisodeTable) -> StepCost:
    """Return the costs of steps. If any cost is unknown, or all are 0, each step costs 1."""
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
    """Return the allowed mean loss over all questions of a table; `alpha` is over those that the kind covers."""
    return asked.alpha * float(asked.rules.counted(table).mean())


# --- stages ---


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The data for the rule of one step.

    Attributes:
        step: the step's number.
        features: the features that the rule reads.
        rows: int64 (k,), the questions that reached the step.
        deciding: bool (k,), whether the policy decides after the step (`stages.decides`).
        raw: float64 (k, d), the features' values, NaN = missing.
        design: the design that makes columns of them.
        columns: float64 (k, D), the columns.
    """

    step: int
    features: FeatureSet
    rows: Ints
    deciding: Bools
    raw: Floats
    design: Design
    columns: Floats

    def penalty(self, each: float) -> float:
        """Return the penalty of a column: `each` times the number of columns.

        With k columns that explain a share R² in about equal parts, the best penalty of a ridge regression on
        standardised columns is k (1 − R²) / R²: it grows with the columns and not with the rows.
        """
        return float(each * max(self.design.columns, 1))


def staged(table: EpisodeTable) -> list[Stage]:
    """Return the T steps of a table. A step that no question reached has no rows and no features."""
    history, held, deciding = history_of(table), on_record(table), decides(table)
    return [_stage(history, t + 1, held[:, t], deciding[:, t]) for t in range(table.arrays.horizon)]


def _stage(history: History, step: int, held: Bools, deciding: Bools) -> Stage:
    rows = np.flatnonzero(held)
    if not rows.size:
        nothing, none = np.empty((0, 0)), np.empty(0)
        whole = np.empty(0, dtype=np.int64)
        empty = Design(none, none, none, none, whole, whole.reshape(0, 2))
        return Stage(step, FeatureSet((), history.sources), rows, deciding[rows], nothing, empty, nothing)
    features = FeatureSet(offered(history, step), history.sources)
    raw = features.table(history, step)[rows]
    design = make_design(raw)
    return Stage(step, features, rows, deciding[rows], raw, design, design.rows(raw))


# --- How likely each answer is right at each step: which one is served, and which are kept ---
# After each step, logistic regressions on the step's features estimate the probability that each new answer is right,
# and that the *incumbent*, the best answer of the steps before, is right. Platt's method calibrates both on questions
# that the model has not seen. The earlier confidence of the incumbent does not reflect the later steps, which may
# contradict it. `policies.learned.beside` places the new confidences above or below the incumbent's, so that
# `engine.rank` serves the answer that is likelier now.
#
# Any confidences are valid; `conformal.ltt` certifies the promise on the answer served. If the strategy's own
# confidences, or a ladder's latest answer, serve the right answer more often out of fold, they are used instead.

PENALTY = 1.0
"""The penalty of a logistic regression, per column: the prior variance of a logit is then about 1."""
LEAST_ROWS = 40
"""The fewest answers of a source at a step for which a model of their rightness is fitted."""


class Answers(NamedTuple):
    """Estimates of the probability that answers are right, fitted for each step.

    Attributes:
        confidence: for each step and candidate, the model of P(this answer is right); None = the strategy's own.
        incumbent: for each step, the model of P(the best earlier answer is right); None at step 1.
        out_of_fold: float64 (n, T, m), the confidences of the training questions, each from a regression that has not
            seen the question, with the slope and offset (Platt's) of all questions; the strategy's own if nothing was
            fitted. They rank answers as the policy does.
        right: the share of right answers among those served after each logged step, by these confidences out of fold.
    """

    confidence: tuple[tuple[Logistic | Constant | None, ...], ...]
    incumbent: tuple[Logistic | None, ...]
    out_of_fold: Floats
    right: float

    @property
    def fitted(self) -> bool:
        """Whether any was fitted."""
        return any(one is not None for step in self.confidence for one in step)


def own_answers(table: EpisodeTable) -> Answers:
    """Return the strategy's own confidences: nothing is fitted."""
    nothing, horizon = (None,) * len(table.sources), table.arrays.horizon
    return Answers((nothing,) * horizon, (None,) * horizon, table.confidence, _share(table, table.confidence))


def newest_answers(table: EpisodeTable) -> Answers:
    """Return confidences that serve the newest answer: t / T at step t, and so 1 at the last step.

    For a promise that the last step's answer never breaks (`guarantees.base.Kind.last_is_safe`).
    """
    horizon, places = table.arrays.horizon, len(table.sources)
    sure = np.arange(1, horizon + 1) / horizon
    found = np.where(table.arrays.present, sure[None, :, None], np.nan)
    confidence = tuple([(Constant(one),) * places for one in sure.tolist()])
    return Answers(confidence, (None,) * horizon, found, _share(table, found))


def fit_answers(table: EpisodeTable, stages: Sequence[Stage], *, seed: int = 0) -> Answers:
    """Fit the probabilities that answers are right, step by step: the incumbent depends on the steps before."""
    own = own_answers(table)
    try:
        fold = folds(table, FOLDS, seed)
    except UsageError:  # all questions are in one group, so none can be left out of a fit
        return own
    found = np.where(table.arrays.present, table.confidence, np.nan)
    confidence: list[tuple[Logistic | None, ...]] = []
    incumbent: list[Logistic | None] = []
    for stage in stages:
        step = _of_step(table, stage, found, fold)
        confidence.append(step.confidence)
        incumbent.append(step.incumbent)
        found[stage.rows, stage.step - 1] = step.out_of_fold
    made = Answers(tuple(confidence), tuple(incumbent), found, _share(table, found))
    return own if made.right < own.right else made


class _StepConfidence(NamedTuple):
    confidence: tuple[Logistic | None, ...]
    incumbent: Logistic | None
    out_of_fold: Floats


def _of_step(table: EpisodeTable, stage: Stage, found: Floats, fold: Ints) -> _StepConfidence:
    """Fit one step; `found` has the confidences of the steps before."""
    t, rows = stage.step - 1, stage.rows
    before = found[rows, :t].reshape(rows.size, t * found.shape[2])
    known: Bools = np.asarray(~np.isnan(before).all(axis=1))
    best = np.where(known, np.nanmax(np.where(known[:, None], before, 0.0), axis=1, initial=-np.inf), np.nan)
    chances, models = np.full((rows.size, len(table.sources)), np.nan), list[Logistic | None]()
    for place in range(len(table.sources)):
        there = table.arrays.present[rows, t, place]
        fit = chance(stage, table.arrays.correct[rows, t, place], there, fold[rows])
        models.append(None if fit is None else fit.model)
        if fit is not None:
            chances[there, place] = fit.out_of_fold[there]
    incumbent, rival = None, np.full(rows.size, np.nan)
    if t and any(model is not None for model in models):
        right = right_after(table.arrays, found, t)[rows]
        fit = chance(stage, right, known, fold[rows])
        if fit is not None:
            incumbent, rival = fit.model, np.where(known, fit.out_of_fold, np.nan)
    made = beside(chances, rival, best)
    kept = np.array([model is None for model in models], dtype=np.bool_)
    return _StepConfidence(tuple(models), incumbent, np.where(kept, found[rows, t], made))


class Chance(NamedTuple):
    """A calibrated probability of an event at a step.

    `out_of_fold`, float64 (k,), comes from regressions that had not seen the row, with the calibration of all rows.
    """

    model: Logistic
    out_of_fold: Floats


def chance(stage: Stage, event: Bools, counted: Bools, fold: Ints) -> Chance | None:
    """Fit the probability of an event on the rows that count; None if they are too few, or all in one fold.

    `counted`, bool (k,), marks the rows of the stage that count.
    """
    if np.count_nonzero(counted) < LEAST_ROWS or np.unique(fold[counted]).size < 2:
        return None
    y, penalty = event.astype(np.float64), stage.penalty(PENALTY)
    logit = np.empty(len(y))
    for which in np.unique(fold):
        held_out = fold == which
        seen = counted & ~held_out
        logit[held_out] = logistic(stage.columns[seen], y[seen], penalty).of(stage.columns[held_out])
    slope = platt(logit[counted], y[counted])
    whole = logistic(stage.columns[counted], y[counted], penalty)
    return Chance(logistic_of(stage.design, whole, slope), probabilities(slope.slope * logit + slope.offset))


def logistic_of(design: Design, weights: Weights, slope: Slope | None = None) -> Logistic:
    """Return a fitted form as the policy serves it."""
    linear = Linear(design, weights.weights, weights.intercept)
    return Logistic(linear) if slope is None else Logistic(linear, slope.slope, slope.offset)


def _share(table: EpisodeTable, confidence: Floats) -> float:
    """Return the share of logged steps after which the answer served is right."""
    return float(served_right(table.arrays, confidence)[on_record(table)].mean())
