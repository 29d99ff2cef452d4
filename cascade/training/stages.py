"""The training questions step by step, and how likely each answer is right there.

`staged` gives the features, rows and columns that learned rules are fitted on; `fit_answers` estimates which answer is
right. Guarantee: none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from cascade.guarantees.kept_answers import missing
from cascade.policies.base import History
from cascade.policies.design import Design
from cascade.policies.estimators import Constant, Gain, Linear, Logistic, Scorer
from cascade.policies.features import FeatureSet, offered
from cascade.policies.learned import LearnedPolicy, StepRule, beside
from cascade.training.estimators import (
    Ridge,
    Slope,
    Weights,
    logistic,
    make_design,
    platt,
    probabilities,
    with_products,
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
        alpha: the mean loss that the calibration will allow, over the questions that the kind covers; None for
            "budget".
        budget_nano_usd: for "budget", the mean cost of a question that the calibration will allow, nano-USD.
        lambda_set: the charge for one more answer in the set, in mean steps; 0 keeps every answer. It has no effect on
            "error" and "regret", which are about the one answer served.

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
            yield f"alpha is {self.alpha}; it must lie between 0 and 1"
        if not 0 <= self.lambda_set < np.inf:
            yield f"lambda_set is {self.lambda_set}; it must be 0 or more"

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
    if asked.alpha is None:
        raise UsageError("A budget allows a cost, not a loss.")
    return asked.alpha * float(asked.rules.counted(table).mean())


# --- stages ---

PRODUCTS_TIMES = 100.0
"""The penalty of a product of two features, relative to that of a feature. 30 to 300 are as good, and 1 costs 2 to 5 %
more with 1,000 questions."""
MOST_MULTIPLIED = 20
"""The most columns with products: 20 columns have 210 products, each with a weight to learn."""
_LEAST_PRIOR = 20
"""The fewest rows on which an earlier policy must have a finite score to be a starting point."""


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

    def multiplied(self) -> Stage:
        """Return the same step with squares and products of features, if there are not too many."""
        if not self.rows.size or self.design.columns > MOST_MULTIPLIED:
            return self
        design = with_products(self.design, self.raw)
        return replace(self, design=design, columns=design.rows(self.raw))

    def penalty(self, each: float) -> Floats:
        """Return the penalty of each column, float64 (D,): `each` times the features' columns, more for products.

        With k columns that explain a share R² in about equal parts, the best penalty of a ridge regression on
        standardised columns is k (1 − R²) / R²: it grows with the columns and not with the rows.
        """
        plain = self.design.width + self.design.indicators.size
        found = np.full(self.design.columns, float(each * max(plain, 1)))
        found[plain:] *= PRODUCTS_TIMES
        return found


def staged(table: EpisodeTable) -> list[Stage]:
    """Return the T steps of a table. A step that no question reached has no rows and no features."""
    history, held, deciding = history_of(table), on_record(table), decides(table)
    return [_stage(history, t + 1, held[:, t], deciding[:, t]) for t in range(table.arrays.horizon)]


def multiplies(table: EpisodeTable) -> bool:
    """Whether products change anything: whether some step with a decision has few enough columns."""
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
    """Return an earlier policy's rule of a step, if it has one and the same sources."""
    if init is None or init.sources != sources or step > init.horizon:
        return None
    return init.rules[step - 1]


def prior_of(scorer: Scorer | None, rule: StepRule | None, stage: Stage, table: EpisodeTable) -> Weights | None:
    """Return the projection of an earlier rule's score on a stage's columns, as their weights.

    A linear form over features of the same names is represented exactly, apart from clipped values; other features are
    approximated by these. For a probability the logit is projected. None if the score is finite on too few questions,
    because the log lacks its signals.
    """
    if rule is None or not isinstance(scorer, Linear | Logistic) or not stage.design.columns:
        return None
    raw = rule.features.table(history_of(table), stage.step)[stage.rows]
    linear = scorer if isinstance(scorer, Linear) else scorer.linear
    values = linear.values(raw)
    if isinstance(scorer, Logistic):
        with np.errstate(invalid="ignore"):  # infinite values are left out below
            values = scorer.slope * values + scorer.offset
    finite = np.isfinite(values)
    if np.count_nonzero(finite) < _LEAST_PRIOR:
        return None
    columns = stage.columns[finite]
    return Ridge.prepare(columns, 1e-6 * len(columns)).solve(values[finite])


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


def fit_answers(
    table: EpisodeTable, stages: Sequence[Stage], *, seed: int = 0, init: LearnedPolicy | None = None
) -> Answers:
    """Fit the probabilities that answers are right, step by step: the incumbent depends on the steps before.

    With `init`, the logits are shrunk towards those of the earlier policy instead of towards 0.
    """
    own = own_answers(table)
    try:
        fold = folds(table, FOLDS, seed)
    except UsageError:  # all questions are in one group, so none can be left out of a fit
        return own
    found = np.where(table.arrays.present, table.confidence, np.nan)
    confidence: list[tuple[Logistic | None, ...]] = []
    incumbent: list[Logistic | None] = []
    for stage in stages:
        rule = rule_before(init, stage.step, table.sources)
        step = _of_step(table, stage, found, fold, rule)
        confidence.append(step.confidence)
        incumbent.append(step.incumbent)
        found[stage.rows, stage.step - 1] = step.out_of_fold
    made = Answers(tuple(confidence), tuple(incumbent), found, _share(table, found))
    return own if made.right < own.right else made


