"""A table of logged questions as arrays, the input of fitting, calibration, evaluation and comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, Parents, StepArrays
from cascade.guarantees.questions import Labels, Truth

if TYPE_CHECKING:  # of logs that are read from rows
    from cascade.conformal.scope import Kind
    from cascade.episodes.asked import Asker


@dataclass(frozen=True, slots=True)
class Walk:
    """The outcomes of one recorded baseline on the same questions: the guide alone, or a prompted model that decides.

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
"""Costs are shown only if they are known for more than this share of the questions."""

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
        walks: other methods on the same questions, by name.
        cost_known: False if any cost is unknown; then only the costs of `priced` questions may be shown.
        questions: an id that near-duplicates share (`schema.identity` of text and context); the episode's id if the
            text is unknown.
        models: the sorted names of the models asked in each role ("base", "guide", a rung); unknown roles are left out.
        asked: float64 (n,) by name, numbers of the question's text (`policies.views`); NaN without a text.
        tokens: float64 (n, T), input and output tokens of each step; NaN = unknown, as all are if none are given.
        paid: float64 (n, T), the cost of each step in nano-USD, NaN = unknown (`arrays.cost` has 0 there). By default
            `arrays.cost` if `cost_known`, else unknown.
        texts_known: bool (n,), whether answers with equal numbers have the same text; False if the log has no
            comparable texts, so that all right answers count as one (`episodes.tabulate`).
        step_models: for a ladder, the only model that answered each of its T steps, None if several did or if unknown;
            empty for other strategies. It distinguishes ladders of the same models in another order.
        calls: the only model asked in each of T steps, with role and purpose, None if there were several; empty if the
            steps are not single logged calls.
        segments: each question's segment (a tenant, a task), which may have its own certificate; None without one.
        spelled: an id of the question as it is spelled (`schema.question_id`), which shows near-duplicates. By default
            as `questions`.
        drawn_from: int64 (n,), the number of questions of its group from which each row was drawn; 1 without a draw.
        echoes: by model, the sorted names in its replies; models without known names are left out.
        priced: bool (n,), whether the log has every cost of the question, walks included. By default as `cost_known`.
        truth: the meaning of "right" without labels (`episodes.reference`); None if labels decide.
        parents: for each of the T steps, the numbers of the steps that its content depends on; None for a chain.
            `arrays` treats the steps as bought in the listed order, which is exact for any parents, since these come
            earlier. `graph` has the steps as nodes with parents.
        labels: the questions with judgements by people (`review.labels`); None if people did not judge.
        uncached: float64 (n, T), the cost of each step without prompt caches, in nano-USD; NaN = unknown. None if the
            log has no tokens read from a cache.
        bought: bool (n, T), the steps that were bought, in the log or in a policy's walk (`as_bought`), if some before
            the last were left out; None: all.
        kinds: the kind of each request (`conformal.scope`); None if unknown.
        unjudged: the number of episodes of the whole log that are left out because an answer has no judgement.
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
    uncached: Floats | None = None
    bought: Bools | None = None
    kinds: tuple[Kind | None, ...] = ()
    calls: tuple[Asker | None, ...] = ()
    unjudged: int = 0

    def __post_init__(self) -> None:
        n, cost = len(self.ids), self.arrays.cost
        unknown = np.full(cost.shape, np.nan)
        blank: dict[str, Any] = {
            "questions": self.ids,
            "spelled": self.questions or self.ids,
            "kinds": (None,) * n,
            "segments": (None,) * n,
            "drawn_from": np.ones(n, dtype=np.int64),
            "priced": np.full(n, self.cost_known, dtype=np.bool_),
            "tokens": unknown,
            "texts_known": np.zeros(n, dtype=np.bool_),
        }
        if self.cost_known and not len(self.paid):
            unknown = np.where(np.arange(cost.shape[1]) >= self.arrays.steps[:, None], np.nan, cost)
        for name, value in (blank | {"paid": unknown}).items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, value)

    @property
    def n(self) -> int:
        """The number of questions."""
        return self.arrays.n

    def has(self, step: int) -> Bools:
        """Return whether a step, numbered from 1, is logged, bool (n,)."""
        there = self.arrays.steps >= step
        return there if self.bought is None else there & self.bought[:, step - 1]

    @property
    def graph(self) -> StepArrays:
        """The steps as nodes, each bought if its parents are and its own score is high enough (`conformal.rollout`)."""
        return replace(self.arrays, parents=self.parents)

    @property
    def step_names(self) -> tuple[str, ...]:
        """The name of each of the T steps: the offer or the model that is asked, else "step" and its number."""
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
        kept: dict[str, Any] = {name: held[:, columns] for name in BY_STEP if (held := getattr(self, name)) is not None}
        return replace(
            self,
            arrays=arrays,
            signals=signals,
            labels=None if self.labels is None else self.labels.only(columns),
            step_models=tuple([self.step_models[at] for at in columns.tolist()]) if self.step_models else (),
            calls=tuple([self.calls[at] for at in columns.tolist()]) if self.calls else (),
            parents=parents,
            **kept,
        ).as_listed()

    def as_listed(self) -> EpisodeTable:
        """Return the questions with their logged steps in listed order, up to the first missing step.

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
            tokens=np.where(out, 0.0, self.tokens),
            uncached=None if self.uncached is None else np.where(out, 0.0, self.uncached),
            paid=np.where(out, 0.0, self.paid),
            parents=None,
            bought=bought,
        )

    def as_walked(self, name: str) -> EpisodeTable:
        """Return the same questions answered by one of the walks: one step with the answer that the walk serves.

        Its signals are unknown, and so is the equality of its answers with other answers. A question without a record
        of this walk has an empty step and an incomplete record.
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
        places = chosen.tolist()
        listed: dict[str, Any] = {name: tuple(map(getattr(self, name).__getitem__, places)) for name in LISTED}
        columns: dict[str, Any] = {
            name: held[chosen] for name in (*BY_STEP, *BY_QUESTION) if (held := getattr(self, name)) is not None
        }
        return replace(
            self,
            arrays=self.arrays.take(chosen),
            signals={name: values[chosen] for name, values in self.signals.items()},
            walks={name: walk.take(chosen) for name, walk in self.walks.items()},
            asked={name: values[chosen] for name, values in self.asked.items()},
            labels=None if self.labels is None else self.labels.take(chosen),
            **listed,
            **columns,
        )


LISTED = ("ids", "groups", "questions", "segments", "spelled", "kinds")
"""The fields of a table that list something of each question."""
BY_STEP = ("confidence", "tokens", "paid", "uncached", "bought")
"""Those with a number of each step of each question, beside `arrays` and `signals`; some may be None."""
BY_QUESTION = ("texts_known", "drawn_from", "priced")
