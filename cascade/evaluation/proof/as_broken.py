"""One threshold per rung in a proof: what it saves where it breaks the promise as often as the certified policy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import per_rung_along, rung_thresholds
from cascade.evaluation.proof.split_results import Figures, Measuring, mean_of
from cascade.training.choice.rungs import LEVELS

_KAPPAS = np.linspace(len(LEVELS), -1.0, 20 * (len(LEVELS) + 1) + 1).tolist()
"""Levels that are looked at: from where every question stops at once to where none does, twenty between two vectors."""


def per_rung_as_broken(training: EpisodeTable, test: Measuring, policy: Figures) -> Figures | None:
    """Return the cheapest level of a ladder's thresholds that breaks the promise no more often than a policy.

    The thresholds are tuned on the questions that the policy was made from. Their level is set on the test questions
    themselves, so that they lose as much as the policy does: what is compared is the cost of the same loss, and nothing
    is certified. Where every level breaks the promise more often, it is the one that breaks it least.

    Args:
        training: the split's questions to fit and certify on.
        test: its test questions.
        policy: what the certified policy did on them.

    Returns:
        What they did on the test questions; None where the log is no ladder of three models or more, or its signals are
        of no known kind.
    """
    thresholds = rung_thresholds(training, test.guarantee.rules, test.guarantee.alpha or 0.0)
    if thresholds is None:
        return None
    every = [test.of_way(way) for way in per_rung_along(test.table, thresholds, _KAPPAS)]
    least = min(mean_of(one.broken) for one in every)
    allowed = max(mean_of(policy.broken), least) + 1e-12
    return min(_within(every, allowed), key=lambda one: mean_of(one.cost))


def _within(every: list[Figures], allowed: float) -> Iterator[Figures]:
    yield from (one for one in every if mean_of(one.broken) <= allowed)
