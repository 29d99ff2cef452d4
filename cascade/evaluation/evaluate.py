"""One policy on a log: exact, with intervals that say how far the log's questions speak for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cascade.calibration.pricing import priced_said
from cascade.calibration.realised import Played, play
from cascade.calibration.samples import clusters
from cascade.calibration.scores import check_fits, scored
from cascade.conformal.arrays import Ints
from cascade.conformal.rollout import hopeless
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.intervals import CONFIDENCE, LEAST_QUESTIONS
from cascade.evaluation.played import Means, means
from cascade.evaluation.promise import Promise, Ratio, Seen, beside_reference, broken, promise_of, seen_by
from cascade.evaluation.splits import numbered
from cascade.policies.artifact import PolicyArtifact
from cascade.policies.base import Policy
from cascade.policies.calibrated import Threshold

RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A policy's means on a data set and their intervals, by the names of `Means`.

    Attributes:
        n: questions.
        episodes: episodes; more than `n` where the log holds a question several times.
        groups: groups of questions, which are what is independent; groups that share a question count as one.
        kappa: the threshold for questions without a group.
        intervals: of `mean` by name; and "risk" and "times_reference". Empty where there are too few groups.
        promise: how often the policy breaks its own promise; None where it promises nothing on single questions.
        reference: what `times_reference` is held against, such as "guide only"; None where it is not on record.
        times_reference: the policy's cost as a multiple of the reference's.
        seen: how many of the questions the policy knows already; None for a policy that comes from no directory.
        lacks: which costs the log lacks, in words.
    """

    dataset: str
    n: int
    episodes: int
    groups: int
    horizon: int
    kappa: float
    mean: Means
    intervals: Mapping[str, tuple[float, float]]
    promise: Promise | None = None
    reference: str | None = None
    times_reference: float | None = None
    seen: Seen | None = None
    lacks: tuple[str, ...] = ()


def evaluate(
    table: EpisodeTable,
    policy: Policy,
    *,
    artifact: PolicyArtifact | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Evaluation:
    """Return what a policy does on a log.

    A calibrated policy is played at the threshold of each question's group. Where it abstains nothing is served, so
    `accuracy` counts the question as not right.

    Args:
        table: the log's episodes.
        policy: the policy, as it serves.
        artifact: the policy directory that it comes from, with what it promises and the questions that it has seen.
        seed: draws the bootstrap.
        resamples: of the bootstrap.

    Raises:
        UsageError: the log has none of the signals that the policy looks at, or not as many steps as it always takes.

    The intervals are percentiles of a bootstrap over the groups, 95 %: they say how the means would move with other
    questions of the same kind. There are none with fewer than `intervals.LEAST_QUESTIONS` groups. Nothing is fitted
    here; a policy that was fitted on these questions looks better than it is.
    """
    check_fits(policy, table)
    played = play_policy(table, policy)
    certified = artifact is not None and bool(artifact.certificates)
    lost = broken(table, played, artifact.certificates[0].kind) if artifact is not None and certified else None
    beside = beside_reference(table, played)
    figures = _figures(table, played)
    if lost is not None:
        figures["risk"] = lost
    if beside is not None:
        figures["times_reference"] = beside[1]
    member = numbered(clusters(table))
    return Evaluation(
        table.dataset,
        len(set(table.questions)),
        table.n,
        int(member.max()) + 1,
        table.arrays.horizon,
        policy.kappa,
        means(table, played),
        _bootstrap(figures, member, seed, resamples),
        None if artifact is None or lost is None else promise_of(table, lost, artifact),
        None if beside is None else beside[0],
        None if beside is None else beside[1].value,
        None if artifact is None else seen_by(table, artifact),
        tuple(priced_said(table)),
    )


def play_policy(table: EpisodeTable, policy: Policy) -> Played:
    """Return what a policy does, at the threshold of each question's segment where it has several."""
    at = [policy.for_segment(*one) for one in zip(table.segments, table.groups, strict=True)]
    each = [Threshold(one.kappa, one.keeps_everything, one.abstain_below) for one in at]
    return play(*scored(policy.inner, table), each)


def _figures(table: EpisodeTable, played: Played) -> dict[str, Ratio]:
    columns = {
        "coverage": played.covered,
        "in_set": played.in_set,
        "accuracy": played.right,
        "avg_length": played.length,
        "leaves": played.leaves,
        "set_size": played.distinct,
        "unsolvable": hopeless(table.arrays).astype(np.float64),
    }
    found = {name: Ratio(column, np.ones(table.n)) for name, column in columns.items()}
    if table.shows_cost:
        priced = table.priced.astype(np.float64)
        found["cost_usd"] = Ratio(played.cost / 1e9 * priced, priced)
    return found


def _bootstrap(figures: Mapping[str, Ratio], member: Ints, seed: int, resamples: int) -> dict[str, tuple[float, float]]:
    """Return the intervals of the figures; `member` says which group each question is of, int64 (n,)."""
    many = int(member.max()) + 1
    if many < LEAST_QUESTIONS:
        return {}
    parts = np.stack([part for one in figures.values() for part in (one.above, one.below)], axis=1)
    sums = np.zeros((many, parts.shape[1]))
    np.add.at(sums, member, parts)
    chance = np.random.default_rng(seed)
    drawn = np.full((resamples, len(figures)), np.nan)
    for k in range(resamples):
        total = sums[chance.integers(0, many, many)].sum(axis=0)
        np.divide(total[::2], total[1::2], out=drawn[k], where=total[1::2] > 0)
    tail = (1 - CONFIDENCE) / 2 * 100
    return {
        name: (float(low), float(high))
        for name, column in zip(figures, drawn.T, strict=True)
        if not np.isnan(column).any()
        for low, high in [np.percentile(column, [tail, 100 - tail])]
    }
