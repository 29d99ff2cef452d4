"""A ladder that may abstain: one bar on the mean log-prob of a reply decides both stopping and serving.

A policy that answers few questions can almost always promise a low error. So the goal is to lower the cost while
answering about as many questions as the last model alone. The policy asks one cheap model first, and serves its answer
if the mean log-prob reaches the bar. Otherwise it asks the last model, and serves that answer if it reaches the bar.
Otherwise it serves nothing. With a lower bar it answers more questions, costs less and errs more. The bars are tested
from the strictest to the most lenient, so no question is needed to order them: a first part of the log picks the cheap
model, or none, and all other questions certify.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.conformal.served import PathPoint
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee, Kind
from cascade.policies.base import Takes
from cascade.policies.learned import LearnedPolicy
from cascade.training.choosing import Candidate
from cascade.training.dividing import allowed_loss
from cascade.training.simple import plain_threshold

SIGNAL = "reply_mean_logprob"
CERTIFIES = 0.8
"""The share of the questions that certify; the others pick the cheap model."""
_FEWER = 0.02
"""How many fewer questions a cheap model first may answer than the last model alone, as a share of all questions: a
smaller difference is noise."""
_REPLICATES, _SURE = 200, 0.95
"""A cheap model is asked first only if that costs less than the last model alone in this share of so many bootstrap
replicates. Few questions pick it, and a cheap model that only seemed to save would cost more."""
_BARS_TRIED = 200
_MOST_BARS = 1_000


def has_one_bar(table: EpisodeTable, guarantee: Guarantee) -> bool:
    """Return whether one bar can be set: a promise on the error that may abstain, and a ladder's log with log-probs."""
    arrays, signals = table.arrays, table.signals
    rules = guarantee.rules
    asked = rules.single and rules.counts_unanswered and guarantee.abstain
    if not asked or arrays.answer.shape[2] != 1 or SIGNAL not in signals or "p_yes" in signals:
        return False
    whole = (arrays.steps == arrays.horizon) & arrays.complete & table.texts_known & arrays.present.all(axis=(1, 2))
    return bool(whole.all() and table.shows_cost and not np.isnan(signals[SIGNAL]).any()) and bool(
        np.isnan(table.confidence).all()
    )


def one_bar(training: EpisodeTable, guarantee: Guarantee) -> Candidate:
    """Return a policy that asks the last model alone, or a cheap model before it if that saves significantly.

    `training` picks the models; `has_one_bar` must be true for it.
    """
    last = training.arrays.horizon
    alpha = allowed_loss(guarantee, round(training.n * CERTIFIES / (1 - CERTIFIES))) or 0.0
    best = _cheapest(training, alpha) if training.n else (last,)
    name = f"one bar on {SIGNAL} (steps {', '.join(map(str, best))})"
    return Candidate(name, "threshold", 1, lambda table: _policy(table, best, guarantee.rules))


def _policy(table: EpisodeTable, steps: tuple[int, ...], kind: Kind) -> LearnedPolicy:
    return replace(plain_threshold(table.only(steps), SIGNAL, -1.0, kind), takes=Takes(steps))


def bars(policy: LearnedPolicy, table: EpisodeTable, guarantee: Guarantee) -> tuple[PathPoint, ...] | None:
    """Return the points of a policy with one bar, the strictest first; None for other policies.

    The bars are the log-probs of the questions, thinned evenly to at most 1,000. The function reads no answer and no
    outcome. `table` has the questions that will certify the policy.
    """
    takes = policy.takes
    if policy.method != "threshold" or takes is None or len(takes.steps) > 2 or not has_one_bar(table, guarantee):
        return None
    values = np.unique(_logprobs(table, takes.steps))[::-1]
    chosen = values[np.unique(np.linspace(0, values.size - 1, min(values.size, _MOST_BARS)).astype(np.int64))]
    sure = np.exp(np.minimum(chosen, 0.0))
    stops = np.nextafter(-chosen, np.inf)  # a doubt of exactly the bar stops
    return tuple([PathPoint(*point) for point in zip(stops.tolist(), sure.tolist(), strict=True)])


class _AtBars(NamedTuple):
    """The outcomes of some models at B bars, the strictest first: whole numbers as float64 (n, B), with exact sums."""

    answered: Floats
    lost: Floats
    cost: Floats


class _Totals(NamedTuple):
    """The means at the bar that answers most questions with at most a share alpha lost: float64 (R,)."""

    answered: Floats
    cost: Floats


def _cheapest(table: EpisodeTable, alpha: float) -> tuple[int, ...]:
    """Return the steps that cost least: the last alone, or a cheap model before it if that saves significantly."""
    last = table.arrays.horizon
    once, drawn = np.ones((1, table.n)), _resampled(table.n)
    alone = _at_bars(table, (last,))
    needed = _totals(alone, once, alpha).answered[0] - _FEWER
    dearest = _totals(alone, drawn, alpha).cost
    saving: dict[tuple[int, ...], float] = {}
    for step in range(1, last):
        tried = _at_bars(table, (step, last))
        found = _totals(tried, once, alpha)
        saves = np.mean(_totals(tried, drawn, alpha).cost < dearest) >= _SURE
        if saves and found.answered[0] >= needed:
            saving[step, last] = float(found.cost[0])
    return min(saving, key=lambda steps: saving[steps], default=(last,))


def _resampled(n: int) -> Floats:
    """Return how often each of n questions occurs in each bootstrap replicate: float64 (R, n)."""
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_REPLICATES)
    return np.asarray(drawn, dtype=np.float64)


def _totals(tried: _AtBars, weights: Floats, alpha: float) -> _Totals:
    """Return the means over weighted questions, at the last bar before the first bar that loses too many."""
    n, rows = weights.shape[1], np.arange(weights.shape[0])
    kept = np.logical_and.accumulate(weights @ tried.lost <= alpha * n, axis=1)
    bar = np.count_nonzero(kept, axis=1) - 1  # the first bar answers nothing and loses nothing
    return _Totals((weights @ tried.answered)[rows, bar] / n, (weights @ tried.cost)[rows, bar] / n)


def _at_bars(table: EpisodeTable, steps: tuple[int, ...]) -> _AtBars:
    sure, some = _logprobs(table, steps), table.arrays.only(steps)
    surest = np.maximum.accumulate(sure, axis=1)
    values = np.unique(surest[:, -1])[::-1]
    bars = np.concatenate([[np.inf], values[:: max(1, values.size // _BARS_TRIED)]])
    served = sure[:, None, :] >= bars[:, None]  # (n, B, steps)
    right = np.take_along_axis(some.correct[:, :, 0], served.argmax(axis=2), axis=1)
    answered = served.any(axis=2)
    asked = np.ones(served.shape, dtype=np.bool_)
    asked[:, :, 1:] = surest[:, None, :-1] < bars[:, None]
    cost = (asked * some.cost[:, None, :]).sum(axis=2)
    return _AtBars(*(np.asarray(each, dtype=np.float64) for each in (answered, answered & ~right, cost)))


def _logprobs(table: EpisodeTable, steps: tuple[int, ...]) -> Floats:
    return np.asarray(table.signals[SIGNAL][:, np.array(steps) - 1], dtype=np.float64)
