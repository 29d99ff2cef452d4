"""The score that is named before the log is read, for promises that the reference keeps.

A named score needs no training: for a pair of models all questions certify it (`named_score`). A learned policy is also
tested, at the part of delta that the first test leaves. With n certifying questions a policy may lose a share
`most_losses(n, α, δ)` / n, which rises towards α; so most questions certify.
"""

from __future__ import annotations

import numpy as np

from cascade.calibration.samples import doubt_of, only_unknown
from cascade.conformal.binomial import most_losses
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.training.choosing import Candidate
from cascade.training.dividing import REGRET_SHARE
from cascade.training.simple import plain_threshold

LEARNS_FROM = 2_000
"""With fewer questions than this, all questions of a pair of models certify one named score at delta, and the learned
policy gets the rest of delta: setting questions aside mostly costs more than learning saves (`design/regret.md`)."""
LEAST_LOSSES = 10
"""Nothing is learned if the test allows fewer losses than this on seven of ten questions: questions set aside to learn
from would then cost the certificate more than learning saves (`design/regret.md`)."""


def named_score(table: EpisodeTable, guarantee: Guarantee) -> Candidate | None:
    """Return the threshold that needs no learning, if learning would cost more than it gains; else None.

    Score, sign and order are named before the log is read: the first signal of `calibration.samples.KNOWN` that the log
    has, or the tokens of an answer if it has none. The function reads which signals the log has and how many questions;
    it reads no answer and no outcome.
    """
    if guarantee.abstain or table.arrays.horizon < 2 or not guarantee.rules.last_is_safe(table):
        return None
    groups = len(set(table.groups))  # one question of each certifies
    assert guarantee.alpha is not None  # noqa: S101 - a promise of regret has both
    assert guarantee.delta is not None  # noqa: S101 - the same
    few = (most_losses(round(REGRET_SHARE * groups), guarantee.alpha, guarantee.delta) or 0) < LEAST_LOSSES
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
