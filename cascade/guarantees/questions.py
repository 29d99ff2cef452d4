"""The inputs and results of a calibration: logged questions, their truth, thresholds; and the reference of a log.

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
        rate: the share of the questions that was drawn for review.
        cautions: notes on a comparator that was chosen by default, a sentence or two each.
    """

    reference: str
    comparator: str
    asked: str | None = None
    rate: float = 1.0
    cautions: tuple[str, ...] = ()

    @property
    def good(self) -> str:
        """The meaning of "right", as a verb phrase."""
        return "answered as the reference does" if self.asked is None else "answered without loss"

    @property
    def right(self) -> str:
        """The meaning of "right", as an adjective phrase."""
        return "equal to the reference's" if self.asked is None else "without loss"

    def assumptions(self) -> Iterator[str]:
        """Yield the assumptions of a certificate that follow from how "right" was determined, a sentence each."""
        yield f"Whether an answer equals the reference's is judged by {self.comparator}."
        yield from self.cautions
        if self.asked is None:
            return
        yield "Answers that it calls equal lose nothing: two equal answers are both right or both wrong."
        yield (
            "People judged whether answers that differ lose something. A keyed hash drew each question for this with "
            f"probability {self.rate:g}, before anybody looked; a drawn question without a judgement counts as lost."
        )


class Labels(NamedTuple):
    """The questions for which judgements by people count.

    Attributes:
        drawn: bool (n,), whether the question was drawn for review.
        unsaid: bool (n,), whether a differing output has no judgement, so that it counts as lost.
        judged: bool (n, T, m), answers that differ from the reference's and were judged.
        unjudged: bool (n, T, m), answers that differ from the reference's and were not judged.
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
        """Estimate the probability that an unjudged answer is a loss, from those judged: (losses + 1) / (judged + 2).

        `correct`, bool (n, T, m), marks the answers that lose nothing.
        """
        return (float((self.judged & ~correct).sum()) + 1) / (float(self.judged.sum()) + 2)


class Walk(Protocol):
    """The outcomes of one fixed method on the same questions, such as the guide alone.

    Attributes:
        known: bool (n,), whether the log has the walk; otherwise the other arrays have no meaning.
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
        dataset: the name of the questions.
        n: how many there are.
        arrays: the answers, which are right, the costs, the number of logged steps, and whether these are all steps.
        confidence: float64 (n, T, m), the confidences that rank the candidates; NaN = unknown.
        sure: float64 (n, T, m), how sure the cascade is of each candidate, for abstaining; NaN = unknown.
        texts_known: bool (n,), whether answers with equal numbers are known to have the same text.
        cost_known: whether the cost of every step is known.
        segments: the segment of each question; None for a question without one.
        walks: other ways to answer the same questions, by name.
        truth: the meaning of "right" without labels; None if labels decide.
        labels: the questions with judgements by people; None if people did not judge.
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
    """Questions with a policy's scores.

    Attributes:
        table: the questions, with the policy's confidences if it has its own.
        levels: the thresholds from which each step is paid and each answer kept.
        is_reference: whether the policy asks the reference alone.
    """

    @property
    def table(self) -> Questions: ...
    @property
    def levels(self) -> Levels: ...
    @property
    def is_reference(self) -> bool: ...


Path: TypeAlias = tuple[PathPoint, ...]
"""Points to test in this order, fixed without the calibration questions."""


