"""How many questions certify a promise of regret, and how many make the policy: what costs least in the end.

Questions that certify lower what being sure costs: with n of them the policy may lose `most_losses(n, α, δ)` / n, which
rises towards α. Questions that train make the policy better. Which of the two pays more depends on the log. So a first
part of the log, which always trains, is used to find out: the same way of learning is fitted on smaller and on larger
samples of it, and what it costs with more is extrapolated by c + b / m, the usual rate of a regression's excess cost.

Where nothing is learned, no question is set aside to learn from: a pair of models with a score that is named before the
log is read certifies with all of them (`named_score`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cascade.calibration.doubt import doubt_of
from cascade.calibration.folds import FOLDS, folds
from cascade.calibration.reference import ends_in_reference
from cascade.calibration.thresholds import Sample
from cascade.conformal.arrays import Ints
from cascade.conformal.guarantee import Guarantee
from cascade.episodes.table import EpisodeTable
from cascade.policies.learned import LearnedPolicy
from cascade.training.choice.choosing import Choice
from cascade.training.choice.crossfit import Candidate, cross_fitted
from cascade.training.choice.matched import matched
from cascade.training.choice.measuring import Terms, allowed_of, walk_of
from cascade.training.choice.simple import plain_threshold
from cascade.training.dividing import Divided, allowed_loss, needed_of

SHARES = (0.25, 0.4, 0.55, 0.7)
"""Shares that certify among which is chosen; what the largest leaves is the part that always trains."""
LEARNS_FROM = 2_000
"""Questions of a pair of models from which more than one named score is looked at: with fewer, what is set aside to
learn from costs more than learning brings (`design/regret.md`)."""
LEAST_LEARNING = 60
"""Questions beyond those that must certify, below which nothing is learned."""
_MOST_GAIN = 0.3
"""The most that unlimited training questions are taken to save, as a share of the cost: two noisy figures differ by
more."""


def plain_regret(guarantee: Guarantee) -> bool:
    """Whether regret alone is promised: no abstaining, no budget beside it."""
    return guarantee.kind == "regret" and not guarantee.abstain and guarantee.budget_nano_usd is None


def named_score(table: EpisodeTable, guarantee: Guarantee) -> Candidate | None:
    """Return the threshold that is set without learning, where learning would cost more than it brings; else None.

    Score, sign and order are named before the log is read: the first signal of `calibration.doubt.KNOWN` that the log
    has, and the tokens of an answer where it has none. Which signals there are, and how many questions, is looked at;
    no answer and no outcome is.

    Args:
        table: the questions of a log, each once.
        guarantee: what will be promised.
    """
    if not plain_regret(guarantee) or table.arrays.horizon < 2 or not ends_in_reference(table):
        return None
    groups = len(set(table.groups))  # one question of each certifies
    few = groups < needed_of(guarantee) + LEAST_LEARNING
    if not few and (table.arrays.horizon > 2 or groups >= LEARNS_FROM):
        return None
    doubt = doubt_of(table)
    if doubt is None:
        name, sign = "tokens_so_far", 1.0
        if np.isnan(table.tokens).all():
            return None
    else:
        name, sign = doubt.signal, doubt.sign

    def fit(table: EpisodeTable) -> LearnedPolicy:
        return plain_threshold(table, name, sign, guarantee.kind)

    return Candidate(f"threshold on {name}", "threshold", 1, fit)


def share_that_certifies(parts: Divided, choice: Choice, guarantee: Guarantee, seed: int) -> float:
    """Return the share of a log's questions that should certify.

    Args:
        parts: the log, divided by the largest of `SHARES`: what trains there trains in any case.
        choice: what was chosen on that part.
        guarantee: a promise of regret.
        seed: draws the folds.
    """
    chosen, first = choice.chosen, parts.training
    groups = len(set(first.groups)) + parts.calibration.n  # one question of each certifies
    if chosen.method in {"depth", "reference"} or len(set(first.groups)) < 2 * FOLDS:
        return SHARES[-1]
    shares = [one for one in SHARES if round(one * groups) >= needed_of(guarantee)] or [SHARES[-1]]
    sizes = [(many - 1) / many * first.n for many in (2, FOLDS)]
    held = [_out_of_fold(first, chosen, folds(first, many, seed)) for many in (2, FOLDS)]
    costs = {one: [_cost(sample, choice.terms, guarantee, round(one * groups)) for sample in held] for one in shares}
    expected = {one: _at_size(sizes, costs[one], (1 - one) * parts.questions) for one in shares}
    return min(shares, key=lambda one: (expected[one], -one))


def _at_size(sizes: Sequence[float], costs: Sequence[float], many: float) -> float:
    """Return the cost with so many training questions, from those with fewer and with more of them: c + b / m."""
    small, large = costs
    if not math.isfinite(large):
        return math.inf
    slope = (small - large) / (1 / sizes[0] - 1 / sizes[1]) if math.isfinite(small) else math.inf
    slope = min(max(slope, 0.0), _MOST_GAIN * large * sizes[1])
    return large + slope * (1 / many - 1 / sizes[1])


def _out_of_fold(first: EpisodeTable, chosen: Candidate, fold: Ints) -> Sample | None:
    held, failed = cross_fitted(first, [chosen], fold)
    return None if failed else held[chosen.name].sample


def _cost(sample: Sample | None, terms: Terms, guarantee: Guarantee, certify: int) -> float:
    """Return the mean cost at the loss that so many certifying questions will allow."""
    if sample is None:
        return math.inf
    walk = walk_of(sample, guarantee, terms.prices)
    return matched(walk, allowed_of(sample.table, guarantee, allowed_loss(guarantee, certify)))


__all__ = ["SHARES", "named_score", "plain_regret", "share_that_certifies"]
