"""Episodes as one table of arrays: what fitting, calibrating, evaluating and comparing read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, Parents, StepArrays
from cascade.episodes.schema import question_id
from cascade.guarantees.questions import Labels, Truth
from cascade.policies.design import PREFIX, Directions, Embedder

if TYPE_CHECKING:  # of logs that are read from rows
    from cascade.episodes.asked import Asker
    from cascade.episodes.own_difference import OwnDifference
    from cascade.policies.scope import Kind


@dataclass(frozen=True, slots=True)
class Walk:
    """The outcomes of one fixed way to answer on the same questions: the guide alone, or a prompted model that decides.

    Attributes:
        known: bool (n,), whether this way was logged for the question; if not, the other arrays mean nothing.
        covered: bool (n,), whether a right answer is among those kept.
        right: bool (n,), whether the answer served is right.
        cost: int64 (n,), nano-USD.
        length: int64 (n,), steps.
        leaves, distinct: int64 (n,), answers kept, and how many of them differ.
    """

    known: Bools
    covered: Bools
    right: Bools
    cost: Ints
    length: Ints
    leaves: Ints
    distinct: Ints

    def take(self, rows: Ints | Bools) -> Walk:
        """Return the chosen questions."""
        return Walk(*(getattr(self, name)[rows] for name in self.__slots__))


_MOSTLY = 0.5
"""Costs are shown only if they are known of more than this share of the questions."""

AGREEMENT = "agrees_with_earlier"
"""The signal of a step that depends on the steps before it: the share of earlier answers that are the same."""


def _agreement(arrays: StepArrays, texts_known: Bools) -> Floats:
    """Return the share of earlier answers that equal each step's one answer, float64 (n, T); NaN = unknown."""
    first, found = arrays.answer[:, :, 0], np.full(arrays.cost.shape, np.nan)
    for t in range(1, arrays.horizon):
        earlier = first[:, :t] >= 0
        many = np.count_nonzero(earlier, axis=1)
        same = np.count_nonzero(earlier & (first[:, :t] == first[:, t, None]), axis=1)
        known = (first[:, t] >= 0) & (many > 0) & texts_known
        found[known, t] = same[known] / many[known]
    return found


