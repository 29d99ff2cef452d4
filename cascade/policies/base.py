"""The inputs of a policy (`Observation`; for logs `History`), its base class `Policy`, and the function `actions`.

`actions` turns scores into actions at a threshold. `policies.config` has the settings that build a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cascade.registry import default
from cascade.types import Question, Step

if TYPE_CHECKING:
    from cascade.conformal.arrays import Bools, Floats, Ints, ScoreArrays


@dataclass(frozen=True, slots=True)
class History:
    """The steps of n questions, at most T each, with m places for candidates. NaN means unknown. It has no labels.

    Attributes:
        sources: the m places ("base", "guide"); "answer" for a place that several models fill (in a ladder).
        answer: int64 (n, T, m), which distinct answer a candidate is, numbered within its question; −1 = none.
        texts_known: bool (n,), whether equal numbers mean equal texts. Without texts in the log, its table counts all
            right answers of a question as one: agreement would then leak the labels, so it is NaN.
        confidence: float64 (n, T, m), the strategy's own estimate that a candidate is right.
        signals: float64 (n, T) by name (`design/signals.md`).
        asked: float64 (n,) by name, numbers of the question's text (`policies.views`).
        cost: float64 (n, T), nano-USD of each step.
        tokens: float64 (n, T), input and output tokens of each step.
        steps: int64 (n,), the number of logged steps.
        complete: bool (n,), whether these are all possible steps of the question.
        bought: bool (n, T), the logged steps, if some before the last are missing; None: all up to `steps`.
        ids: the id of each question, by which random policies draw; empty: unknown.
    """

    sources: tuple[str, ...]
    answer: Ints
    texts_known: Bools
    confidence: Floats
    signals: Mapping[str, Floats]
    asked: Mapping[str, Floats]
    cost: Floats
    tokens: Floats
    steps: Ints
    complete: Bools
    bought: Bools | None = None
    ids: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.answer.shape[0])

    @property
    def horizon(self) -> int:
        """T."""
        return int(self.answer.shape[1])

    def has(self, step: int) -> Bools:
        """Return whether a step, numbered from 1, is logged: bool (n,)."""
        there = self.steps >= step
        return there if self.bought is None else there & self.bought[:, step - 1]

    def take(self, rows: Ints | Bools | slice) -> History:
        """Return the chosen questions, without copying if they are a slice."""
        return History(
            self.sources,
            self.answer[rows],
            self.texts_known[rows],
            self.confidence[rows],
            {name: values[rows] for name, values in self.signals.items()},
            {name: values[rows] for name, values in self.asked.items()},
            self.cost[rows],
            self.tokens[rows],
            self.steps[rows],
            self.complete[rows],
            None if self.bought is None else self.bought[rows],
        )

    def only(self, steps: Sequence[int]) -> History:
        """Return the same questions as if there were no other steps; numbered from 1, in rising order.

        Signals that compare a step with others keep their values.
        """
        import numpy as np  # a question is answered without

        columns = np.array(steps, dtype=np.int64) - 1
        there = np.count_nonzero(np.array(steps, dtype=np.int64) <= self.steps[:, None], axis=1)
        return replace(
            self,
            answer=self.answer[:, columns],
            confidence=self.confidence[:, columns],
            signals={name: values[:, columns] for name, values in self.signals.items()},
            cost=self.cost[:, columns],
            tokens=self.tokens[:, columns],
            steps=np.asarray(there, dtype=np.int64),
            bought=None if self.bought is None else self.bought[:, columns],
        )


ALWAYS, NEVER = float("inf"), float("-inf")
"""The score of an action that is taken at every threshold, and of one that is taken at none."""
SHARED_PLACE = "answer"
"""The name of a candidate's place if several models fill it, as in a ladder (`episodes.tabulate`)."""


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


class Scores(NamedTuple):
    """Scores of the latest step's candidates, in order, and of going on. Higher = include; +inf = always.

    `confidences`, in [0, 1] or None for unknown, replace the candidates' own if the policy estimates how likely each is
    right: they rank the answers and decide on abstentions. `buy` is the number of the offer to buy next, for a policy
    that takes single calls (`Takes.calls`).
    """

    candidates: tuple[float, ...]
    next: float
    confidences: tuple[float | None, ...] | None = None
    buy: int | None = None


