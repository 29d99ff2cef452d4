"""The data that a calibration reads from a log: a policy's scores on its steps, its questions, its reference.

`history_of` gives the part of a table that features may read: everything except the truth. The scores come from the
same policy object that serves, applied to the log instead of to live models. `about_questions` and similar functions
yield notes on repeated questions, missing calls, missing costs, and the reference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from cascade.calibration.samples import places
from cascade.conformal.arrays import Bools, Floats, Ints, Levels, ScoreArrays, levels, open_end, passed, rollout
from cascade.conformal.served import last_resort, serves, single
from cascade.conformal.split import critical_kappa
from cascade.episodes.schema import LAST_ONLY, identity
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.questions import (
    MOSTLY,
    REFERENCES,
    Found,
    ends_in_reference,
    has_reference,
    reference_right,
    reference_walk,
)
from cascade.money import Price
from cascade.policies.artifact import EVERYTHING, Threshold
from cascade.policies.base import SHARED_PLACE, FittedOn, History, Observation, Policy, Takes
from cascade.text import counted
from cascade.types import Candidate, Question, Step, Usage


@dataclass(frozen=True, slots=True)
class Sample:
    """Questions with a policy's scores; the table holds the policy's confidences if the policy has its own."""

    table: EpisodeTable
    scores: ScoreArrays
    levels: Levels
    is_reference: bool = False
    """Whether the policy asks the reference alone, so that the served answer is the one that regret compares with."""

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

    A policy sees the signals, the sources and confidences of the candidates, and which of them are the same answer. It
    does not see the texts, which a table does not have. At the end of an incomplete record it sees that a further step
    is possible.
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
    """Return the columns of a table that a policy may use: all but the truth, the ids and the recorded baselines."""
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
        table.questions,
    )


def scored(policy: Policy, table: EpisodeTable) -> tuple[EpisodeTable, ScoreArrays]:
    """Return a policy's scores on every step of every question, and the table with the confidences that it ranks by.

    A policy with `Policy.batch` scores the whole log at once and returns its own confidences if it has any. For other
    policies the table is returned unchanged, with `table_scores`. If a policy takes only some of the strategy's steps,
    or only the reference, the table has these steps (`taken`). If a policy decides before each call, the table has the
    steps that its complete walk buys.
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

    A walk that would buy a call that the log lacks ends there, as an incomplete record. If the threshold stops the walk
    at its last bought step, the answer served is still known.
    """
    many, walked = bought.shape[1], table.as_bought(bought)
    last = np.where(bought.any(axis=1), many - bought[:, ::-1].argmax(axis=1), 0)
    whole = bought[:, -1]
    steps = np.where(whole, walked.arrays.steps, np.minimum(last + 1, many))
    return replace(walked, arrays=replace(walked.arrays, steps=steps, complete=walked.arrays.complete & whole))


def taken(policy: Policy, table: EpisodeTable) -> EpisodeTable:
    """Return the steps of a log that a policy takes: all, unless the policy names some (`Takes`).

    A policy that buys in the listed order gets the steps before the first missing one (`EpisodeTable.as_listed`).

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
    """Raise UsageError if a log lacks a policy's inputs, or has fewer steps than the policy always takes.

    A log must have one of the signals that a policy reads, and all of those that it cannot do without.
    """
    wanted, needed = policy.reads, policy.needs
    known = [name for name, values in table.signals.items() if not np.isnan(values).all()]
    lacking = [name for name in needed if name not in known]
    if lacking or (wanted and not set(wanted) & set(known)):
        names, has = lacking or list(wanted), ", ".join(known) or "none"
        joined = (" and " if lacking else " or ").join(names)
        raise UsageError(
            f"The policy reads {joined}, but {table.dataset} has no such signal; it has: {has}. "
            "Name it in the log as the policy does, or fit one to the signals of this log: cascade fit LOG -o DIR."
        )
    if policy.depth > table.arrays.horizon:
        raise UsageError(
            f"The policy goes {policy.depth} steps deep; {table.dataset} was logged to {table.arrays.horizon}."
        )
    if policy.takes is not None and not policy.takes.calls:
        _check_taken(policy.takes, table)
    elif policy.fitted_on is not None:
        _check_fitted(policy.fitted_on, table)


def _check_fitted(fitted: FittedOn, table: EpisodeTable) -> None:
    """Raise UsageError if a log has other steps or other candidates than a policy was fitted on."""
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
    strange = fitted.strangers(table.sources)
    if strange:
        raise UsageError(
            f"The policy was fitted on answers of {' and '.join(fitted.sources)}; {table.dataset} has answers of "
            f"{' and '.join(strange)}.{advice}"
        )