class _Step(NamedTuple):
    confidence: tuple[Logistic | None, ...]
    incumbent: Logistic | None
    out_of_fold: Floats


def _of_step(table: EpisodeTable, stage: Stage, found: Floats, fold: Ints, rule: StepRule | None) -> _Step:
    """Fit one step; `found` has the confidences of the steps before."""
    t, rows = stage.step - 1, stage.rows
    before = found[rows, :t].reshape(rows.size, t * found.shape[2])
    known: Bools = np.asarray(~np.isnan(before).all(axis=1))
    best = np.where(known, np.nanmax(np.where(known[:, None], before, 0.0), axis=1, initial=-np.inf), np.nan)
    chances, models = np.full((rows.size, len(table.sources)), np.nan), list[Logistic | None]()
    for place in range(len(table.sources)):
        there = table.arrays.present[rows, t, place]
        earlier = rule.confidence[place] if rule is not None else None
        fit = chance(
            stage, table.arrays.correct[rows, t, place], there, fold[rows], _prior(earlier, rule, stage, table)
        )
        models.append(None if fit is None else fit.model)
        if fit is not None:
            chances[there, place] = fit.out_of_fold[there]
    incumbent, rival = None, np.full(rows.size, np.nan)
    if t and any(model is not None for model in models):
        right = right_after(table.arrays, found, t)[rows]
        earlier = rule.incumbent if rule is not None else None
        fit = chance(stage, right, known, fold[rows], _prior(earlier, rule, stage, table))
        if fit is not None:
            incumbent, rival = fit.model, np.where(known, fit.out_of_fold, np.nan)
    made = beside(chances, rival, best)
    kept = np.array([model is None for model in models], dtype=np.bool_)
    return _Step(tuple(models), incumbent, np.where(kept, found[rows, t], made))


def _prior(scorer: Scorer | None, rule: StepRule | None, stage: Stage, table: EpisodeTable) -> Floats | None:
    prior = prior_of(scorer, rule, stage, table)
    return None if prior is None else prior.weights


class Chance(NamedTuple):
    """A calibrated probability of an event at a step.

    `out_of_fold`, float64 (k,), comes from regressions that had not seen the row, with the calibration of all rows.
    """

    model: Logistic
    out_of_fold: Floats


def chance(stage: Stage, event: Bools, counted: Bools, fold: Ints, prior: Floats | None = None) -> Chance | None:
    """Fit the probability of an event on the rows that count; None if they are too few, or all in one fold.

    `counted`, bool (k,), marks the rows of the stage that count; the weights are shrunk towards `prior`, float64 (D,).
    """
    if np.count_nonzero(counted) < LEAST_ROWS or np.unique(fold[counted]).size < 2:
        return None
    y, penalty = event.astype(np.float64), stage.penalty(PENALTY)
    logit = np.empty(len(y))
    for which in np.unique(fold):
        held_out = fold == which
        seen = counted & ~held_out
        logit[held_out] = logistic(stage.columns[seen], y[seen], penalty, prior=prior).of(stage.columns[held_out])
    slope = platt(logit[counted], y[counted])
    whole = logistic(stage.columns[counted], y[counted], penalty, prior=prior)
    return Chance(logistic_of(stage.design, whole, slope), probabilities(slope.slope * logit + slope.offset))


def logistic_of(design: Design, weights: Weights, slope: Slope | None = None) -> Logistic:
    """Return a fitted form as the policy serves it."""
    linear = Linear(design, weights.weights, weights.intercept)
    return Logistic(linear) if slope is None else Logistic(linear, slope.slope, slope.offset)


def _share(table: EpisodeTable, confidence: Floats) -> float:
    """Return the share of logged steps after which the answer served is right."""
    return float(served_right(table.arrays, confidence)[on_record(table)].mean())


# --- Which answers to keep in the set if each answer has a charge (lambda) ---
# An answer is a *find* if it is right and no earlier answer is. Keeping it has the expected benefit μ · P(find) and
# costs lambda. Its score is the log-odds of P(find) minus those of lambda / μ, times 1 − lambda / μ. The score is 0 if
# benefit and cost are equal, and near 0 it is about μ · P(find) / lambda − 1: benefit per price, as in the score of
# going on (`stopping`).

_EDGE = 1e-6
"""lambda / μ is kept at least this far from 0 and 1, so that log-odds are finite."""
_CERTAIN = 700.0
"""A logit at which a served probability is 1 to the bit."""