class Takes(NamedTuple):
    """The part of a strategy that a policy uses, if not all of it.

    Attributes:
        steps: the numbers of the strategy's steps, from 1, rising; other steps are neither run nor paid. Only if no
            step depends on another, as in a ladder.
        reference: whether only the reference is asked, at once: the guide alone, or a ladder's last model.
        calls: whether the policy decides before each call which one to buy next, and which to leave out (`Scores.buy`).
    """

    steps: tuple[int, ...] = ()
    reference: bool = False
    calls: bool = False


class BatchScores(NamedTuple):
    """A policy's scores on logged steps, and its confidences, float64 (n, T, m), NaN = unknown; None without any.

    `bought`, bool (n, T): the steps that the policy buys on a walk to the end, if it leaves some out; None: all.
    """

    scores: ScoreArrays
    confidence: Floats | None
    bought: Bools | None = None


class FittedOn(NamedTuple):
    """The steps and candidates that a policy was fitted on."""

    horizon: int
    sources: tuple[str, ...]

    def place(self, source: str, index: int) -> int | None:
        """Return the place of a source's candidate at an index; None if it has none."""
        if index < len(self.sources) and self.sources[index] in {source, SHARED_PLACE}:
            return index
        return self.sources.index(source) if source in self.sources else None

    def strangers(self, sources: Sequence[str]) -> list[str]:
        """Return the places of a step (named as in `History.sources`) that the policy was not fitted on."""
        return [source for index, source in enumerate(sources) if self.place(source, index) is None]


class Policy(Protocol):
    """A decision rule. It gives scores, which `actions` turns into actions at the threshold `kappa`.

    A policy inherits from this class and defines `kappa` and `scores`; every other member has a default.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # they have no default

        @property
        def kappa(self) -> float:
            """The threshold: an action whose score is at least this is taken."""
            ...

    def scores(self, observation: Observation) -> Scores:
        """Score the latest step's candidates and going on. Pure: the same observation gives the same scores."""
        ...

    def batch(self, history: History) -> BatchScores | None:  # noqa: ARG002 - for those that score a whole log
        """Score every step of a log, with the same bits as `scores`; None if it cannot score batches."""
        return None

    @default
    def inner(self) -> Policy:
        """The policy that scores: itself, unless a certificate's threshold was put over another (`artifact`)."""
        return self

    def surety(self, doubt: float) -> float | None:  # noqa: ARG002 - for those whose doubt is one
        """Return the probability that a score of going on stands for; None if it is none."""
        return None

    def for_segment(self, segment: str | None) -> Policy:  # noqa: ARG002 - for those with certified thresholds
        """Return the policy at the threshold certified for a segment's questions; itself if there is none."""
        return self

    @default
    def abstain_below(self) -> float | None:
        """The lowest confidence of an answer that is served; None without abstention."""
        return None

    @default
    def keeps_everything(self) -> bool:
        """Whether every answer of every step is kept, whatever the scores are."""
        return False

    @default
    def depends_on_kappa(self) -> bool:
        """Whether the scores themselves change with the threshold, so that no threshold can be calibrated."""
        return False

    @default
    def reads(self) -> tuple[str, ...]:
        """The signals that it reads; a log must have one of them."""
        return ()

    @default
    def needs(self) -> tuple[str, ...]:
        """The signals that it requires; a log must have all of them."""
        return ()

    @default
    def depth(self) -> int:
        """The fewest steps that a log must have."""
        return 1

    @default
    def takes(self) -> Takes | None:
        """The part of the strategy that it uses; None: all of it."""
        return None

    @default
    def fitted_on(self) -> FittedOn | None:
        """The steps and candidates that it was fitted on; None if it was not fitted."""
        return None


class Actions(NamedTuple):
    """The set of actions at one step: the kept candidates' indices, and whether "next" is among them."""

    keep: tuple[int, ...]
    proceed: bool


def actions(scores: Sequence[float], next_score: float, kappa: float, *, last: bool) -> Actions:
    """Return the set of actions at threshold kappa: C(o_t) = {a : score(a) ≥ kappa} and {argmax}.

    "next" is impossible at the last step. The argmax is always in the set (ties: the lowest index, candidates before
    "next"). So the set is never empty, there is always an answer, and the sets grow as kappa falls. Any other fallback
    would break that nesting, and with it the guarantee (`design/decisions.md`).

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
