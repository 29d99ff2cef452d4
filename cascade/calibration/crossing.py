"""Cross-calibration and its check: out-of-fold critical values for members that were each fitted without one fold.

`training.crossing` fits the members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from cascade.calibration.samples import FOLDS, among, folds
from cascade.calibration.scores import Sample, sample_of
from cascade.conformal.arrays import Floats, Ints, ScoreArrays, as_written, levels, rollout
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.guarantees.base import Kind, get, kinds_that
from cascade.guarantees.questions import Found
from cascade.policies.artifact import PolicyArtifact
from cascade.policies.cross import CrossPolicy, ranks
from cascade.policies.learned import LearnedPolicy
from cascade.text import percent


def critical_values(
    table: EpisodeTable, fold: Ints, members: Sequence[LearnedPolicy], kind: Kind
) -> tuple[Floats, ...]:
    """Return the critical values of each fold's questions under its member, ascending: float64 (n_k,) each.

    Args:
        table: the questions, each once.
        fold: int64 (n,), the fold of each question; member k was fitted without fold k.
        members: one policy for each fold; they keep every answer.
        kind: the kind of guarantee; with every answer kept, a miss is a walk that stops too early (`Kind.crossable`).
    """
    counted = kind.counted(table)
    return tuple(
        [
            np.sort(sample_of(table.take(np.flatnonzero((fold == k) & counted)), member).critical())
            for k, member in enumerate(members)
        ]
    )


def out_of_fold(table: EpisodeTable, fold: Ints, policy: CrossPolicy) -> Sample:
    """Return each question with its rank under the one member that has not seen it.

    Each member's outcomes on these questions, which it has not seen, are fair figures. The ensemble's outcomes are not,
    because its other members have seen them.
    """
    onward = np.full(table.arrays.cost.shape, -np.inf)
    for k, (member, critical) in enumerate(zip(policy.members, policy.critical, strict=True)):
        rows = np.flatnonzero(fold == k)
        onward[rows] = ranks(critical, sample_of(table.take(rows), member).scores.next)
    scores = ScoreArrays(np.where(table.arrays.present, np.inf, -np.inf), onward)
    return Sample(table, scores, levels(table.arrays, scores))


def found_at(sample: Sample, kind: Kind, alpha: float) -> Found:
    """Return the threshold, alpha, with the questions that it misses out of fold."""
    counted = kind.counted(sample.table)
    covered = rollout(sample.table.arrays, sample.levels, alpha).covered
    misses = int(np.count_nonzero(counted & ~covered))
    return Found(None, counted, int(np.count_nonzero(counted)), alpha, misses=misses)


def demand(critical: Sequence[Floats], alpha: float, kind: Kind) -> None:
    """Raise NotCertifiedError if no mean rank can be below alpha; the policy could then never stop."""
    lowest = [Fraction(1 + int(np.isneginf(values).sum()), values.size + 1) for values in critical]
    if sum(lowest) / len(lowest) < as_written(alpha):
        return
    n, unfit = sum(values.size for values in critical), sum(int(np.isneginf(values).sum()) for values in critical)
    said = f"Not certified ({kind.name}, alpha {alpha:g}, cross-calibrated): "
    if unfit:
        raise NotCertifiedError(
            f"{said}of {n} questions {unfit} are missed at every threshold, which is too many: their records end early."
        )
    needed = _needed(len(critical), n, alpha)
    raise NotCertifiedError(
        f"{said}{n} questions in {len(critical)} folds are too few to stop at any step. {needed} would be enough.",
        needed_n=needed,
    )


def _needed(folds: int, n: int, alpha: float) -> int:
    """Return the least number of questions above n with which a mean rank can be below alpha, in nearly equal folds."""
    while True:
        n += 1
        sizes = [n // folds + (k < n % folds) for k in range(folds)]
        if sum(Fraction(1, size + 1) for size in sizes) / folds < as_written(alpha):
            return n


def rests_on(alpha: float, many: int) -> tuple[str, ...]:
    """Return the assumption of a cross-calibrated promise, and its bound, a sentence each."""
    return (
        f"Each of {many} members was chosen and fitted without the questions that its critical values come from.",
        bound(alpha),
    )


def bound(alpha: float) -> str:
    """Return the sentences about the coverage that cross-calibration proves, and the usual coverage.

    >>> bound(0.05)
    'Proven: at least 90 % are covered (twice alpha is the worst case). As a rule 95 % or more are, unproven.'
    """
    proven, rule = percent(2 * alpha, rest=True), percent(alpha, rest=True)
    worst = f"Proven: at least {proven} are covered (twice alpha is the worst case)."
    return f"{worst} As a rule {rule} or more are, unproven."


def is_crossed(artifact: PolicyArtifact) -> bool:
    """Whether cross-calibration made a directory's certificate; False if its policy was calibrated again later.

    Only cross-calibration certifies with the questions that made the policy; every other calibration refuses them.
    """
    return artifact.policy.get("kind") == "cross" and artifact.seen.all.issuperset(artifact.questions)


def deviations(artifact: PolicyArtifact, policy: CrossPolicy, whole: EpisodeTable) -> Iterator[str]:
    """Yield the differences between a certificate and the one that a log's questions give.

    `whole` has all questions that the members were made from, those that certify among them.
    """
    certificate, alpha = artifact.certificates[0], policy.kappa
    certify = among(whole, frozenset(artifact.questions))
    table, fold = whole.take(certify), folds(whole, FOLDS, artifact.policy["seed"])[certify]
    kind = get(certificate.kind)
    counted = kind.counted(table)
    wanted = {
        "kind": kind.name if kind.crossable else kinds_that(lambda one: one.crossable),
        "alpha": 2 * alpha,
        "kappa": alpha,
        "n": int(np.count_nonzero(counted)),
        "k": None,
        "delta": None,
        "segment": None,
    }
    for name, again in wanted.items():
        then = getattr(certificate, name)
        if then != again:
            yield f"{name} is {then} in the certificate, but the policy and the data give {again}"
    if int(fold.max()) + 1 != len(policy.members) or len(artifact.certificates) != 1:
        yield f"{len(policy.members)} members and {len(artifact.certificates)} certificates: the data give other folds"
        return
    values = critical_values(table, fold, policy.members, kind)
    differ = [k for k, one in enumerate(values) if not np.array_equal(one, policy.critical[k])]
    if differ:
        yield f"the critical values of member {', '.join(map(str, differ))} differ from those that the data give"