def _not_given() -> Floats:
    return np.empty((0, 0))


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """Logged questions with all their steps.

    Attributes:
        dataset: the name of the questions.
        ids: each episode's id.
        groups: each question's group, which a split must not cut (a document, a user; by default the question itself).
        sources: the m places of a step's candidates ("base", "guide"; "answer" in a ladder).
        arrays: answers, truth and costs.
        confidence: float64 (n, T, m), the strategy's own estimate that a candidate is right; NaN = unknown.
        signals: float64 (n, T) by name; NaN = unknown.
        walks: other ways to answer the same questions, by name.
        cost_known: False where any cost is unknown; then only the costs of `priced` questions may be shown.
        questions: the same for near-duplicates of one question (`schema.identity` of text and context); an episode's
            id where its text is not known, or where none are given.
        models: the names of the models that were asked in each role ("base", "guide", a rung), sorted; a role of which
            the log does not say it is left out.
        quality: float64 (n, T, m) in 0..1, how good a candidate is (`episodes.quality`), NaN = unknown; None where
            it was not measured.
        asked: float64 (n,) by name, numbers of the question's text (`policies.views`); NaN where the log
            lacks it.
        tokens: float64 (n, T), input and output tokens of each step; NaN = unknown, as all are if none are given.
        paid: float64 (n, T), what each step cost in nano-USD, NaN = unknown: `arrays.cost` has 0 there. If it is not
            given, it is `arrays.cost` where `cost_known`, and else unknown.
        texts_known: bool (n,), whether answers of one number have the same text; False where the log keeps no texts,
            or none that can be compared: there all right answers are taken for one (`episodes.tabulate`).
        step_models: of a ladder the model that alone answered each of its T steps, None where several did or the log
            does not say; empty for other strategies. It tells a ladder from the same models in another order.
        calls: who alone was asked in each of T steps, in which role and what for, None where several were; empty where
            the steps are no calls on record.
        segments: what certificates are made for one by one, each (a tenant, a task); None where a question is of none.
        spelled: the same for the same question as it is spelled (`schema.question_id`): what releases before 0.6 knew
            questions by. By default as `questions`.
        drawn_from: int64 (n,), how many questions of its group each row was drawn from; 1 where nothing was drawn.
        echoes: by model, the names that its replies bore, sorted; a model of which the log does not say it is left out.
        priced: bool (n,), whether the log has every cost of the question, walks included. By default as `cost_known`.
        truth: what a right answer is compared with (`episodes.reference`); None where labels say what is right.
        parents: of each of the T steps the numbers of those that its content depends on; None for a chain. `arrays` has
            the steps in the order in which they are listed, one bought after the other: that is exact for any parents,
            since they are all earlier. `graph` has them as nodes of their own.
        labels: for which questions people's judgements count (`review.labels`); None where the truth is not theirs.
        own: how often the reference differs from itself, in the whole log; None where it answered no request twice.
        uncached: float64 (n, T), what each step would have cost had nothing of its prompts been in a cache, nano-USD;
            NaN = unknown. None where the log tells of no tokens read from a cache.
        bought: bool (n, T), the steps that were bought, on record or in the walk of a policy (`as_bought`), where some
            before the last were left out; None: all.
        kinds: what is special about each request (`policies.scope`); None where it is not on record.
    """

    dataset: str
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    sources: tuple[str, ...]
    arrays: StepArrays
    confidence: Floats
    signals: Mapping[str, Floats]
    walks: Mapping[str, Walk]
    cost_known: bool = True
    questions: tuple[str, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quality: Floats | None = None
    asked: Mapping[str, Floats] = field(default_factory=dict)
    tokens: Floats = field(default_factory=_not_given)
    paid: Floats = field(default_factory=_not_given)
    texts_known: Bools = field(default_factory=lambda: np.zeros((0,), dtype=np.bool_))
    step_models: tuple[str | None, ...] = ()
    segments: tuple[str | None, ...] = ()
    spelled: tuple[str, ...] = ()
    drawn_from: Ints = field(default_factory=lambda: np.zeros((0,), dtype=np.int64))
    echoes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    priced: Bools = field(default_factory=lambda: np.zeros((0,), dtype=np.bool_))
    truth: Truth | None = None
    parents: Parents | None = None
    labels: Labels | None = None
    own: OwnDifference | None = None
    uncached: Floats | None = None
    bought: Bools | None = None
    kinds: tuple[Kind | None, ...] = ()
    calls: tuple[Asker | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.questions:
            object.__setattr__(self, "questions", self.ids)
        if not self.spelled:
            object.__setattr__(self, "spelled", self.questions)
        if not self.kinds:
            object.__setattr__(self, "kinds", (None,) * len(self.ids))
        if not self.segments:
            object.__setattr__(self, "segments", (None,) * len(self.ids))
        if not self.drawn_from.size:
            object.__setattr__(self, "drawn_from", np.ones(len(self.ids), dtype=np.int64))
        if not self.priced.size:
            object.__setattr__(self, "priced", np.full(len(self.ids), self.cost_known, dtype=np.bool_))
        cost, unknown = self.arrays.cost, np.full(self.arrays.cost.shape, np.nan)
        beyond = np.arange(cost.shape[1]) >= self.arrays.steps[:, None]
        if not self.tokens.size:
            object.__setattr__(self, "tokens", unknown)
        if not self.paid.size:
            paid = np.where(beyond, np.nan, cost) if self.cost_known else unknown
            object.__setattr__(self, "paid", paid)
        if not self.texts_known.size:
            object.__setattr__(self, "texts_known", np.zeros(cost.shape[0], dtype=np.bool_))

    @property
    def n(self) -> int:
        """The number of questions."""
        return self.arrays.n

    def has(self, step: int) -> Bools:
        """Return whether a step, numbered from 1, is on record, bool (n,)."""
        there = self.arrays.steps >= step
        return there if self.bought is None else there & self.bought[:, step - 1]

    @property
    def graph(self) -> StepArrays:
        """The steps as nodes, each bought if its parents are and its own score is high enough (`conformal.rollout`)."""
        return replace(self.arrays, parents=self.parents)

    @property
    def step_names(self) -> tuple[str, ...]:
        """What each of the T steps is called: the offer or the model that is asked, else "step" and its number."""
        calls = self.calls or (None,) * self.arrays.horizon
        return tuple([f"step {at}" if one is None else one.role for at, one in enumerate(calls, 1)])

    @property
    def shows_cost(self) -> bool:
        """Whether a cost may be shown: that of the `priced` questions, if they are more than half."""
        return self.cost_known or bool(self.priced.mean() > _MOSTLY if self.n else False)

    def costed(self) -> EpisodeTable:
        """Return the questions with all costs known, if they are more than half; else the unchanged table."""
        if self.cost_known or not self.shows_cost:
            return self
        return replace(self.take(self.priced), cost_known=True)

    @property
    def sure(self) -> Floats:
        """The cascade's confidence in each answer: float64 (n, T, m), NaN = unknown. `engine.sure_of`, on a log."""
        replied = self.signals.get("reply_mean_logprob")
        if replied is None or "p_yes" in self.signals:
            return self.confidence
        present = self.arrays.present
        alone = present & (present.sum(axis=2, keepdims=True) == 1) & np.isnan(self.confidence)
        shares = np.array([math.exp(one) for one in np.minimum(replied, 0.0).ravel().tolist()]).reshape(replied.shape)
        return np.where(alone, shares[:, :, None], self.confidence)  # numpy's exp may differ from the live one by a bit

    def only(self, steps: Sequence[int]) -> EpisodeTable:
        """Return the same questions as if a ladder had no other steps; numbered from 1, in rising order.

        The signal that compares an answer with earlier ones is computed again from the remaining steps.

        Raises:
            UsageError: a chosen step depends on one that is not chosen.
        """
        parents = None if self.parents is None else self.graph.only(steps).parents
        columns, arrays = np.array(steps, dtype=np.int64) - 1, self.arrays.only(steps)
        signals = {name: values[:, columns] for name, values in self.signals.items()}
        if AGREEMENT in signals:
            signals[AGREEMENT] = _agreement(arrays, self.texts_known)
        return replace(
            self,
            arrays=arrays,
            confidence=self.confidence[:, columns],
            signals=signals,
            quality=None if self.quality is None else self.quality[:, columns],
            labels=None if self.labels is None else self.labels.only(columns),
            tokens=self.tokens[:, columns],
            paid=self.paid[:, columns],
            uncached=None if self.uncached is None else self.uncached[:, columns],
            step_models=tuple([self.step_models[at] for at in columns.tolist()]) if self.step_models else (),
            calls=tuple([self.calls[at] for at in columns.tolist()]) if self.calls else (),
            parents=parents,
            bought=None if self.bought is None else self.bought[:, columns],
        ).as_listed()

    def as_listed(self) -> EpisodeTable:
        """Return the questions with their steps on record in listed order, up to the first missing step.

        The record of a question ends, incomplete, before the first step that it lacks; if that is the very first step,
        it is empty, with an unknown cost.
        """
        if self.bought is None:
            return self
        arrays, lacking = self.arrays, ~self.bought & (np.arange(self.arrays.horizon) < self.arrays.steps[:, None])
        first = np.where(lacking.any(axis=1), lacking.argmax(axis=1), arrays.steps)
        out = np.arange(arrays.horizon) >= first[:, None]
        cut = self.as_bought(~out)
        ended = replace(cut.arrays, steps=np.maximum(first, 1), complete=arrays.complete & (first == arrays.steps))
        priced = self.priced & (first > 0)
        paid, tokens = (np.where(out, np.nan, values) for values in (self.paid, self.tokens))
        return replace(
            cut,
            arrays=ended,
            parents=self.parents,
            bought=None,
            paid=paid,
            tokens=tokens,
            priced=priced,
            cost_known=self.cost_known and bool(priced.all()),
        )

    def as_bought(self, bought: Bools) -> EpisodeTable:
        """Return the same questions with some steps, bool (n, T), bought and the others left out.

        A step that was left out costs nothing and has no candidate and no signal. Which answers were right stays on
        record, so a question is as solvable as before. No step may depend on one that was left out.
        """
        arrays, out = self.arrays, ~bought
        absent = out[:, :, None]
        return replace(
            self,
            arrays=replace(
                arrays, answer=np.where(absent, -1, arrays.answer), cost=np.where(out, 0, arrays.cost), parents=None
            ),
            confidence=np.where(absent, np.nan, self.confidence),
            signals={name: np.where(out, np.nan, values) for name, values in self.signals.items()},
            quality=None if self.quality is None else np.where(absent, np.nan, self.quality),
            tokens=np.where(out, 0.0, self.tokens),
            uncached=None if self.uncached is None else np.where(out, 0.0, self.uncached),
            paid=np.where(out, 0.0, self.paid),
            parents=None,
            bought=bought,
        )

    def as_walked(self, name: str) -> EpisodeTable:
        """Return the same questions answered by one of the walks: one step with the answer that the walk serves.

        Its signals are unknown, and so is the equality of its answers with other answers. A question without this walk
        on record has an empty step and an incomplete record.
        """
        walk, shape = self.walks[name], (self.n, 1, len(self.sources))
        answer, correct = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
        answer[:, 0, 0] = np.where(walk.known & (walk.leaves > 0), 0, -1)
        correct[:, 0, 0] = walk.known & walk.right
        cost = np.where(walk.known, walk.cost, 0)[:, None]
        arrays = StepArrays(answer, correct, cost, np.ones(self.n, dtype=np.int64), walk.known.copy())
        return replace(
            self,
            arrays=arrays,
            confidence=np.full(shape, np.nan),
            signals={each: np.full((self.n, 1), np.nan) for each in self.signals},
            quality=None,
            labels=None
            if self.labels is None
            else self.labels._replace(judged=correct & False, unjudged=correct & False),
            tokens=np.full((self.n, 1), np.nan),
            paid=np.where(walk.known[:, None], cost, np.nan) if self.cost_known else np.full((self.n, 1), np.nan),
            texts_known=np.ones(self.n, dtype=np.bool_),
            step_models=(),
            calls=(),
            parents=None,
            uncached=None,
        )

    def take(self, rows: Ints | Bools) -> EpisodeTable:
        """Return the chosen questions."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return EpisodeTable(
            self.dataset,
            tuple([self.ids[i] for i in chosen]),
            tuple([self.groups[i] for i in chosen]),
            self.sources,
            self.arrays.take(chosen),
            self.confidence[chosen],
            {name: values[chosen] for name, values in self.signals.items()},
            {name: walk.take(chosen) for name, walk in self.walks.items()},
            self.cost_known,
            tuple([self.questions[i] for i in chosen]),
            self.models,
            None if self.quality is None else self.quality[chosen],
            {name: values[chosen] for name, values in self.asked.items()},
            self.tokens[chosen],
            self.paid[chosen],
            self.texts_known[chosen],
            self.step_models,
            tuple([self.segments[i] for i in chosen]),
            tuple([self.spelled[i] for i in chosen]),
            self.drawn_from[chosen],
            self.echoes,
            self.priced[chosen],
            self.truth,
            self.parents,
            None if self.labels is None else self.labels.take(chosen),
            self.own,
            None if self.uncached is None else self.uncached[chosen],
            None if self.bought is None else self.bought[chosen],
            tuple([self.kinds[i] for i in chosen]),
            self.calls,
        )


Vectors: TypeAlias = Mapping[str, Floats]
"""Each question's embedding, float64 (d,), by `schema.question_id`."""


def vectors_of(rows: Iterable[Mapping[str, Any]], embedder: Embedder) -> dict[str, Floats]:
    """Return the embedding of every question of a log whose text is on record; each text is embedded once."""
    by_text: dict[str, Floats] = {}
    found: dict[str, Floats] = {}
    for row in rows:
        text = row["question"]
        if text is None:
            continue
        if text not in by_text:
            by_text[text] = embedder(text)
        found.setdefault(question_id(text, row["context"]), by_text[text])
    return found


def stacked(table: EpisodeTable, vectors: Vectors) -> Floats:
    """Return the embeddings of a table's questions, float64 (n, d); NaN if unknown."""
    known = [vectors.get(question) for question in table.spelled]
    width = next((one.size for one in known if one is not None), 0)
    unknown = np.full(width, np.nan)
    return np.array([unknown if one is None else one for one in known], dtype=np.float64).reshape(table.n, width)


def embedded(table: EpisodeTable, vectors: Vectors, directions: Directions) -> EpisodeTable:
    """Return a table whose `asked` has each question's positions along the directions; NaN if unknown.

    These are, to the bit, the numbers that a policy with these directions reads live.
    """
    numbers = np.full((table.n, len(directions.names)), np.nan)
    for row, question in enumerate(table.spelled):
        vector = vectors.get(question)
        if vector is not None:
            numbers[row] = list(directions.numbers(vector).values())
    columns = {name: numbers[:, index] for index, name in enumerate(directions.names)}
    return replace(table, asked={**table.asked, **columns})


def without_embeddings(table: EpisodeTable) -> EpisodeTable:
    """Return a table without the numbers that `embedded` added; the same table if it has none."""
    kept = {name: values for name, values in table.asked.items() if not name.startswith(PREFIX)}
    return table if len(kept) == len(table.asked) else replace(table, asked=kept)
