"""A live policy's scores on logged steps: the same policy object that serves, shown the log instead of models.

`history_of` makes of a table what features read of it: all but the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from cascade.calibration.samples import places
from cascade.conformal.arrays import Bools, Floats, Ints, Levels, ScoreArrays, levels, passed, rollout
from cascade.conformal.served import last_resort, serves, single
from cascade.conformal.split import critical_kappa
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.questions import Found
from cascade.guarantees.reference import reference_walk
from cascade.policies.artifact import EVERYTHING, Threshold
from cascade.policies.base import SHARED_PLACE, FittedOn, History, Observation, Policy, Takes
from cascade.types import Candidate, Question, Step


@dataclass(frozen=True, slots=True)
class Sample:
    """Questions with a policy's scores; the table holds the policy's confidences if the policy has its own."""

    table: EpisodeTable
    scores: ScoreArrays
    levels: Levels
    is_reference: bool = False
    """Whether the policy asks the reference alone, so that what is served is what regret is held against."""

    def critical(self) -> Floats:
        """Return the critical values, float64 (n,)."""
        return critical_kappa(self.table.arrays, self.levels)

    def take(self, rows: Ints) -> Sample:
        """Return the chosen questions."""
        return replace(self, table=self.table.take(rows), scores=self.scores.take(rows), levels=self.levels.take(rows))


def sample_of(table: EpisodeTable, policy: Policy) -> Sample:
    """Return questions with a policy's scores on them."""
    judged, scores = scored(policy, table)
    takes = policy.takes
    return Sample(judged, scores, levels(judged.arrays, scores), takes is not None and takes.reference)


def table_scores(policy: Policy, table: EpisodeTable) -> ScoreArrays:
    """Return a policy's scores on every step of every question, in O(nT) calls of the policy.

    A policy sees the signals, the sources and confidences of the candidates, and which of them are the same answer;
    not the texts, which a table does not hold. At the end of a record that is not complete it is told that a further
    step is possible.
    """
    shape = table.arrays.answer.shape
    candidates, onward = np.full(shape, -np.inf), np.full(shape[:2], -np.inf)
    present = table.arrays.present
    for row in range(table.n):
        steps = _steps(table, row)
        question = Question(table.ids[row])
        horizon = len(steps) if table.arrays.complete[row] else len(steps) + 1
        for t in range(len(steps)):
            found = policy.scores(Observation(question, steps[: t + 1], horizon))
            candidates[row, t, present[row, t]] = found.candidates
            onward[row, t] = found.next
    return ScoreArrays(candidates, onward)


def history_of(table: EpisodeTable) -> History:
    """Return what a policy may look at of a table: all but the truth, the ids and the other ways to answer."""
    arrays = table.arrays
    return History(
        table.sources,
        arrays.answer,
        table.texts_known,
        table.confidence,
        table.signals,
        table.asked,
        table.paid,
        table.tokens,
        arrays.steps,
        arrays.complete,
        table.bought,
    )


def scored(policy: Policy, table: EpisodeTable) -> tuple[EpisodeTable, ScoreArrays]:
    """Return a policy's scores on every step of every question, and the table with the confidences that it ranks by.

    A policy that can score a whole log at once does (`Policy.batch`), and gives confidences where it has its own;
    otherwise the table comes back as it is, with `table_scores`. Of a policy that takes some of the strategy's steps
    only, or the reference alone, the table has these steps (`taken`); of one that decides before each call, those that
    its walk to the end buys.
    """
    table = taken(policy, table)
    found = policy.batch(history_of(table))
    if found is None:
        return table, table_scores(policy, table)
    if found.bought is not None:
        table = _walked(table, found.bought)
    return table if found.confidence is None else replace(table, confidence=found.confidence), found.scores


def _walked(table: EpisodeTable, bought: Bools) -> EpisodeTable:
    """Return a log as a policy walks that leaves steps out.

    A walk that would buy what is not on record ends there, incomplete, behind the last step that it bought: where its
    threshold stops it at that step, what it serves is known.
    """
    many, walked = bought.shape[1], table.as_bought(bought)
    last = np.where(bought.any(axis=1), many - bought[:, ::-1].argmax(axis=1), 0)
    whole = bought[:, -1]
    steps = np.where(whole, walked.arrays.steps, np.minimum(last + 1, many))
    return replace(walked, arrays=replace(walked.arrays, steps=steps, complete=walked.arrays.complete & whole))