def _check_taken(takes: Takes, table: EpisodeTable) -> None:
    """Raise UsageError if a log lacks the part of the strategy that a policy takes."""
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
    # Plain lists, because reading single numbers from arrays would take most of the time.
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


# --- The outcomes of a policy on logged questions, each at its own threshold, for evaluations and certificates ---


@dataclass(frozen=True, slots=True)
class Played:
    """The outcomes of a method on n questions, float64 (n,) each: means if the method draws at random.

    Attributes:
        covered: whether a right answer is kept, or none of the logged answers is right; 0..1.
        in_set: whether a right answer is kept; 0..1.
        right: whether the single answer served is right; 0..1.
        cost: nano-USD.
        length: steps paid.
        leaves: answers kept, repetitions counted.
        distinct: different answers kept.
        abstained: whether nothing is served because the confidence is too low; 0..1.
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

    If everything is kept, the scores do not matter. If the confidence of the best answer is below the bar, nothing is
    served (`single.serves`). If nothing is kept, the best of all answers is served (`single.last_resort`). For an
    incomplete record the outcomes cover the part that is certain (`arrays`).
    """
    each = _each(table, thresholds)
    kappa = np.array([one.kappa for one in each], dtype=np.float64)
    below = np.array([-np.inf if one.abstain_below is None else one.abstain_below for one in each], dtype=np.float64)
    found = _levels_at(table, scores, each)
    did = rollout(table.arrays, found, kappa)
    paid = passed(found.reach, kappa)
    length = did.length if table.bought is None else (paid & table.bought).sum(axis=1)
    best = single(table.arrays, found, table.confidence, kappa, sure=table.sure)
    served = serves(best.sure, below)
    right = np.where(did.leaves > 0, best.right, last_resort(table.arrays, table.confidence))
    return played_of(did.covered, did.in_set, right & served, did.cost, length, did.leaves, did.distinct, ~served)


def cut_short(table: EpisodeTable, scores: ScoreArrays, thresholds: Threshold | Sequence[Threshold]) -> Bools:
    """Return for which questions a policy asks for a step that the log lacks: bool (n,), arguments as in `play`.

    What it serves there, and at what cost, is unknown; `play` covers the part that is certain. In a strategy whose
    steps name their parents it may also be a question whose walk stops just where the record ends.
    """
    each, arrays = _each(table, thresholds), table.arrays
    kappa = np.array([one.kappa for one in each], dtype=np.float64)
    ended = passed(_levels_at(table, scores, each).reach, kappa) & open_end(arrays)
    if arrays.parents is None:
        whole = np.array([one.keeps_everything for one in each])
        best = np.where(arrays.present & ~np.isnan(scores.candidates), scores.candidates, -np.inf).max(axis=2)
        there, onward = arrays.present.any(axis=2), np.where(np.isnan(scores.next), np.inf, scores.next)
        ended &= whole[:, None] | passed(onward, kappa) | ~there | (onward > best)
    return np.asarray(ended.any(axis=1), dtype=np.bool_)


def _each(table: EpisodeTable, thresholds: Threshold | Sequence[Threshold]) -> Sequence[Threshold]:
    each = [thresholds] * table.n if isinstance(thresholds, Threshold) else thresholds
    if len(each) != table.n:
        raise UsageError(f"There are {len(each)} thresholds for {table.n} questions; give one, or one for each.")
    return each


def _levels_at(table: EpisodeTable, scores: ScoreArrays, each: Sequence[Threshold]) -> Levels:
    """Return the levels of the scores; where a threshold keeps everything, the scores do not matter."""
    whole = np.flatnonzero([one.keeps_everything for one in each])
    if whole.size:
        scores = ScoreArrays(scores.candidates.copy(), scores.next.copy())
        scores.candidates[whole], scores.next[whole] = np.inf, np.inf
    return levels(table.arrays, scores)


def play_found(sample: Sample, found: Sequence[Found]) -> Played:
    """Return a policy's results at the thresholds found, each question at that of its segment, else keeping all."""
    place = places([one.segment for one in found], sample.table)
    each = [*(Threshold(one.kappa, one.keeps_everything, one.abstain_below) for one in found), EVERYTHING]
    return play(sample.table, sample.scores, [each[number] for number in place.tolist()])


def play_everything(sample: Sample) -> Played:
    """Return the outcomes of keeping every answer of every step."""
    return play(sample.table, sample.scores, EVERYTHING)


