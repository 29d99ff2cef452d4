"""How long callers wait for a fitted policy and for the reference alone, if a second has a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cascade.calibration.scores import play, sample_of
from cascade.conformal.arrays import Floats
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.reference import ends_in_reference, reference_walk
from cascade.policies.artifact import Threshold
from cascade.training.fitting import Fitted

_NANO = 1_000_000_000


def waits(fitted: Fitted, tables: Sequence[EpisodeTable], usd_a_second: float) -> str:
    """Return in a sentence how long the policy and the reference alone take on a log whose costs count seconds.

    Args:
        fitted: the policy, at the threshold of its first certificate.
        tables: the log, with costs that count this price a second.
        usd_a_second: the price.
    """
    spent, alone, questions = 0.0, 0.0, 0
    for table in tables:
        sample, at = sample_of(table, fitted.policy), Threshold(fitted.artifact.certificates[0].kappa)
        money = np.nan_to_num(sample.table.paid).astype(np.int64)
        bare = replace(sample.table, arrays=replace(sample.table.arrays, cost=money))
        both = play(sample.table, sample.scores, at).cost - play(bare, sample.scores, at).cost
        spent += float(both.sum())
        alone += _alone(table)
        questions += table.n
    price = usd_a_second * _NANO * max(questions, 1)
    beside = f"; the reference alone takes {alone / price:.2f} s" if alone else ""
    return (
        f"A second counts as {usd_a_second:g} USD, and costs are both together. The policy takes {spent / price:.2f} s "
        f"a question on the whole log{beside}. Logs do not say when the first byte came."
    )


def _alone(table: EpisodeTable) -> float:
    """Return the price of the seconds of the reference alone; 0 if the log's last step is not the reference."""
    if not ends_in_reference(table):
        return 0.0
    walk = table.walks[reference_walk(table)]
    seconds: Floats = np.where(walk.known, walk.cost, 0) - np.nan_to_num(table.paid[:, -1])
    return max(0.0, float(seconds.sum()))