class Inclusion(NamedTuple):
    """The probability that each answer is a find.

    Attributes:
        models: for each step and candidate, the model of P(find); None if there is too little data: the answer is kept.
        out_of_fold: float64 (n, T, m), the logits of P(find) out of fold; +inf if the answer is always kept, −inf if
            there is none.
        lambda_set: the charge for an answer, in mean steps.
    """

    models: tuple[tuple[Logistic | None, ...], ...]
    out_of_fold: Floats
    lambda_set: float

    def kept(self, price: float) -> Bools:
        """Return the answers whose expected benefit is at least their charge at a price of the loss: bool (n, T, m)."""
        found: Bools = self.out_of_fold > self.lambda_set / price
        return found


def finds(table: EpisodeTable) -> Bools:
    """Return which answers are finds, bool (n, T, m): those that are right if no earlier answer is."""
    arrays = table.arrays
    n, flat = arrays.n, arrays.answer.reshape(arrays.n, -1)
    right = arrays.correct.reshape(n, -1)
    first = np.where(right.any(axis=1), flat[np.arange(n), right.argmax(axis=1)], -1)
    found: Bools = arrays.correct & (arrays.answer == first[:, None, None])
    return found


def fit_inclusion(table: EpisodeTable, stages: Sequence[Stage], asked: FitTarget, *, seed: int = 0) -> Inclusion:
    """Fit the probability that each answer is a find, by logistic regressions (`chance`)."""
    event, present = finds(table), table.arrays.present
    out = np.where(present, np.inf, -np.inf)
    try:
        fold = folds(table, FOLDS, seed)
    except UsageError:  # all questions are of one group: every answer is kept
        return Inclusion(((None,) * len(table.sources),) * len(stages), out, asked.lambda_set)
    models = []
    for stage in stages:
        t, rows = stage.step - 1, stage.rows
        made = list[Logistic | None]()
        for place in range(len(table.sources)):
            there = present[rows, t, place]
            fit = chance(stage, event[rows, t, place], there, fold[rows])
            made.append(None if fit is None else fit.model)
            if fit is not None:
                out[rows[there], t, place] = fit.out_of_fold[there]
        models.append(tuple(made))
    return Inclusion(tuple(models), out, asked.lambda_set)


def with_inclusion(table: EpisodeTable, inclusion: Inclusion, cost: Floats, price: float) -> tuple[Floats, Floats]:
    """Return the loss of stopping after each step and the cost of each step, float64 (n, T), if answers are left out.

    An answer is left out if its benefit is below its charge; a step's cost includes the charge for its new answers. The
    likeliest find of the step at which the walk stops is always kept: no set is empty (`policies.base.actions`).
    """
    arrays, kept = table.arrays, inclusion.kept(price)
    found = np.logical_or.accumulate((kept & arrays.correct).any(axis=2), axis=1)
    best = inclusion.out_of_fold.argmax(axis=2)
    found |= np.take_along_axis(arrays.correct, best[:, :, None], axis=2)[:, :, 0]
    return missing(table, found), cost + inclusion.lambda_set * _new(arrays.answer, kept)


def _new(answer: np.ndarray[tuple[int, ...], np.dtype[np.int64]], kept: Bools) -> Floats:
    """Return how many answers each step adds to the set, repetitions not counted: float64 (n, T)."""
    flat, held = answer.reshape(len(answer), -1), kept.reshape(len(answer), -1)
    new = held.copy()
    for place in range(1, flat.shape[1]):
        new[:, place] &= ~((flat[:, :place] == flat[:, [place]]) & held[:, :place]).any(axis=1)
    return np.asarray(new.reshape(answer.shape).sum(axis=2), dtype=np.float64)


def at_price(inclusion: Inclusion, price: float) -> list[tuple[Linear | None, ...]]:
    """Return the scores of the answers at a price of the loss: 0 if an answer's benefit equals its charge."""
    share = min(max(inclusion.lambda_set / price, _EDGE), 1.0 - _EDGE)
    shift = math.log(share) - math.log1p(-share)
    return [
        tuple([None if one is None else _log_odds(one, shift, 1.0 - share) for one in step])
        for step in inclusion.models
    ]


def _log_odds(model: Logistic, shift: float, times: float) -> Linear:
    linear = model.linear
    steep = times * model.slope
    return Linear(linear.design, steep * linear.weights, steep * linear.intercept + times * (model.offset - shift))


def per_price(inclusion: Inclusion) -> list[tuple[Gain | None, ...]]:
    """Return the scores of the answers as finds per price, P(find) / lambda: `index2` has gains per price too."""
    return [
        tuple([None if one is None else _gain(one, inclusion.lambda_set) for one in step]) for step in inclusion.models
    ]


def _gain(model: Logistic, lambda_set: float) -> Gain:
    design = model.linear.design
    certain = Logistic(Linear(design, np.zeros(design.columns), _CERTAIN))
    return Gain(model, (certain,), (None,), np.array([lambda_set]))
