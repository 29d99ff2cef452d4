"""The interface between engine and policy: what a policy is given (`Observation`) and returns (`StepScores`)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cascade.types import Question, Step

ALWAYS, NEVER = float("inf"), float("-inf")
"""The score of an action that is taken at every threshold, and of one that is taken at none."""
OF_FIRST, OF_LAST, ONWARD, SUREST = 1, 2, 3, 4
"""Actions: serve the answer of a step's first node, or of its last; go on; serve the surest answer of all."""
SHARED_PLACE = "answer"
"""The name of a candidate's place if several models fill it, as in a ladder (`episodes.rows`)."""


class Observation(NamedTuple):
    """The input of a policy: the question and all steps so far. The last step is the latest and is not decided yet."""

    question: Question
    steps: tuple[Step, ...]
    last: bool
    """Whether no further step is possible."""


class StepScores(NamedTuple):
    """Scores of the latest step's candidates, in order, and of going on. Higher = include; +inf = always.

    `confidences`, in [0, 1] or None for unknown, replace the candidates' own if the policy estimates how likely each is
    right: they rank the answers. `buy` is the number of the step to buy next, for a policy that takes single calls
    (`Selection.calls`). `sure` is the probability that the policy need not go on, and the one from which on it stops;
    None if its score stands for no probability.
    """

    candidates: tuple[float, ...]
    next: float
    confidences: tuple[float | None, ...] | None = None
    buy: int | None = None
    sure: tuple[float, float] | None = None


class Selection(NamedTuple):
    """The part of a strategy that a policy uses, if not all of it.

    Attributes:
        steps: the numbers of the strategy's steps, from 1, ascending; other steps are neither run nor paid for. Only if
            no step depends on another, as in a ladder.
        reference: whether only the reference is asked, at once: the guide alone, or a ladder's last model.
        calls: whether the policy decides before each call which one to buy next, and which to leave out (`buy`).
    """

    steps: tuple[int, ...] = ()
    reference: bool = False
    calls: bool = False


class Scorer(Protocol):
    """What the engine needs of a `policies.live.LivePolicy`: scores, which `engine.actions` turns into actions."""

    @property
    def kappa(self) -> float:
        """The threshold: an action whose score is at least this is taken."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it requires."""

    def scores(self, observation: Observation) -> StepScores:
        """Score the latest step's candidates and going on. Pure: the same observation gives the same scores."""
