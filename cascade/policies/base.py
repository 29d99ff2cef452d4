"""What the engine asks a policy (`Observation`), what it is told (`StepScores`), and what that means (`actions`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cascade.types import Question, Step

ALWAYS, NEVER = float("inf"), float("-inf")
"""The score of an action that is taken at every threshold, and of one that is taken at none."""
SHARED_PLACE = "answer"
"""The name of a candidate's place if several models fill it, as in a ladder (`episodes.rows`)."""


class Observation(NamedTuple):
    """The input of a policy: the question and all steps so far. The last step is the latest and is not decided yet."""

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
        step = self.steps[-1]
        return step.final or step.number >= self.horizon


class StepScores(NamedTuple):
    """Scores of the latest step's candidates, in order, and of going on. Higher = include; +inf = always.

    `confidences`, in [0, 1] or None for unknown, replace the candidates' own if the policy estimates how likely each is
    right: they rank the answers and decide on abstentions. `buy` is the number of the step to buy next, for a policy
    that takes single calls (`Selection.calls`).
    """

    candidates: tuple[float, ...]
    next: float
    confidences: tuple[float | None, ...] | None = None
    buy: int | None = None


class Selection(NamedTuple):
    """The part of a strategy that a policy uses, if not all of it.

    Attributes:
        steps: the numbers of the strategy's steps, from 1, rising; other steps are neither run nor paid. Only if no
            step depends on another, as in a ladder.
        reference: whether only the reference is asked, at once: the guide alone, or a ladder's last model.
        calls: whether the policy decides before each call which one to buy next, and which to leave out (`buy`).
    """

    steps: tuple[int, ...] = ()
    reference: bool = False
    calls: bool = False


class Scorer(Protocol):
    """What the engine asks: `policies.live.Live`. It gives scores, which `actions` turns into actions at `kappa`."""

    @property
    def kappa(self) -> float:
        """The threshold: an action whose score is at least this is taken."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it cannot do without."""

    def scores(self, observation: Observation) -> StepScores:
        """Score the latest step's candidates and going on. Pure: the same observation gives the same scores."""

    def surety(self, doubt: float) -> float | None:
        """Return the probability that a score of going on stands for; None if it is none."""


class Actions(NamedTuple):
    """The set of actions at one step: the kept candidates' indices, and whether "next" is among them."""

    keep: tuple[int, ...]
    proceed: bool


def actions(scores: Sequence[float], next_score: float, kappa: float, *, last: bool) -> Actions:
    """Return the set of actions at threshold kappa: C(o_t) = {a : score(a) ≥ kappa} and {argmax}.

    "next" is impossible at the last step. The argmax is always in the set (ties: the lowest index, candidates before
    "next"). So the set is never empty, there is always an answer, and the sets grow as kappa falls. Any other fallback
    would break that nesting, and with it the guarantee (`design/path.md`).

    Args:
        scores: one score a candidate, higher = include; +inf always, −inf only as the last resort.
        next_score: the score of going on.
        kappa: the threshold.
        last: whether this is step T, where going on is impossible.

    A NaN never leads to a stop: it excludes a candidate and includes "next".

    >>> actions([0.7, 0.2], 0.1, kappa=0.15, last=False)
    Actions(keep=(0, 1), proceed=False)
    >>> actions([0.1, 0.2], 0.7, kappa=0.9, last=False)
    Actions(keep=(), proceed=True)
    """
    best = _argmax(scores)
    if best is None:
        return Actions((), proceed=not last)
    onward = ALWAYS if next_score != next_score else next_score  # noqa: PLR0124 - NaN
    argmax_is_next = not last and not onward <= scores[best]
    keep = tuple(
        [
            index
            for index, score in enumerate(scores)
            if (score >= kappa and score > NEVER) or (index == best and not argmax_is_next)
        ]
    )
    return Actions(keep, proceed=not last and (argmax_is_next or (onward >= kappa and onward > NEVER)))


def _argmax(scores: Sequence[float]) -> int | None:
    """Return the lowest index of the highest score, with NaN as −inf; None without scores."""
    best, highest = None, NEVER
    for index, score in enumerate(scores):
        if best is None or score > highest:
            best, highest = index, score if score == score else NEVER  # noqa: PLR0124 - NaN
    return best