class Realised(NamedTuple):
    """Means over questions.

    Attributes:
        n: the number of questions.
        coverage: share with a right answer kept, or without any right answer.
        in_set: share with a right answer kept.
        error: share whose single answer is wrong or missing, abstentions not counted.
        abstained: share for which nothing is served because the confidence is too low.
        cost_nano_usd: mean cost of the questions whose costs are all known; None if these are at most half.
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
    """Return the means over a table's questions, or those in `rows`, bool (n,); None if there are none."""
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


# --- which rows are one question, and which model is the reference ---


def about_questions(tables: Sequence[EpisodeTable]) -> Iterator[str]:
    """Yield notes on questions of a log that count as one although they look different."""
    blank = Counter(name for table in tables for name in table.questions)[identity("")]
    if blank > 1:
        yield (
            f"the column question is empty in {blank:,} episodes, so they count as one question: fill it in, or "
            "leave it null and give each question an episode_id"
        )
    spelled = {one for table in tables for one in zip(table.questions, table.spelled, strict=True)}
    likes = [many for name, many in Counter(name for name, _ in spelled).items() if many > 1 and name != identity("")]
    if likes:
        yield (
            f"{sum(likes):,} questions are near-duplicates, which differ only in case, blanks, punctuation or Unicode "
            f"form: they are kept together and count as {counted(len(likes), 'question')}. If other questions belong "
            "together (one document, one user), name that in the column group"
        )


def about_gaps(tables: Sequence[EpisodeTable]) -> Iterator[str]:
    """Yield a note on each step that the log lacks although it has later ones, with the number of questions."""
    for table in tables:
        if table.bought is None:
            continue
        unasked = ~table.bought & (np.arange(table.arrays.horizon) < table.arrays.steps[:, None])
        for at, many in enumerate(unasked.sum(axis=0)):
            if many:
                name = table.step_names[at]
                yield (
                    f"{many:,} of {table.n:,} questions have no logged call of {name}: if a policy asks {name} on such "
                    "a question, the question counts against the promise. Log every model's answer, or leave these "
                    "questions out"
                )


_OF_OFFERS = frozenset({"p_yes", "judge_share", "answer_share"})
"""Signals of a call that reads other calls, or of one of several calls to the same model."""
_OF_ROUNDS = frozenset({"base", "guide"})
"""The roles of the models in a strategy of rounds; other strategies have other roles."""


def about_parents(tables: Sequence[EpisodeTable]) -> Iterator[str]:
    """Yield a note on each data set that looks like a list of offers but does not record what each call reads."""
    for table in tables:
        if table.parents is not None or not any(table.calls) or table.arrays.answer.shape[2] > 1:
            continue
        asked = [one for one in table.calls if one is not None]
        models = [one.model for one in asked]
        if any(one.role in _OF_ROUNDS for one in asked):
            continue  # a round of base and guide whose log shows one answer
        known = {name for name, values in table.signals.items() if not np.isnan(values).all()}
        if table.arrays.horizon > 1 and (len({*models}) < len(models) or known & _OF_OFFERS):
            yield (
                f"the log {table.dataset} does not say what its calls read (column parents): the steps "
                f"{', '.join(table.step_names)} were taken for calls that do not read each other, as in a ladder. If a "
                "call reads others, as a judge does, write the numbers of their steps into parents, as in [1], and [] "
                "for a call that reads none"
            )


def about_reference(table: EpisodeTable) -> Iterator[str]:
    """Yield notes on which model is the reference of savings and of a promise of regret, and reasons to doubt it."""
    if not has_reference(table):
        return
    walk = reference_walk(table)
    name = _reference_model(table)
    last = "the last model of the ladder" if table.parents is None else "the last offer of the list"
    who = last if walk == LAST_ONLY else "the guide, asked alone"
    why = "the log has no walk of a guide alone" if walk == LAST_ONLY else f"the log has the walk {walk!r}"
    named = who if name is None else f"{name}, {who}"
    yield f"the reference is {named}, because {why}"
    yield from _doubts(table, name or who)


def _reference_model(table: EpisodeTable) -> str | None:
    last = table.step_models[-1] if table.step_models else None
    if reference_walk(table) == LAST_ONLY or ends_in_reference(table):
        return last
    names = table.models.get("guide", ())
    return names[0] if len(names) == 1 else None