def taken(policy: Policy, table: EpisodeTable) -> EpisodeTable:
    """Return the part of a log that a policy walks over: all of it, unless the policy names what it takes (`Takes`).

    One that buys in the listed order walks up to the first step that is not on record (`EpisodeTable.as_listed`).

    A log that has as many steps as the policy takes was made by the policy itself, and is returned as it is.
    """
    takes = policy.takes
    if takes is None:
        return table.as_listed()
    if takes.calls:
        return table
    if takes.reference:
        return table.as_walked(reference_walk(table))
    return table.as_listed() if table.arrays.horizon == len(takes.steps) else table.only(takes.steps)


def check_fits(policy: Policy, table: EpisodeTable) -> None:
    """Refuse a log that lacks what a policy looks at, or has fewer steps than it always takes.

    A log must have one of the signals that a policy reads, and all of those that it cannot do without.

    Raises:
        UsageError: so it is.
    """
    wanted, needed = policy.reads, policy.needs
    known = [name for name, values in table.signals.items() if not np.isnan(values).all()]
    lacking = [name for name in needed if name not in known]
    if lacking or (wanted and not set(wanted) & set(known)):
        names, has = lacking or list(wanted), ", ".join(known) or "none"
        joined = (" and " if lacking else " or ").join(names)
        raise UsageError(
            f"The policy looks at {joined}, and {table.dataset} has no such signal; it has: {has}. "
            "Name it in the log as the policy does, or fit one to the signals of this log: cascade fit LOG -o DIR."
        )
    if policy.depth > table.arrays.horizon:
        raise UsageError(
            f"The policy goes {policy.depth} steps deep; {table.dataset} was logged to {table.arrays.horizon}."
        )
    if policy.takes is not None and not policy.takes.calls:
        _check_taken(policy.takes, table)
    elif policy.fitted_on is not None:
        _check_fitted(policy.fitted_on, policy.asks, table)


def _check_fitted(fitted: FittedOn, asks: Sequence[str], table: EpisodeTable) -> None:
    """Refuse a log of other steps or other candidates than a policy was fitted on."""
    rounds = fitted.sources == (SHARED_PLACE,) and sorted(table.sources) == ["base", "guide"]
    advice = (
        " It is for single calls, and these are rounds of two models: read the log as a ladder, ladder:LOG, or call by "
        "call, offers:LOG; of the demo log, take demo-ladder."
        if rounds
        else ""
    )
    if table.arrays.horizon > fitted.horizon:
        raise UsageError(
            f"The policy was fitted on {fitted.horizon} steps; {table.dataset} was logged to "
            f"{table.arrays.horizon}.{advice}"
        )
    if any(name not in table.asked for name in asks):
        raise UsageError(
            f"The policy looks at the questions' sentence embeddings, which {table.dataset} is without: "
            "episodes.embeddings.embedded puts them there."
        )
    strange = fitted.strangers(table.sources)
    if strange:
        raise UsageError(
            f"The policy was fitted on answers of {' and '.join(fitted.sources)}; {table.dataset} has answers of "
            f"{' and '.join(strange)}.{advice}"
        )


def _check_taken(takes: Takes, table: EpisodeTable) -> None:
    """Refuse a log that lacks the part of the strategy that a policy takes."""
    if takes.reference:
        reference_walk(table)
    elif table.arrays.horizon not in {len(takes.steps), takes.steps[-1]}:
        listed = ", ".join(map(str, takes.steps))
        raise UsageError(
            f"The policy takes the steps {listed} of a ladder of {takes.steps[-1]} models; {table.dataset} was logged "
            f"to {table.arrays.horizon}."
        )


def _steps(table: EpisodeTable, row: int) -> tuple[Step, ...]:
    """Return one question's steps as a policy sees them."""
    many = int(table.arrays.steps[row])
    # Plain lists: to pick single numbers out of arrays would take most of the time.
    answers, sure = table.arrays.answer[row, :many].tolist(), table.confidence[row, :many].tolist()
    signals = {name: values[row, :many].tolist() for name, values in table.signals.items()}
    return tuple(
        [
            Step(
                t + 1,
                _candidates(answers[t], table.sources, sure[t]),
                {name: _known(values[t]) for name, values in signals.items()},
            )
            for t in range(many)
        ]
    )


