"""A ladder that may abstain: one bar on the mean log-prob of a reply decides both stopping and serving.

A low error can almost always be promised by answering few questions. So the goal is to lower the cost while answering
about as many questions as the last model alone. One cheap model is asked first. Its answer is served if its mean
log-prob reaches the bar. Otherwise the last model is asked, and its answer is served if it reaches the bar. Otherwise
nothing is served. A lower bar answers more questions, costs less and errs more. The bars are tested from the strictest
on, so no question is needed to order them: a first part of the log picks the cheap model, or none, and all others
certify.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.conformal.guarantee import Guarantee
from cascade.conformal.served import PathPoint
from cascade.episodes.table import EpisodeTable
from cascade.policies.base import Takes
from cascade.policies.learned import LearnedPolicy
from cascade.training.choice.crossfit import Candidate
from cascade.training.choice.simple import plain_threshold
from cascade.training.dividing import allowed_loss

SIGNAL = "reply_mean_logprob"
CERTIFIES = 0.8
"""The share of the questions that certify; the others pick the cheap model."""
_FEWER = 0.02
"""How many fewer questions a cheap model first may answer than the last model alone, as a share of all questions: a
smaller difference is noise."""
_CHEAPER = 0.95
"""A cheap model is asked first only if that costs less than this share of the last model's cost."""
_MOST_BARS = 1_000


def has_one_bar(table: EpisodeTable, guarantee: Guarantee) -> bool:
    """Return whether one bar can be set: the promise is on the error and may abstain, and the ladder logs log-probs."""
    arrays, signals = table.arrays, table.signals
    asked = guarantee.kind == "error" and guarantee.abstain and guarantee.budget_nano_usd is None
    if not asked or arrays.answer.shape[2] != 1 or SIGNAL not in signals or "p_yes" in signals:
        return False
    whole = (arrays.steps == arrays.horizon) & arrays.complete & table.texts_known & arrays.present.all(axis=(1, 2))
    return bool(whole.all() and table.cost_known and not np.isnan(signals[SIGNAL]).any()) and bool(
        np.isnan(table.confidence).all()
    )


def one_bar(training: EpisodeTable, guarantee: Guarantee) -> Candidate:
    """Return a policy that asks a cheap model and then the last one, or the last one alone where that costs less.

    Args:
        training: questions that pick the models; `has_one_bar` holds.
        guarantee: what will be promised.
    """
    last = training.arrays.horizon
    alpha = allowed_loss(guarantee, round(training.n * CERTIFIES / (1 - CERTIFIES))) or 0.0
    ways = [(step, last) for step in range(1, last)] if training.n else []
    alone = _answers(training, (last,), alpha) if training.n else _Answered(0.0, 0.0)
    best: tuple[int, ...] = (last,)
    least = alone.cost * _CHEAPER
    for steps in ways:
        found = _answers(training, steps, alpha)
        if found.answered >= alone.answered - _FEWER and found.cost < least:
            best, least = steps, found.cost
    name = f"one bar on {SIGNAL} (steps {', '.join(map(str, best))})"
    return Candidate(name, "threshold", 1, lambda table: _policy(table, best, guarantee.kind))


def _policy(table: EpisodeTable, steps: tuple[int, ...], kind: str) -> LearnedPolicy:
    return replace(plain_threshold(table.only(steps), SIGNAL, -1.0, kind), takes=Takes(steps))


def bars(policy: LearnedPolicy, table: EpisodeTable, guarantee: Guarantee) -> tuple[PathPoint, ...] | None:
    """Return the points of a policy with one bar, the strictest first; None for other policies.

    The bars are the log-probs of the questions, thinned evenly to at most 1,000. The function looks at no answer and no
    outcome.

    Args:
        policy: the policy.
        table: the questions that will certify it.
        guarantee: what is to be promised.
    """
    takes = policy.takes
    if policy.method != "threshold" or takes is None or len(takes.steps) > 2 or not has_one_bar(table, guarantee):
        return None
    values = np.unique(_logprobs(table, takes.steps))[::-1]
    chosen = values[np.unique(np.linspace(0, values.size - 1, min(values.size, _MOST_BARS)).astype(np.int64))]
    sure = np.exp(np.minimum(chosen, 0.0))
    stops = np.nextafter(-chosen, np.inf)  # a doubt of exactly the bar stops
    return tuple([PathPoint(*point) for point in zip(stops.tolist(), sure.tolist(), strict=True)])


class _Answered(NamedTuple):
    """What some models do at the bar that answers most questions while at most a share alpha of all is lost."""

    answered: float
    cost: float


def _answers(table: EpisodeTable, steps: tuple[int, ...], alpha: float) -> _Answered:
    sure, some = _logprobs(table, steps), table.arrays.only(steps)
    surest = np.maximum.accumulate(sure, axis=1)
    order = np.argsort(-surest[:, -1], kind="stable")
    bar, most = np.inf, 0
    for at in order[:: max(1, order.size // 200)].tolist():
        best = float(surest[at, -1])
        served = sure >= best
        lost = served.any(axis=1) & ~some.correct[np.arange(table.n), served.argmax(axis=1), 0]
        if np.count_nonzero(lost) > alpha * table.n:
            break
        bar, most = best, int(np.count_nonzero(served.any(axis=1)))
    goes_on = np.concatenate([np.ones((table.n, 1), dtype=np.bool_), surest[:, :-1] < bar], axis=1)
    cost = np.where(goes_on, some.cost, 0).sum(axis=1).mean()
    return _Answered(most / max(table.n, 1), float(cost))


def _logprobs(table: EpisodeTable, steps: tuple[int, ...]) -> Floats:
    return np.asarray(table.signals[SIGNAL][:, np.array(steps) - 1], dtype=np.float64)
