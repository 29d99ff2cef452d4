"""Evaluate one policy on a log: exact figures, with intervals for fresh questions of the same kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cascade.calibration.samples import among, clusters
from cascade.calibration.scores import Played, check_fits, cut_short, play, priced_said, scored
from cascade.conformal.arrays import Bools, Floats, Ints, hopeless
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.baselines import walked
from cascade.guarantees.base import get
from cascade.guarantees.questions import REFERENCES, reference_right
from cascade.policies.artifact import PolicyArtifact, Threshold
from cascade.policies.base import Policy

CONFIDENCE = 0.95
LEAST_QUESTIONS = 6
"""With fewer independent questions there is no interval. Chance gives a difference of one sign on all of n questions
with probability 2^(1 − n) (the exact two-sided sign test), which is below 5 % from n = 6 on."""


@dataclass(frozen=True, slots=True)
class Means:
    """Means over questions; None if a cost is unknown, or no question is solvable."""

    coverage: float
    covered_given_solvable: float | None
    unsolvable: float
    in_set: float
    accuracy: float
    cost_usd: float | None
    avg_length: float
    leaves: float
    set_size: float


def means(table: EpisodeTable, played: Played) -> Means:
    """Return the means over a table's questions."""
    solvable = table.arrays.solvable
    return Means(
        coverage=float(played.covered.mean()),
        covered_given_solvable=float(played.in_set[solvable].mean()) if solvable.any() else None,
        unsolvable=float(hopeless(table.arrays).mean()),
        in_set=float(played.in_set.mean()),
        accuracy=float(played.right.mean()),
        cost_usd=float(played.cost[table.priced].mean()) / 1e9 if table.shows_cost else None,
        avg_length=float(played.length.mean()),
        leaves=float(played.leaves.mean()),
        set_size=float(played.distinct.mean()),
    )


def numbered(groups: Sequence[str]) -> Ints:
    """Return the number of each question's group, int64 (n,): groups are numbered by their names, in order.

    >>> numbered(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    number = {name: place for place, name in enumerate(sorted(set(groups)))}
    return np.fromiter((number[name] for name in groups), dtype=np.int64, count=len(groups))


# --- How often a policy breaks its own promise on a log, and its cost compared with the reference's ---


@dataclass(frozen=True, slots=True)
class Promise:
    """A policy's promise on a log.

    Attributes:
        kind: the kind of the guarantee.
        alpha: the share of questions on which it may be broken.
        n: how many episodes it covers.
        risk: the share of those on which it is broken; None if there are none.
        fresh: how many of those have a question that the policy was not made with.
        fresh_risk: the share of those on which it is broken; None if there are none.
    """

    kind: str
    alpha: float
    n: int
    risk: float | None
    fresh: int
    fresh_risk: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """The number of a log's questions that were used to make a policy (`made`), or to calibrate it (`calibrated`)."""

    made: int
    calibrated: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure by question: its mean is the sum of `above` divided by the sum of `below`, float64 (n,) each."""

    above: Floats
    below: Floats

    @property
    def value(self) -> float | None:
        """The mean; None if the sum of `below` is 0."""
        total = float(self.below.sum())
        return float(self.above.sum()) / total if total else None

    def take(self, rows: Bools) -> Ratio:
        """Return the figure of the chosen questions."""
        return Ratio(self.above[rows], self.below[rows])


def broken(table: EpisodeTable, played: Played, kind: str) -> Ratio | None:
    """Return how often a promise is broken; None for a promise on a mean, which no single question breaks."""
    rules = get(kind)
    if not rules.monitored:
        return None
    reference = reference_right(table) if rules.needs_reference else None
    lost = rules.broken(table, played.right + played.abstained, played.in_set, reference)
    if lost is None:
        return None
    known = rules.counted(table) & ~np.isnan(lost)
    return Ratio(np.where(known, lost, 0.0), known.astype(np.float64))


def promise_of(table: EpisodeTable, lost: Ratio, artifact: PolicyArtifact) -> Promise:
    """Return a policy's promise with how often it is broken, on all questions and on those that are new to it."""
    certificate = artifact.certificates[0]
    assert certificate.alpha is not None  # noqa: S101 - every promise on single questions has one
    fresh = lost.take(~among(table, artifact.seen.all | set(artifact.questions)))
    counts = int(lost.below.sum()), int(fresh.below.sum())
    return Promise(certificate.kind, certificate.alpha, counts[0], lost.value, counts[1], fresh.value)