def _candidates(answers: Sequence[int], sources: Sequence[str], sure: Sequence[float]) -> tuple[Candidate, ...]:
    return tuple(
        [
            Candidate(f"answer {number}", source, source, _known(confidence))
            for number, source, confidence in zip(answers, sources, sure, strict=True)
            if number >= 0
        ]
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# --- What a policy does on logged questions, each at its own threshold: the figures of evaluations and certificates ---


@dataclass(frozen=True, slots=True)
class Played:
    """Per question, float64 (n,): probabilities where the way to answer is a chance, else 0 and 1.

    `covered`: a right answer is kept, or none of the log's answers is right. `in_set`: a right answer is kept. `right`:
    the single answer served is right. `cost` in nano-USD. `length` steps paid. `leaves`, `distinct` answers kept.
    `abstained`: nothing is served because the confidence is too low.
    """

    covered: Floats
    in_set: Floats
    right: Floats
    cost: Floats
    length: Floats
    leaves: Floats
    distinct: Floats
    abstained: Floats

    def take(self, rows: Ints | Bools) -> Played:
        """Return the chosen questions."""
        return Played(*(getattr(self, field.name)[rows] for field in fields(self)))


def played_of(*columns: Bools | Ints) -> Played:
    """Make a `Played` from its columns, in their order."""
    return Played(*(np.asarray(column, dtype=np.float64) for column in columns))


def play(table: EpisodeTable, scores: ScoreArrays, thresholds: Threshold | Sequence[Threshold]) -> Played:
    """Return the outcomes of a policy's scores at one threshold, or at a threshold for each question.

    If everything is kept, the scores do not matter. If the cascade is less sure of the best answer than the bar asks,
    nothing is served (`single.serves`). If nothing is kept, the best of all answers is served (`single.last_resort`).
    For an incomplete record the outcomes are the certain part (`arrays`).

    Raises:
        UsageError: a threshold is no number, or there are not as many as questions.
    """
    each = [thresholds] * table.n if isinstance(thresholds, Threshold) else thresholds
    if len(each) != table.n:
        raise UsageError(f"There are {len(each)} thresholds for {table.n} questions; give one, or one for each.")
    kappa = np.array([one.kappa for one in each], dtype=np.float64)
    below = np.array([-np.inf if one.abstain_below is None else one.abstain_below for one in each], dtype=np.float64)
    whole = np.flatnonzero([one.keeps_everything for one in each])
    if whole.size:
        scores = ScoreArrays(scores.candidates.copy(), scores.next.copy())
        scores.candidates[whole], scores.next[whole] = np.inf, np.inf
    found = levels(table.arrays, scores)
    did = rollout(table.arrays, found, kappa)
    paid = passed(found.reach, kappa)
    length = did.length if table.bought is None else (paid & table.bought).sum(axis=1)
    best = single(table.arrays, found, table.confidence, kappa, sure=table.sure)
    served = serves(best.sure, below)
    right = np.where(did.leaves > 0, best.right, last_resort(table.arrays, table.confidence))
    return played_of(did.covered, did.in_set, right & served, did.cost, length, did.leaves, did.distinct, ~served)


def play_found(sample: Sample, found: Sequence[Found]) -> Played:
    """Return what a policy does at the thresholds that were found, each question at that of its segment."""
    place = places([one.segment for one in found], sample.table)  # there is always one for all others
    each = [Threshold(one.kappa, one.keeps_everything, one.abstain_below) for one in found]
    return play(sample.table, sample.scores, [each[number] for number in place.tolist()])


def play_everything(sample: Sample) -> Played:
    """Return the outcomes of keeping every answer of every step."""
    return play(sample.table, sample.scores, EVERYTHING)


class Realised(NamedTuple):
    """Means over questions.

    Attributes:
        n: questions.
        coverage: share with a right answer kept, or none to be had.
        in_set: share with a right answer kept.
        error: share whose single answer is wrong or missing, abstentions not counted.
        abstained: share for which nothing is served for want of confidence.
        cost_nano_usd: mean cost of the questions whose costs are all known; None where they are not more than half.
        length: mean number of steps.
        set_size: mean number of different answers kept.
    """

    n: int
    coverage: float
    in_set: float
    error: float
    abstained: float
    cost_nano_usd: float | None
    length: float
    set_size: float


def realised(table: EpisodeTable, played: Played, rows: Bools | None = None) -> Realised | None:
    """Return the means over a table's questions, or some of them, bool (n,); None of none."""
    some, priced = (played, table.priced) if rows is None else (played.take(rows), table.priced[rows])
    n = some.covered.size
    if not n:
        return None
    return Realised(
        n,
        coverage=float(some.covered.mean()),
        in_set=float(some.in_set.mean()),
        error=float((1 - some.right - some.abstained).mean()),
        abstained=float(some.abstained.mean()),
        cost_nano_usd=float(some.cost[priced].mean()) if table.shows_cost and priced.any() else None,
        length=float(some.length.mean()),
        set_size=float(some.distinct.mean()),
    )