class Found(NamedTuple):
    """A threshold and the details of its calibration.

    Attributes:
        segment: the segment that it serves; None: all questions.
        rows: bool (n,), the calibration questions that it serves.
        n: the number of questions that set it.
        kappa: the threshold.
        k: its rank; None if it is not a ranked critical value.
        misses: the number of calibration questions that break the promise at the threshold; None if not counted.
        keeps_everything: whether the questions were too few, so that everything is kept.
        abstain_below: nothing is served below this confidence; None without abstention.
        needed_n: how many questions would have been enough, if they were too few and the number is known.
        chance: the probability that `needed_n` questions are enough; None if certain or unknown.
        refused: why nothing can be promised, in words; None if it can.
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
    """Which questions break a promise at its threshold, bool (n,) each.

    Attributes:
        missed: whether the question breaks the promise if every missing record counts as a miss.
        surely: whether it breaks the promise whatever the missing records would say.
        counted: whether the promise covers the question for certain.
    """

    missed: Bools
    surely: Bools
    counted: Bools


def everywhere(n: int) -> Bools:
    """Return a mask that selects all of n questions: bool (n,)."""
    return np.ones(n, dtype=np.bool_)


# --- the reference ---

REFERENCES = (GUIDE_ONLY, LAST_ONLY)
"""The walks that can be the reference; the first one in the log is used."""
MOSTLY = 0.5
"""A walk gives the reference's cost only if the log has it for more than this share of the questions."""


def reference_walk(table: Questions) -> str:
    """Return the name of the walk that is the reference."""
    for name in REFERENCES:
        if name in table.walks and table.walks[name].known.any():
            return name
    raise UsageError(
        f"regret compares with the guide alone, but {table.dataset} has no walk {GUIDE_ONLY!r}. Collect one with "
        "cascade collect, or ask for error."
    )


def has_reference(table: Questions) -> bool:
    """Return whether the log has a reference for any question."""
    return any(name in table.walks and table.walks[name].known.any() for name in REFERENCES)


def ends_in_reference(table: Questions) -> bool:
    """Return whether the last step of the log is the reference itself, as in a ladder: its answer then has no regret.

    This is true if the reference is the walk of the last model. It is also true if each of several models gives one
    answer a step, and the guide's own walk cost the same and was right on the same questions as the last step.
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
    """Return the questions for which the log has the reference's answer: bool (n,)."""
    return np.asarray(table.walks[reference_walk(table)].known, dtype=np.bool_)


def reference_right(table: Questions) -> Bools:
    """Return whether the reference alone is right: bool (n,); True if unknown, which is conservative.

    It is also unknown if the reference kept three answers or more and the log does not say which of them are equal.
    """
    walk = table.walks[reference_walk(table)]
    return np.asarray(walk.right | ~walk.known | (~table.texts_known & (walk.leaves > 2)), dtype=np.bool_)


def check_identity(sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> None:
    """Raise UsageError if the single answer depends on which answers are equal, and the log does not record this.

    In such a log `EpisodeTable` counts all right answers as one answer: right answers would vote for each other, and
    wrong ones would not. With `abstain`, the confidence of the answer matters too. `kappa` restricts the check to one
    threshold.
    """
    table, what, advice = sample.table, "Votes decide which answer is served", ""
    many = untold(sample, kappa=kappa)
    if abstain and not many:
        what, advice = "The confidence of the answer depends on which answers equal it", "do not abstain, "
        many = untold(sample, abstain=True, kappa=kappa)
    if many:
        raise UsageError(
            f"{what} on {many} of {table.n} questions of {table.dataset}, but the log does not show which of their "
            f"answers are the same: it lacks the texts, or a model was told whether it was right. Log the "
            f"answers' texts (traces: content full), {advice}or promise coverage, which needs no texts."
        )


def untold(sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> int:
    """Return the number of questions whose single answer depends on the unrecorded equality of answers."""
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
    """Raise UsageError if nothing can be promised because records end early and texts are missing; name both causes."""
    if table.arrays.complete.all() or not any(one.refused is not None and one.needed_n is None for one in found):
        return
    try:
        check_identity(at_every_depth(table))
    except UsageError as error:
        early = int(np.count_nonzero(~table.arrays.complete))
        raise UsageError(f"{error} The records of {early} questions end early: log each to its last step.") from None


def at_every_depth(table: Questions) -> Scored:
    """Return the questions after 1, 2, … steps, every answer kept: the outcomes of policies that read no signal."""
    onward = np.broadcast_to(-np.arange(1.0, table.arrays.horizon + 1), table.arrays.cost.shape)
    scores = ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)
    return _Depths(table, levels(table.arrays, scores))