def _doubts(table: EpisodeTable, reference: str) -> Iterator[str]:
    """Yield reasons why the reference may not be the most expensive model of a ladder, or not the best."""
    if not table.step_models or reference not in table.step_models:
        return
    costs = {name: _mean(table, at) for at, name in enumerate(table.step_models) if name is not None}
    unknown = [name for name, cost in costs.items() if cost is None]
    if unknown:
        yield (
            f"the log has no cost of {' and '.join(unknown)}, so the order of the models by cost is unknown: check "
            f"that {reference} is the model to compare with; --role MODEL=guide of cascade import names another"
        )
    own, right = costs[reference], float(reference_right(table).mean())
    for at, name in enumerate(table.step_models):
        cost, better = costs.get(name or ""), float(table.arrays.correct[:, at].any(axis=1).mean()) > right
        if cost == 0 and (name == reference or better):
            more = "" if name == reference else f", and it is right more often than {reference}"
            yield (
                f"the cost of {name} is 0 in this log{more}: if it is unknown, leave it empty; --role MODEL=guide of "
                "cascade import names the reference"
            )
        elif cost is not None and own is not None and cost > own > 0:
            yield f"the reference costs less than {name}: check that {reference} is the model to compare with"


def _mean(table: EpisodeTable, at: int) -> float | None:
    paid = table.paid[:, at]
    known = ~np.isnan(paid)
    return float(paid[known].mean()) if known.any() else None


# --- How many questions of a log have an unknown cost, and the cost of the reference ---


def unpriced(table: EpisodeTable) -> int:
    """Return the number of questions with an unknown cost."""
    return int(np.count_nonzero(~table.priced))


def priced_said(table: EpisodeTable) -> Iterator[str]:
    """Yield a note if figures in money are of some questions only, because the log lacks the costs of the others."""
    many = unpriced(table)
    if many and table.shows_cost:
        yield f"{lacking_cost(many)}: every figure in money is a mean over the other {table.n - many:,}"
    elif many:
        yield (
            f"{lacking_cost(many)}, of {table.n:,}: no figure in money is shown, since that needs the costs of more "
            "than half"
        )


def lacking_cost(many: int) -> str:
    """Return a note on the number of questions without a cost."""
    return f"{counted(many, 'question')} {'lacks' if many == 1 else 'lack'} a cost in the log"


def reference_cost(table: EpisodeTable) -> float | None:
    """Return the reference's mean cost, nano-USD, over the questions whose costs are known.

    None unless the log has the reference and its cost for most questions.
    """
    held = (table.walks[name] for name in REFERENCES if name in table.walks)
    walk = next((one for one in held if one.known.mean() > MOSTLY), None)
    if walk is None or not table.shows_cost:
        return None
    rows = walk.known & table.priced
    return float(walk.cost[rows].mean()) if rows.any() else None


# --- Whether a log's costs match the prices of the cascade that will serve: a promise about money holds only at those

_ROUNDING = 100
"""Imported logs have rounded costs: two costs within 1 %, or one nano-dollar, count as equal."""


class Mispriced(NamedTuple):
    """The calls of one model whose logged cost differs from that at the given prices.

    Attributes:
        model: the model's name.
        calls: the number of such calls.
        logged_nano_usd: the logged cost of one of them, nano-USD.
        priced_nano_usd: the cost of the same call at the given price, nano-USD.
    """

    model: str
    calls: int
    logged_nano_usd: int
    priced_nano_usd: int

    def describe(self) -> str:
        """Return the difference as a sentence."""
        return (
            f"{self.model}: {self.calls} calls; one is logged with {self.logged_nano_usd / 1e9:.6g} USD and costs "
            f"{self.priced_nano_usd / 1e9:.6g} USD at the configured price"
        )


def mispriced(rows: Iterable[Mapping[str, Any]], prices: Mapping[str, Price | None]) -> list[Mispriced]:
    """Return the models whose logged costs differ from the given prices, in the order of the log.

    Rows without tokens or costs are skipped, and so are models without a price.
    """
    found: dict[str, Mispriced] = {}
    for row in rows:
        price, logged = prices.get(row["model"] or ""), row["cost_nano_usd"]
        if price is None or logged is None:
            continue
        usage = Usage(*(row[name] for name in _TOKENS))
        priced = price.cost_nano_usd(usage)
        if priced is None or abs(priced - logged) <= max(1, logged // _ROUNDING):
            continue
        first = found.setdefault(row["model"], Mispriced(row["model"], 0, logged, priced))
        found[row["model"]] = first._replace(calls=first.calls + 1)
    return list(found.values())


_TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
