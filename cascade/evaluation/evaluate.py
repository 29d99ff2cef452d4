"""One policy on a log: exact, with intervals that say how far the log's questions speak for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cascade.calibration.realised import Played, play
from cascade.calibration.scores import check_fits, scored
from cascade.conformal.rollout import hopeless
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.intervals import CONFIDENCE
from cascade.evaluation.played import Means, means, played_at
from cascade.evaluation.splits import numbered
from cascade.policies.base import Policy
from cascade.policies.calibrated import CalibratedPolicy

RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A policy's means on a data set and their intervals, by the names of `Means`."""

    dataset: str
    n: int
    horizon: int
    kappa: float
    mean: Means
    intervals: Mapping[str, tuple[float, float]]


def evaluate(table: EpisodeTable, policy: Policy, *, seed: int = 0, resamples: int = RESAMPLES) -> Evaluation:
    """Return what a policy does on a log.

    A calibrated policy is played at the threshold of each question's group. Where it abstains nothing is served, so
    `accuracy` counts the question as not right.

    Raises:
        UsageError: the log has none of the signals that the policy looks at, or not as many steps as it always takes.

    The intervals are percentiles of a bootstrap over the groups, 95 %: they say how the means would move with other
    questions of the same kind. Nothing is fitted here; a policy that was fitted on these questions looks better than
    it is.
    """
    check_fits(policy, table)
    played = play_policy(table, policy)
    return Evaluation(
        table.dataset,
        table.n,
        table.arrays.horizon,
        policy.kappa,
        means(table, played),
        _bootstrap(table, played, seed, resamples),
    )


def play_policy(table: EpisodeTable, policy: Policy) -> Played:
    """Return what a policy does; a calibrated one at the threshold of each question's group."""
    if not isinstance(policy, CalibratedPolicy):
        return played_at(*scored(policy, table), policy.kappa)
    each = [policy.for_group(group).threshold for group in table.groups]
    return play(*scored(policy.inner, table), each)


def _bootstrap(table: EpisodeTable, played: Played, seed: int, resamples: int) -> dict[str, tuple[float, float]]:
    columns = {
        "coverage": played.covered,
        "in_set": played.in_set,
        "accuracy": played.right,
        "avg_length": played.length,
        "leaves": played.leaves,
        "set_size": played.distinct,
        "unsolvable": hopeless(table.arrays).astype(np.float64),
    }
    if table.cost_known:
        columns["cost_usd"] = played.cost / 1e9
    values = np.stack(list(columns.values()), axis=1)
    member = numbered(table.groups)
    sums = np.zeros((member.max() + 1, values.shape[1]))
    np.add.at(sums, member, values)
    sizes = np.bincount(member)
    chance = np.random.default_rng(seed)
    drawn = np.empty((resamples, values.shape[1]))
    for k in range(resamples):
        rows = chance.integers(0, len(sizes), len(sizes))
        drawn[k] = sums[rows].sum(axis=0) / sizes[rows].sum()
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(drawn, [tail, 100 - tail], axis=0)
    return {name: (float(low[k]), float(high[k])) for k, name in enumerate(columns)}
