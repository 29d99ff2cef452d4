"""A policy at a certified threshold: what calibration sets, apart from the directory that holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from cascade.guarantees.certificate import known_as, of_segment
from cascade.policies.base import BatchScores, FittedOn, Observation, Policy, Scores, Takes

if TYPE_CHECKING:
    from cascade.policies.embedding import Embedded
    from cascade.policies.history import History


class Threshold(NamedTuple):
    """What a certificate sets."""

    kappa: float
    keeps_everything: bool = False
    abstain_below: float | None = None


EVERYTHING = Threshold(-math.inf, keeps_everything=True)


@dataclass(frozen=True, slots=True)
class CalibratedPolicy(Policy):
    """A policy's scores at a certified threshold: one for all questions, or one a segment.

    Where the certificate keeps everything, every score is +∞: all steps are paid, all answers kept.

    Args:
        inner: the policy that scores.
        threshold: what holds for questions whose segment is not in `segments`.
        segments: what holds for each segment; None in it is no segment's name.
        by_group: whether the certificates were made by groups, so that a question's group is its segment.
    """

    inner: Policy
    threshold: Threshold
    segments: Mapping[str | None, Threshold] = field(default_factory=dict)
    by_group: bool = False

    @property
    def kappa(self) -> float:
        """The threshold."""
        return self.threshold.kappa

    @property
    def abstain_below(self) -> float | None:
        """The confidence below which nothing is served; None without abstention."""
        return self.threshold.abstain_below

    @property
    def keeps_everything(self) -> bool:
        """Whether every answer of every step is kept."""
        return self.threshold.keeps_everything

    def for_segment(
        self, segment: str | None, group: str | None = None, *, kappa: float | None = None
    ) -> CalibratedPolicy:
        """Return the policy at the threshold of a segment; that of all other questions where it has none."""
        name = known_as(segment, group, by_group=self.by_group)
        threshold = of_segment(self.segments, name) or (EVERYTHING if self.segments else self.threshold)
        if kappa is not None:
            threshold = threshold._replace(kappa=kappa)
        return self if threshold == self.threshold else replace(self, threshold=threshold)

    @property
    def depends_on_kappa(self) -> bool:
        """As the inner policy."""
        return self.inner.depends_on_kappa

    @property
    def reads(self) -> tuple[str, ...]:
        """As the inner policy."""
        return self.inner.reads

    @property
    def needs(self) -> tuple[str, ...]:
        """As the inner policy."""
        return self.inner.needs

    @property
    def depth(self) -> int:
        """As the inner policy."""
        return self.inner.depth

    @property
    def takes(self) -> Takes | None:
        """As the inner policy."""
        return self.inner.takes

    @property
    def fitted_on(self) -> FittedOn | None:
        """As the inner policy."""
        return self.inner.fitted_on

    @property
    def asks(self) -> tuple[str, ...]:
        """As the inner policy."""
        return self.inner.asks

    @property
    def embedded(self) -> Embedded | None:
        """As the inner policy."""
        return self.inner.embedded

    def scores(self, observation: Observation) -> Scores:
        """Score as the policy does, or include everything. Its confidences rank the answers either way."""
        found = self.inner.scores(observation)
        if self.threshold.keeps_everything:
            return found._replace(candidates=(math.inf,) * len(observation.step.candidates), next=math.inf)
        return found

    def batch(self, history: History) -> BatchScores | None:
        """Score a whole log as `scores` does; None where the policy scores one observation at a time."""
        found = self.inner.batch(history)
        if found is None or not self.threshold.keeps_everything:
            return found
        import numpy as np  # most configurations do without

        there = np.arange(history.horizon) < history.steps[:, None]
        kept = np.where(history.answer >= 0, math.inf, -math.inf)
        return found._replace(scores=type(found.scores)(kept, np.where(there, math.inf, -math.inf)))
