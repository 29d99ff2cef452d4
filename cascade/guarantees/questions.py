"""What goes into a promise and comes out: logged questions, their truth, what is found; and the reference of a log.

The reference is the model alone against which regret and savings are measured: the guide asked outright, if the log has
that walk, or else a ladder's last model. A promise on the one answer served also needs to know which answers are the
same (`check_identity`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, Levels, ScoreArrays, StepArrays, levels
from cascade.conformal.served import PathPoint, votes_decide
from cascade.errors import UsageError
from cascade.types import GUIDE_ONLY, LAST_ONLY


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


# --- the reference ---

REFERENCES = (GUIDE_ONLY, LAST_ONLY)
"""The walks that can be the reference; the first one that a log has is taken."""
MOSTLY = 0.5
"""A walk gives the reference's cost only if the log has it for more than this share of the questions."""


def reference_walk(table: Questions) -> str:
    """Return the name of the walk that is the reference.

    Raises:
        UsageError: the log has no reference for any question.
    """
    for name in REFERENCES:
        if name in table.walks and table.walks[name].known.any():
            return name
    raise UsageError(
        f"regret compares with the guide alone, but {table.dataset} has no walk {GUIDE_ONLY!r} on record. Collect "
        "one with cascade collect, or ask for error."
    )


def has_reference(table: Questions) -> bool:
    """Return whether the log has a reference for any question."""
    return any(name in table.walks and table.walks[name].known.any() for name in REFERENCES)


def ends_in_reference(table: Questions) -> bool:
    """Return whether the last step of the log is the reference itself, as in a ladder: its answer then has no regret.

    This is so if the reference is the walk of the last model. It is also so if each of several models gives one answer
    a step, and the guide's own walk cost the same and was right on the same questions as the last step.
    """
    if not has_reference(table):
        return False
    name = reference_walk(table)
    if name == LAST_ONLY:
        return True
    arrays, walk = table.arrays, table.walks[name]
    if arrays.horizon < 2 or arrays.answer.shape[2] != 1:
        return False
    rows = walk.known & (arrays.steps == arrays.horizon)
    same = (walk.right == arrays.correct[:, -1, 0]) & (walk.cost == arrays.cost[:, -1])
    return bool(rows.any() and same[rows].all())


def reference_known(table: Questions) -> Bools:
    """Return for which questions the log has the reference's answer: bool (n,).

    Raises:
        UsageError: it has none for any question.
    """
    return np.asarray(table.walks[reference_walk(table)].known, dtype=np.bool_)


def reference_right(table: Questions) -> Bools:
    """Return whether the reference alone is right, bool (n,); True where that is unknown, which is the safe side.

    It is also unknown where the reference kept three answers or more and the log does not say which of them are equal.
    """
    walk = table.walks[reference_walk(table)]
    return np.asarray(walk.right | ~walk.known | (~table.texts_known & (walk.leaves > 2)), dtype=np.bool_)


def check_identity(sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> None:
    """Raise UsageError if the single answer depends on which answers are equal, and the log does not record this.

    In such a log `EpisodeTable` counts all right answers as one answer: they would vote for each other, wrong ones not.

    Args:
        sample: the questions.
        abstain: whether how sure the cascade is of its answer matters too.
        kappa: the threshold, where only one will be looked at.

    Raises:
        UsageError: for some question the answer depends on it.
    """
    table, what, advice = sample.table, "Which one answer is served is decided by votes", ""
    many = untold(sample, kappa=kappa)
    if abstain and not many:
        what, advice = "How sure the cascade is of its answer depends on which answers equal it", "do not abstain, "
        many = untold(sample, abstain=True, kappa=kappa)
    if many:
        raise UsageError(
            f"{what} on {many} of {table.n} questions of {table.dataset}, and which of their answers are the same is "
            "not on record: the texts are not, or a model was told whether it was right. Log the answers' texts "
            f"(traces: content full), {advice}or promise coverage, which needs none."
        )


def untold(sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> int:
    """Return for how many questions the single answer depends on unrecorded equality of answers."""
    table = sample.table
    rows = np.flatnonzero(~table.texts_known)
    sure, found = table.sure[rows] if abstain else None, sample.levels.take(rows)
    present = (table.arrays.present & table.arrays.complete[:, None, None])[rows]
    voted = votes_decide(found, table.confidence[rows], sure=sure, kappa=kappa, present=present)
    return int(np.count_nonzero(voted))


class _Depths(NamedTuple):
    """Questions under a policy that stops after a fixed number of steps."""

    table: Questions
    levels: Levels
    is_reference: bool = False


def check_told(found: Sequence[Found], table: Questions) -> None:
    """Raise UsageError if nothing can be promised because records end early and texts are missing: both need repair.

    Args:
        found: the thresholds for a promise on the single answer.
        table: the calibration questions, as logged.

    Raises:
        UsageError: as `check_identity` does, of the answers after 1, 2, … steps.
    """
    if table.arrays.complete.all() or not any(one.refused is not None and one.needed_n is None for one in found):
        return
    try:
        check_identity(at_every_depth(table))
    except UsageError as error:
        early = int(np.count_nonzero(~table.arrays.complete))
        raise UsageError(f"{error} Of {early} questions the record ends early: log each to its last step.") from None


def at_every_depth(table: Questions) -> Scored:
    """Return the questions after 1, 2, … steps, every answer kept: the outcomes of policies that look at no signal."""
    onward = np.broadcast_to(-np.arange(1.0, table.arrays.horizon + 1), table.arrays.cost.shape)
    scores = ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)
    return _Depths(table, levels(table.arrays, scores))
