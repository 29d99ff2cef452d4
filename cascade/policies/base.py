"""The Protocol that every policy follows, hand-set or learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from cascade.types import Question, Step

if TYPE_CHECKING:  # numpy, which most configurations do without
    from cascade.conformal.arrays import Floats, ScoreArrays
    from cascade.policies.history import History


class Observation(NamedTuple):
    """What a policy sees: the question and every step so far; the latest is last and not decided yet."""

    question: Question
    steps: tuple[Step, ...]
    horizon: int

    @property
    def step(self) -> Step:
        """The latest step."""
        return self.steps[-1]

    @property
    def last(self) -> bool:
        """Whether no further step is possible."""
        return self.step.final or self.step.number >= self.horizon


class Scores(NamedTuple):
    """Scores of the latest step's candidates, in order, and of going on. Higher = include; +inf = always.

    `confidences`, in [0, 1] or None for unknown, take the place of the candidates' own where a policy has an estimate
    of how likely each is right: by them the answers are ranked, and abstentions decided.
    """

    candidates: tuple[float, ...]
    next: float
    confidences: tuple[float | None, ...] | None = None


class Takes(NamedTuple):
    """The part of a strategy that a policy walks over, where that is not all of it.

    Attributes:
        steps: the numbers of the strategy's steps, from 1, rising; other steps are neither run nor paid. Only where no
            step depends on another, as in a ladder.
        reference: whether it is the reference alone, asked at once: the guide outright, or a ladder's last model.
    """

    steps: tuple[int, ...] = ()
    reference: bool = False


class Policy(Protocol):
    """A decision rule. It gives scores; the threshold `kappa` turns them into actions (`conformal.actions`)."""

    @property
    def kappa(self) -> float:
        """The threshold: what scores at least this is included."""
        ...

    def scores(self, observation: Observation) -> Scores:
        """Score the latest step's candidates and going on. Pure: the same observation gives the same scores."""
        ...


class BatchScores(NamedTuple):
    """A policy's scores on logged steps, and its confidences, float64 (n, T, m), NaN = unknown; None: it has none."""

    scores: ScoreArrays
    confidence: Floats | None


@runtime_checkable
class BatchPolicy(Protocol):
    """A policy that can score a whole log at once: the same numbers to the bit as one observation at a time."""

    def batch(self, history: History) -> BatchScores | None:
        """Score every step on record; None where it can only score one observation at a time."""
        ...
