"""Choose how many questions certify a promise of regret, and how many train the policy.

More certifying questions allow more losses: with n of them the policy may lose a share `most_losses(n, α, δ)` / n,
which rises towards α. More training questions make the policy better. The log decides which of the two saves more. So
`fit` uses a first part of the log, which always trains, to find out: it fits the same method on smaller and on larger
samples of that part, and extrapolates the cost by c + b / m, the usual rate of a regression's excess cost.

A score that is named before the log is read needs no training: for a pair of models all questions certify it
(`named_score`). A learned policy is also tested, on the largest share, at the part of delta that the first test leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cascade.calibration.samples import FOLDS, doubt_of, folds, only_unknown
from cascade.conformal.binomial import most_losses
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.training.choosing import Candidate, Choice, cost_of, out_of_fold
from cascade.training.dividing import Divided, allowed_loss, needed_of
from cascade.training.simple import plain_threshold

SHARES = (0.25, 0.4, 0.55, 0.7)
"""The shares of certifying questions to choose from. The rest after the largest always trains."""
LEARNS_FROM = 2_000
"""With fewer questions than this, all questions of a pair of models certify one named score at delta, and the learned
policy gets the rest of delta: setting questions aside mostly costs more than learning saves (`design/regret.md`)."""
LEAST_LOSSES = 10
"""Nothing is learned if the test allows fewer losses than this on seven of ten questions: questions set aside to learn
from would then cost the certificate more than learning saves (`design/regret.md`)."""
_MOST_GAIN = 0.3
"""The most that unlimited training questions are assumed to save, as a share of the cost. Noise alone could make the
two figures suggest more."""


def named_score(table: EpisodeTable, guarantee: Guarantee) -> Candidate | None:
    """Return the threshold that needs no learning, if learning would cost more than it gains; else None.

    Score, sign and order are named before the log is read: the first signal of `calibration.samples.KNOWN` that the log
    has, or the tokens of an answer if it has none. The function reads which signals the log has and how many questions;
    it reads no answer and no outcome.
    """
    if not guarantee.plain or table.arrays.horizon < 2 or not guarantee.rules.last_is_safe(table):
        return None
    groups = len(set(table.groups))  # one question of each certifies
    assert guarantee.alpha is not None  # noqa: S101 - a promise of regret has both
    assert guarantee.delta is not None  # noqa: S101 - the same
    few = (most_losses(round(SHARES[-1] * groups), guarantee.alpha, guarantee.delta) or 0) < LEAST_LOSSES
    if not few and (table.arrays.horizon > 2 or groups >= LEARNS_FROM):
        return None
    if only_unknown(table):
        return None  # a threshold on a number without a known meaning saves almost nothing (`design/fitting.md`)
    doubt = doubt_of(table)
    if doubt is None:
        name, sign = "tokens_so_far", 1.0
        if np.isnan(table.tokens).all():
            return None
    else:
        name, sign = doubt.signal, doubt.sign

    policy = plain_threshold(table, name, sign, guarantee.rules)  # it reads only the steps and models of the log
    return Candidate(f"threshold on {name}", "threshold", 1, lambda _: policy)


def share_that_certifies(parts: Divided, choice: Choice, guarantee: Guarantee, seed: int) -> float:
    """Return the share of a log's questions that should certify.

    `parts` is divided by the largest of `SHARES`: its training questions, on which `choice` was made, train at every
    share. `seed` is the one of that choice.
    """
    chosen, first = choice.chosen, parts.training
    groups = len(set(first.groups)) + parts.calibration.n  # one question of each certifies
    if chosen.method in {"depth", "reference"} or len(set(first.groups)) < 2 * FOLDS:
        return SHARES[-1]
    shares = [one for one in SHARES if round(one * groups) >= needed_of(guarantee)] or [SHARES[-1]]
    sizes = [(many - 1) / many * first.n for many in (2, FOLDS)]
    small = out_of_fold(first, chosen, folds(first, 2, seed))
    held = [small, choice.sample if choice.folds else out_of_fold(first, chosen, folds(first, FOLDS, seed))]
    allowed = {one: allowed_loss(guarantee, round(one * groups)) for one in shares}
    costs = {one: [cost_of(sample, choice.objective, allowed[one]) for sample in held] for one in shares}
    expected = {one: _at_size(sizes, costs[one], (1 - one) * parts.questions) for one in shares}
    return min(shares, key=lambda one: (expected[one], -one))


def _at_size(sizes: Sequence[float], costs: Sequence[float], many: float) -> float:
    """Extrapolate the cost to `many` training questions by c + b / m, from its values at two sizes."""
    small, large = costs
    if not math.isfinite(large):
        return math.inf
    slope = (small - large) / (1 / sizes[0] - 1 / sizes[1]) if math.isfinite(small) else math.inf
    slope = min(max(slope, 0.0), _MOST_GAIN * large * sizes[1])
    return large + slope * (1 / many - 1 / sizes[1])
