"""Which answers are worth their place in the set, where one costs something (lambda).

An answer is a *find* where it is right and no other answer before it was. Keeping it is worth μ · P(find) and costs
lambda. As score: the log-odds of P(find) minus those of lambda / μ, times 1 − lambda / μ. That is 0 where the two are
equal, and near there μ · P(find) / lambda − 1, benefit per price as the score of going on (`problem`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cascade.calibration.folds import FOLDS, folds
from cascade.conformal.arrays import Bools, Floats
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.kept_answers import missing
from cascade.policies.estimators import Gain, Linear, Logistic
from cascade.training.stopping.answers import chance
from cascade.training.stopping.stages import Stage
from cascade.training.stopping.targets import FitTarget

_EDGE = 1e-6
"""lambda / μ is kept so far from 0 and 1, where log-odds are finite."""
_CERTAIN = 700.0
"""A logit at which a served probability is 1 to the bit."""


class Inclusion(NamedTuple):
    """How likely each answer is a find.

    Attributes:
        models: for each step, for each place; None where there is too little to fit on: such answers are kept.
        out_of_fold: float64 (n, T, m), by models that have not seen the question; +inf where the answer is kept anyway,
            −inf where there is none.
        lambda_set: what an answer costs, in mean steps.
    """

    models: tuple[tuple[Logistic | None, ...], ...]
    out_of_fold: Floats
    lambda_set: float

    def kept(self, price: float) -> Bools:
        """Return which answers are worth their place at a price of the loss: bool (n, T, m)."""
        found: Bools = self.out_of_fold > self.lambda_set / price
        return found


class Kept(NamedTuple):
    """What stopping after each step brings where answers are left out: float64 (n, T) each.

    Attributes:
        loss: of coverage.
        cost: of each step, with what its newly kept answers are charged with.
    """

    loss: Floats
    cost: Floats


def finds(table: EpisodeTable) -> Bools:
    """Return which answers are finds: right, where no other answer before was. Bool (n, T, m)."""
    arrays = table.arrays
    n, flat = arrays.n, arrays.answer.reshape(arrays.n, -1)
    right = arrays.correct.reshape(n, -1)
    first = np.where(right.any(axis=1), flat[np.arange(n), right.argmax(axis=1)], -1)
    found: Bools = arrays.correct & (arrays.answer == first[:, None, None])
    return found


def fit_inclusion(table: EpisodeTable, stages: Sequence[Stage], asked: FitTarget, *, seed: int = 0) -> Inclusion:
    """Fit how likely each answer is a find, by logistic regressions as `answers.chance` does."""
    event, present = finds(table), table.arrays.present
    out = np.where(present, np.inf, -np.inf)
    try:
        fold = folds(table, FOLDS, seed)
    except UsageError:  # all questions hang together: every answer is kept
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


def with_inclusion(table: EpisodeTable, inclusion: Inclusion, cost: Floats, price: float) -> Kept:
    """Return what stopping brings where answers that are not worth their place at a price are left out.

    Where the walk stops its last step's likeliest find is kept all the same: no set is empty (`conformal.actions`).
    """
    arrays, kept = table.arrays, inclusion.kept(price)
    found = np.logical_or.accumulate((kept & arrays.correct).any(axis=2), axis=1)
    best = inclusion.out_of_fold.argmax(axis=2)
    found |= np.take_along_axis(arrays.correct, best[:, :, None], axis=2)[:, :, 0]
    return Kept(missing(table, found), cost + inclusion.lambda_set * _new(arrays.answer, kept))


def _new(answer: np.ndarray[tuple[int, ...], np.dtype[np.int64]], kept: Bools) -> Floats:
    """Return how many answers each step adds to the set, repetitions not counted: float64 (n, T)."""
    flat, held = answer.reshape(len(answer), -1), kept.reshape(len(answer), -1)
    new = held.copy()
    for place in range(1, flat.shape[1]):
        new[:, place] &= ~((flat[:, :place] == flat[:, [place]]) & held[:, :place]).any(axis=1)
    return np.asarray(new.reshape(answer.shape).sum(axis=2), dtype=np.float64)


def at_price(inclusion: Inclusion, price: float) -> list[tuple[Linear | None, ...]]:
    """Return the scores of the answers at a price of the loss: 0 where an answer is just worth its place."""
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
