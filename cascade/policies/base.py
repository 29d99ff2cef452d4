"""The Protocol that every policy follows, hand-set or learned."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cascade.types import Question, Step


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
    """Scores of the latest step's candidates, in order, and of going on. Higher = include; +inf = always."""

    candidates: tuple[float, ...]
    next: float


class Policy(Protocol):
    """A decision rule. It gives scores; the threshold `kappa` turns them into actions (`conformal.actions`)."""

    @property
    def kappa(self) -> float:
        """The threshold: what scores at least this is included."""
        ...

    def scores(self, observation: Observation) -> Scores:
        """Score the latest step's candidates and going on. Pure: the same observation gives the same scores."""
        ...
