"""What a guarantee reads of a log, as protocols, and what it finds (`Found`): arrays, no text and no file.

`episodes.table.EpisodeTable` is a `Questions`, `calibration.scores.Sample` is a `Scored`. There are n questions, T
steps, and m candidates a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, Levels, StepArrays
from cascade.conformal.served import PathPoint


class Truth(NamedTuple):
    """The meaning of "right" without a log's labels: equal to the reference's output, or judged to be no loss.

    Attributes:
        reference: the model, as the log calls it, or "the guide".
        comparator: the matcher that says when two outputs are the same, as `matching.get_matcher` takes it.
        asked: for which kind of guarantee people judged the outputs that differ; None if there are no judgements.
        rate: the share of the questions that was drawn for it.
        cautions: notes on a comparator that was chosen by default, a sentence or two each.
    """

    reference: str
    comparator: str
    asked: str | None = None
    rate: float = 1.0
    cautions: tuple[str, ...] = ()

    @property
    def good(self) -> str:
        """What a "right" answer does, in words."""
        return "answered as the reference does" if self.asked is None else "answered without loss"

    @property
    def right(self) -> str:
        """What a "right" answer is, in words."""
        return "equal to the reference's" if self.asked is None else "without loss"

    def assumptions(self) -> Iterator[str]:
        """Yield what a certificate rests on by the way "right" was found, a sentence each."""
        yield f"Whether an answer equals the reference's is judged by {self.comparator}."
        yield from self.cautions
        if self.asked is None:
            return
        yield "Answers that are equal by it lose nothing: of two equal ones both are right, or both wrong."
        yield (
            "Of answers that differ people said what is lost. A question was drawn for that with probability "
            f"{self.rate:g}, by a keyed hash, before anybody looked; a drawn one without a judgement counts as lost."
        )


class Labels(NamedTuple):
    """For which questions people's judgements count.

    Attributes:
        drawn: bool (n,), whether the question was drawn for review.
        unsaid: bool (n,), whether some output of it that differs has no judgement, and so counts as lost.
        judged: bool (n, T, m), answers that differ from the reference's and were judged.
        unjudged: bool (n, T, m), answers that differ and were not.
    """

    drawn: Bools
    unsaid: Bools
    judged: Bools
    unjudged: Bools

    def take(self, rows: Ints | Bools) -> Labels:
        """Return the chosen questions."""
        return Labels(*(each[rows] for each in self))

    def only(self, columns: Ints) -> Labels:
        """Return the same questions with the chosen steps, from 0."""
        return self._replace(judged=self.judged[:, columns], unjudged=self.unjudged[:, columns])

    def of_another(self, shape: tuple[int, ...]) -> Labels:
        """Return the same questions with answers, of this shape, that nobody could judge."""
        nothing = np.zeros(shape, dtype=np.bool_)
        return self._replace(judged=nothing, unjudged=nothing)

    def expected_loss(self, correct: Bools) -> float:
        """Return the chance that an answer nobody judged is a loss, by those that were: (losses + 1) / (judged + 2).

        Args:
            correct: bool (n, T, m), which answers lose nothing.
        """
        return (float((self.judged & ~correct).sum()) + 1) / (float(self.judged.sum()) + 2)


class Walk(Protocol):
    """The outcomes of one fixed way to answer on the same questions, such as the guide alone.

    Attributes:
        known: bool (n,), whether it is on record; the other arrays mean nothing where it is not.
        right: bool (n,), whether the answer served is right.
        cost: int64 (n,), nano-USD.
        leaves: int64 (n,), how many answers are kept.
    """

    @property
    def known(self) -> Bools: ...
    @property
    def right(self) -> Bools: ...
    @property
    def cost(self) -> Ints: ...
    @property
    def leaves(self) -> Ints: ...


class Questions(Protocol):
    """Logged questions with all their steps.

    Attributes:
        dataset: what the questions are called.
        n: how many there are.
        arrays: answers, which are right, costs, how many steps are on record, and whether those are all steps.
        confidence: float64 (n, T, m), what ranks the candidates; NaN = unknown.
        sure: float64 (n, T, m), how sure the cascade is of each candidate, for abstaining; NaN = unknown.
        quality: float64 (n, T, m) in 0..1, how good each candidate is, NaN = unknown; None if it was not measured.
        texts_known: bool (n,), whether answers of one number have the same text.
        cost_known: whether the cost of every step is known.
        segments: what each question belongs to; None where it belongs to nothing.
        walks: other ways to answer the same questions, by name.
        truth: what a right answer is compared with; None where labels say what is right.
        labels: for which questions people's judgements count; None where the truth is not theirs.
    """

    @property
    def dataset(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def arrays(self) -> StepArrays: ...
    @property
    def confidence(self) -> Floats: ...
    @property
    def sure(self) -> Floats: ...
    @property
    def quality(self) -> Floats | None: ...
    @property
    def texts_known(self) -> Bools: ...
    @property
    def cost_known(self) -> bool: ...
    @property
    def segments(self) -> tuple[str | None, ...]: ...
    @property
    def walks(self) -> Mapping[str, Walk]: ...
    @property
    def truth(self) -> Truth | None: ...
    @property
    def labels(self) -> Labels | None: ...


class Scored(Protocol):
    """Questions with what a policy makes of them.

    Attributes:
        table: the questions; their confidences are the policy's, where it has its own.
        levels: at which thresholds each step is paid for, and each answer kept.
        is_reference: whether the policy asks the reference alone.
    """

    @property
    def table(self) -> Questions: ...
    @property
    def levels(self) -> Levels: ...
    @property
    def is_reference(self) -> bool: ...


Path: TypeAlias = tuple[PathPoint, ...]
"""Points to test one after the other, fixed without the calibration questions."""


class Found(NamedTuple):
    """A threshold and how it came about.

    Attributes:
        segment: the questions that it serves: a segment's, or where None all that no other threshold serves.
        rows: bool (n,), the calibration questions that it serves.
        n: the questions that it was set on.
        kappa: the threshold.
        k: its rank; None where it was set otherwise.
        misses: calibration questions that count against the promise at the threshold; None where none are counted.
        keeps_everything: whether the questions were too few, so that everything is kept.
        abstain_below: nothing is served below this confidence; None without abstention.
        needed_n: how many questions would have done, where they were too few and that is known.
        chance: the probability that so many do; None where they do for certain, or where that is not known.
        refused: why nothing can be promised, in words; None where it can.
    """

    segment: str | None
    rows: Bools
    n: int
    kappa: float
    k: int | None = None
    misses: int | None = None
    keeps_everything: bool = False
    abstain_below: float | None = None
    needed_n: int | None = None
    chance: float | None = None
    refused: str | None = None


class Misses(NamedTuple):
    """Which questions count against a promise at its threshold, bool (n,) each.

    Attributes:
        missed: whether the question does, with what its record does not show on the side of a miss.
        surely: whether it does whatever is not on record.
        counted: whether it is one that the promise surely speaks of.
    """

    missed: Bools
    surely: Bools
    counted: Bools


def everywhere(n: int) -> Bools:
    """Return all of n questions: bool (n,)."""
    return np.ones(n, dtype=np.bool_)