def seen_by(table: EpisodeTable, artifact: PolicyArtifact) -> Seen:
    """Return the number of a log's questions that a policy was made with, and of others that it was calibrated on."""
    made, held = among(table, artifact.seen.all), among(table, frozenset(artifact.questions))
    return Seen(_questions(table, made), _questions(table, held & ~made))


def _questions(table: EpisodeTable, rows: Bools) -> int:
    return len({table.questions[row] for row in np.flatnonzero(rows)})


def beside_reference(table: EpisodeTable, played: Played) -> tuple[str, Ratio] | None:
    """Return the reference's name, and the policy's cost as a multiple of the reference's cost.

    The reference is the guide alone, or a ladder's last model alone. Return None if the log has neither for most
    questions, or has no costs. The ratio uses the questions for which the log has both costs.
    """
    reference = next((one for name in REFERENCES if (one := walked(table, name))), None)
    if reference is None or not table.shows_cost:
        return None
    rows = reference.known & table.priced
    return reference.name, Ratio(played.cost * rows, reference.cost * rows)


# --- evaluate ---

RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A policy's means on a data set and their intervals, by the names of `Means`.

    Attributes:
        n: the number of questions.
        episodes: the number of episodes; more than `n` if the log has a question several times.
        groups: the number of groups of questions, the independent units; groups that share a question count as one.
        kappa: the threshold for questions without a group.
        intervals: the intervals of `mean` by name, and of "risk" and "times_reference". Empty with too few groups.
        promise: how often the policy breaks its own promise; None if it promises nothing about single questions.
        reference: the divisor of `times_reference`, such as "guide only"; None if the log has none.
        times_reference: the policy's cost as a multiple of the reference's.
        seen: how many of the questions the policy was made with; None for a policy without a directory.
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
    """Evaluate a policy on a log.

    A calibrated policy is played at the threshold of each question's segment. If the policy abstains, nothing is
    served, and `accuracy` counts the question as not right.

    Args:
        table: the log's episodes.
        policy: the policy, as it serves.
        artifact: the policy directory that it comes from, with its promise and the questions that it has seen.
        seed: the seed of the bootstrap.
        resamples: the number of bootstrap replicates.

    Raises:
        UsageError: the log has none of the signals that the policy reads, or fewer steps than it always takes, or it
            lacks a call that the policy makes on every question.

    Questions for which the log lacks a call that the policy makes are left out of every figure, and a note says so.

    The intervals are 95 % percentiles of a bootstrap over the groups: they show how the means would vary with other
    questions of the same kind. There are none with fewer than `LEAST_QUESTIONS` groups. Nothing is fitted here;
    a policy that was fitted on these questions looks better than it is.
    """
    check_fits(policy, table)
    judged, scores, at = *scored(policy.inner, table), _thresholds(table, policy)
    cut, whole = cut_short(judged, scores, at), table
    if cut.all():
        raise UsageError(
            f"{table.dataset} lacks {_LACKING} on every question: log each model's answer (cascade collect)."
        )
    table, played = table.take(~cut), play(judged, scores, at).take(~cut)
    notes = [_cut_said(int(cut.sum()), whole.n)] if cut.any() else []
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
        len(set(whole.questions)),
        whole.n,
        int(numbered(clusters(whole)).max()) + 1,
        table.arrays.horizon,
        policy.kappa,
        means(table, played),
        _bootstrap(figures, member, seed, resamples),
        None if artifact is None or lost is None else promise_of(table, lost, artifact),
        None if beside is None else beside[0],
        None if beside is None else beside[1].value,
        None if artifact is None else seen_by(whole, artifact),
        (*notes, *priced_said(table)),
    )


_LACKING = "a call that the policy makes"


def _cut_said(many: int, n: int) -> str:
    return (
        f"On {many:,} of {n:,} questions the log lacks {_LACKING}, so the answer and its cost are unknown: every "
        f"figure is of the other {n - many:,}, which may be of another kind; log each model's answer (cascade collect)"
    )


def play_policy(table: EpisodeTable, policy: Policy) -> Played:
    """Return what a policy does, at the threshold of each question's segment if it has several."""
    return play(*scored(policy.inner, table), _thresholds(table, policy))


def _thresholds(table: EpisodeTable, policy: Policy) -> list[Threshold]:
    at = [policy.for_segment(one) for one in table.segments]
    return [Threshold(one.kappa, one.keeps_everything, one.abstain_below) for one in at]


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
    """Return the intervals of the figures; `member` is each question's group, int64 (n,)."""
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
