"""How often a policy breaks its own promise on a log, and what it costs beside the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cascade.calibration.realised import Played
from cascade.calibration.samples import among
from cascade.conformal.arrays import Bools, Floats
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import walked
from cascade.guarantees.base import get
from cascade.guarantees.reference import REFERENCES, reference_right
from cascade.policies.artifact import PolicyArtifact


@dataclass(frozen=True, slots=True)
class Promise:
    """A policy's promise on a log.

    Attributes:
        kind: the kind of the guarantee.
        alpha: the share of questions on which it may be broken.
        n: how many episodes it covers.
        risk: the share of those on which it is broken; None where there are none.
        fresh: how many of those ask a question that the policy was not made with.
        fresh_risk: the share of those on which it is broken; None where there are none.
    """

    kind: str
    alpha: float
    n: int
    risk: float | None
    fresh: int
    fresh_risk: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """How many questions of a log were used to make a policy (`made`), or to calibrate it (`calibrated`)."""

    made: int
    calibrated: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure question by question: its mean is the sum of `above` over the sum of `below`, float64 (n,) each."""

    above: Floats
    below: Floats

    @property
    def value(self) -> float | None:
        """The mean; None where it is over nothing."""
        total = float(self.below.sum())
        return float(self.above.sum()) / total if total else None

    def take(self, rows: Bools) -> Ratio:
        """Return the figure of the chosen questions."""
        return Ratio(self.above[rows], self.below[rows])


def broken(table: EpisodeTable, played: Played, kind: str) -> Ratio | None:
    """Return how often a promise is broken; None for a promise on a mean, which no single question breaks.

    Args:
        table: the questions.
        played: what the policy does on them.
        kind: of the guarantee.

    Raises:
        UsageError: the promise needs a reference, and the log does not hold what it answers.
    """
    rules = get(kind)
    if not rules.monitored:
        return None
    counted, reference = rules.counted(table), reference_right(table) if rules.needs_reference else None
    lost = rules.broken(table, played.right + played.abstained, played.in_set, reference)
    return None if lost is None else Ratio(np.where(counted, lost, 0.0), counted.astype(np.float64))


def promise_of(table: EpisodeTable, lost: Ratio, artifact: PolicyArtifact) -> Promise:
    """Return a policy's promise with how often it is broken, on all questions and on those that are new to it."""
    certificate = artifact.certificates[0]
    assert certificate.alpha is not None  # noqa: S101 - every promise on single questions has one
    fresh = lost.take(~among(table, artifact.seen.all | set(artifact.questions)))
    counts = int(lost.below.sum()), int(fresh.below.sum())
    return Promise(certificate.kind, certificate.alpha, counts[0], lost.value, counts[1], fresh.value)


def seen_by(table: EpisodeTable, artifact: PolicyArtifact) -> Seen:
    """Return how many questions of a log a policy was made with, and how many others it was calibrated on."""
    made, held = among(table, artifact.seen.all), among(table, frozenset(artifact.questions))
    return Seen(_questions(table, made), _questions(table, held & ~made))


def _questions(table: EpisodeTable, rows: Bools) -> int:
    return len({table.questions[row] for row in np.flatnonzero(rows)})


def beside_reference(table: EpisodeTable, played: Played) -> tuple[str, Ratio] | None:
    """Return what the reference is called, and a policy's cost as a multiple of its cost, where both are on record.

    The reference is the guide alone, or a ladder's last model alone; None where neither is on record for most of them.
    """
    reference = next((one for name in REFERENCES if (one := walked(table, name))), None)
    if reference is None or not table.shows_cost:
        return None
    rows = reference.known & table.priced
    return reference.name, Ratio(played.cost * rows, reference.cost * rows)
