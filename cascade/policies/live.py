"""A policy at a certified threshold, as the engine calls it: the request in progress is a log of one row.

The row has the columns that a log of the same walk has, so the same code decides on both, to the last bit. The
confidences, by which the engine ranks answers, are set so that it serves the answer that the policy serves.

One case cannot be expressed: to serve an answer of an earlier purchase that another answer has since replaced, and that
the newest purchase does not repeat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascade.conformal.path import Scores, walks
from cascade.conformal.scope import LENGTHS, length
from cascade.errors import UsageError
from cascade.matching import answer_key
from cascade.policies.base import ALWAYS, NEVER, OF_FIRST, SHARED_PLACE, SUREST, Observation, Selection, StepScores
from cascade.policies.policy import GRID, REQUEST, NodePolicy, Policy, Prompted, ReferenceOnly, Uala, as_read
from cascade.registry import code_of, of_ones_own
from cascade.table import COST, Floats, Ints, Log, Node
from cascade.types import Candidate, Question, Step

if TYPE_CHECKING:
    from cascade.policies.directory import PolicyDirectory

STRICTEST = -np.inf
"""The threshold of requests that no certificate covers: go on to the end."""
_BEFORE = Observation(Question("?"), (Step(0, (), {}),), last=False)
"""A request for which nothing has been bought yet."""


def row_of(observation: Observation, nodes: tuple[Node, ...], columns: frozenset[str] | None = None) -> Log:
    """Return a request in progress as a log of one row: what `rows.datasets_of` gives for the steps so far.

    Args:
        observation: the question and its steps; step k buys the nodes of the k-th step among `nodes`.
        nodes: the nodes that the policy buys.
        columns: the only signals that the row may have, with `REQUEST` for id and features; None: all.
    """
    question, width = observation.question, len(nodes)
    answer, cost, bought = [-1] * width, [0] * width, [False] * width
    confidence = [math.nan] * width
    names = {name for step in observation.steps for name in step.signals} | LENGTHS.keys()
    signals = {name: [math.nan] * width for name in sorted(names if columns is None else names & columns)}
    given = list[tuple[int, Candidate]]()
    layout = layout_of(nodes)
    for step in observation.steps:
        if not step.number:  # before the first call
            continue
        at, sources = layout[step.number - 1]
        for node in at:
            bought[node] = True
        for call in step.calls:
            if call.completion is not None:
                node = at[sources.index(call.request.role)] if call.request.role in sources else at[-1]
                spent = call.cost_nano_usd
                cost[node] = -1 if spent is None or cost[node] < 0 else cost[node] + spent
        for name, values in signals.items():
            values[at[-1]] = _signal(step, name, observation)
        for node, candidate in zip(at, in_places(step.candidates, sources), strict=False):
            if candidate is not None:
                given.append((node, candidate))
                confidence[node] = math.nan if candidate.confidence is None else candidate.confidence
    numbers: dict[str, int] = {}
    for node, candidate in given:
        key = answer_key(candidate.text, question.chat) if len(given) > 1 else ""  # one is compared with none
        answer[node] = numbers.setdefault(key, len(numbers))
    name, features = _request_of(question) if columns is None or REQUEST in columns else ("", {})
    return Log(
        "live", nodes, (name,), (question.group or name,), np.array([answer]), np.full((1, width), np.nan),
        np.array([cost]), np.array([bought]), np.array([observation.last]), np.array([confidence]),
        {name: np.array([values], np.float64) for name, values in signals.items()}, features=features,
        segments=(question.segment,),
    )  # fmt: skip


def _signal(step: Step, name: str, observation: Observation) -> float:
    """Return a signal of a step, counted where no step gives it; NaN: unknown."""
    counted = name in LENGTHS and all(name not in bought.signals for bought in observation.steps)
    value = length(step, name) if counted else step.signals.get(name)
    return math.nan if value is None else float(value)


def _request_of(question: Question) -> tuple[str, dict[str, Floats]]:
    """Return the id and the features of a request."""
    from cascade.identity import identity  # loaded only for a policy that reads the request
    from cascade.policies.features import asked_numbers

    features = asked_numbers([question.text], [question.context], [question.chat])
    return identity(question.text, question.context), features


class StepNodes(NamedTuple):
    """What a step buys: the numbers of its nodes, and the source of each one's answer; any model for a single node."""

    nodes: tuple[int, ...]
    sources: tuple[str, ...]


@lru_cache
def layout_of(nodes: tuple[Node, ...]) -> tuple[StepNodes, ...]:
    """Return what each step buys.

    >>> layout_of((Node("step 1 base", 0), Node("step 1 guide", 0), Node("c", 2)))
    (StepNodes(nodes=(0, 1), sources=('base', 'guide')), StepNodes(nodes=(2,), sources=('answer',)))
    """
    layout = []
    for step in dict.fromkeys(node.step for node in nodes):
        names = {at: node.name.rpartition(" ")[2] for at, node in enumerate(nodes) if node.step == step}
        layout.append(StepNodes(tuple(names), tuple(names.values()) if len(names) > 1 else (SHARED_PLACE,)))
    return tuple(layout)


def in_places(candidates: Sequence[Candidate], sources: Sequence[str]) -> Sequence[Candidate | None]:
    """Return a step's candidates by place, as in a log: by source, and by order in a shared place."""
    row: list[Candidate | None] = [None] * len(sources)
    for index, candidate in enumerate(candidates):
        source = candidate.source
        if index < len(sources) and sources[index] in {source, SHARED_PLACE}:
            at = index
        elif source in sources:
            at = sources.index(source)
        else:
            continue
        row[at] = row[at] or candidate
    return row


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """A policy at certified thresholds, with what the engine calls at every step.

    Attributes:
        rule: the policy.
        plan: the nodes of the whole plan.
        kappa: the threshold of requests without a segment.
        kappas: the threshold of each segment; if empty, all are at `kappa`.
        hidden: the signals, and "cost", that its certificates were made without (`Log.hidden`).
        single: whether only the answer served is kept, so that the last model’s can be shown as it is written. For
            a promise about the set of answers, and where an earlier answer may be served, every one is.
        by_call: whether it buys the nodes in an order of its own.
        nodes: the nodes that it buys.
        reads: the signals that it requires.
        columns: the signals that it may read (`Policy.columns`).

    Raises:
        UsageError: the engine cannot serve it.
    """

    rule: Policy
    plan: tuple[Node, ...]
    kappa: float = STRICTEST
    kappas: Mapping[str, float] = field(default_factory=dict)
    single: bool = False
    hidden: frozenset[str] = frozenset()
    by_call: bool = field(default=False, init=False)
    nodes: tuple[Node, ...] = field(init=False)
    reads: tuple[str, ...] = field(init=False)
    columns: frozenset[str] | None = field(init=False)
    _layout: tuple[StepNodes, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Score a request that has bought nothing, to find out what kind of policy it is."""
        rule = self.rule
        nodes = self.plan if rule.nodes is None else tuple([self.plan[at] for at in rule.nodes])
        with code_of(rule):
            scores = rule.scores(as_read(replace(row_of(_BEFORE, nodes, rule.columns), hidden=self.hidden)))
        by_call = scores.order is not None
        newest_alone = isinstance(rule, Uala) or (scores.serve is None and not isinstance(rule, Prompted))
        single = self.single and newest_alone and scores.keep is None and not by_call
        derived = {"single": single, "by_call": by_call, "nodes": nodes, "reads": rule.reads, "columns": rule.columns}
        for name, value in (derived | {"_layout": layout_of(nodes)}).items():
            object.__setattr__(self, name, value)
        if rule.nodes is not None and len(self.plan) > len(layout_of(self.plan)):
            raise UsageError("The policy takes a part of the plan, whose steps buy several nodes at once.")
        if by_call and rule.nodes is not None:
            raise UsageError("A policy that buys in an order of its own is served on the whole plan.")

    @classmethod
    def of(cls, directory: PolicyDirectory, level: str | None = None) -> LivePolicy:
        """Return a directory's policy at its certified thresholds, of one level if it has levels."""
        name, proven = level or directory.default_level or "", directory.certificates
        kappas = {segment: certificate.kappa for segment, certificate in proven.items() if certificate.segment}
        kappa = proven[name].kappa if name in proven else STRICTEST
        rules = None if directory.promise is None else directory.promise.rules
        costs = (COST,) if directory.requests.chose else ()  # points are put in order where going on may lose
        hidden = frozenset({*costs, *(rules.outcomes if rules else ())})
        return cls(directory.policy, directory.plan, kappa, kappas, rules is not None and not rules.of_set, hidden)

    @property
    def selection(self) -> Selection | None:
        """The steps that it takes; None if it takes all."""
        if isinstance(self.rule, ReferenceOnly):
            return Selection(reference=True)
        if self.by_call:
            return Selection(calls=True)
        return None if self.rule.nodes is None else Selection(tuple([node.step + 1 for node in self.nodes]))

    def for_segment(self, segment: str | None) -> LivePolicy:
        """Return the policy as it serves a segment, which goes on to the end if no certificate covers the segment."""
        kappa = self.kappas.get(segment or "", STRICTEST) if self.kappas else self.kappa
        return self if kappa == self.kappa else replace(self, kappa=kappa)

    def scores(self, observation: Observation) -> StepScores:
        """Return the doubt about going on, the scores of the answers kept, what ranks them, and what to buy next."""
        step, rule = observation.steps[-1], self.rule
        of_node = self._after_node(rule, observation) if isinstance(rule, NodePolicy) else None
        scored = of_node or self._after_row(observation)
        if not self.single:
            return scored
        stops = observation.last or scored.next < self.kappa or scored.next == NEVER
        scores = tuple([ALWAYS if stops and rank is not None else NEVER for rank in scored.confidences or ()])
        if stops and ALWAYS not in scores:  # what is served came earlier
            scores = (ALWAYS,) * len(step.candidates)
        return scored._replace(candidates=scores)

    def _after_node(self, rule: NodePolicy, observation: Observation) -> StepScores:
        """Score the newest step from its last node only, as `_after_row` would, in a tenth of the time."""
        step, signals = observation.steps[-1], dict[str, float]()
        nodes, sources = self._layout[step.number - 1]
        for name in self.columns or ():
            signals[name] = _signal(step, name, observation)
        paid = [call.cost_nano_usd for call in step.calls if call.completion and call.request.role not in sources[:-1]]
        row = in_places(step.candidates, sources)
        newest = next((candidate for candidate in reversed(row) if candidate is not None), None)
        cost = math.nan if None in paid else float(sum(filter(None, paid)))
        doubt, action = rule.after(signals, cost, nodes[-1])
        sure, enough = rule.surety(float(doubt)), rule.surety(self.kappa)
        served = row[0] if action == OF_FIRST and row[0] is not None else newest
        rank = (nodes[-1] + 1) / len(self.nodes)
        ranks = tuple([rank if answer is served else None for answer in step.candidates]) if action != SUREST else None
        pair = None if sure is None or enough is None or math.isnan(doubt) else (sure, enough)
        return StepScores((ALWAYS,) * len(step.candidates), float(doubt), ranks, sure=pair)

    def _after_row(self, observation: Observation) -> StepScores:
        """Score the newest step from the request as a log of one row."""
        step = observation.steps[-1]
        log = row_of(observation, self.nodes, self.columns)
        read = as_read(replace(log, hidden=self.hidden)) if self.hidden else log
        scored, count = self.rule.scores(read), int(np.count_nonzero(log.bought))
        buy = None
        if scored.order is not None:  # the columns of the scores are calls, in the order of purchase
            log, buy = log.in_order(scored.order), int(scored.order[0, count]) + 1 if count < len(self.nodes) else None
        if not step.number:
            return StepScores((), ALWAYS, buy=buy)
        bought, sources = self._layout[step.number - 1]
        columns = bought if scored.order is None else (count - 1,)
        row = in_places(step.candidates, sources)
        by_candidate = {id(candidate): column for column, candidate in zip(columns, row, strict=False)}
        columns_of = [by_candidate.get(id(candidate)) for candidate in step.candidates]
        scores = [ALWAYS] * len(columns_of)
        if scored.keep is not None:
            scores = [NEVER if column is None else float(scored.keep[0, column]) for column in columns_of]
        ranks = self._ranks(log, scored, columns_of, columns[-1])
        return StepScores(tuple(scores), float(scored.doubt[0, columns[-1]]), ranks, buy)

    def _ranks(
        self, log: Log, scored: Scores, columns_of: Sequence[int | None], last: int
    ) -> tuple[float | None, ...] | None:
        """Return the confidences by which the engine serves what the policy serves; None: the strategy's own.

        The answer served has the highest so far; the other answers of the step have none.
        """
        if scored.keep is not None and scored.serve is None:
            return None
        answers = log.answer[0]  # the newest is the last that is known
        newest = (
            np.flatnonzero(answers[: last + 1] >= 0)[-1:] if scored.serve is None else scored.serve[0, last : last + 1]
        )
        serve = int(newest[0]) if newest.size else -1
        if serve < 0:
            return (None,) * len(columns_of)
        served = [serve] if serve in columns_of else np.flatnonzero(answers == answers[serve]).tolist()
        return tuple([(last + 1) / len(self.nodes) if column in served else None for column in columns_of])


# --- whether a user's own policy scores a request in progress as it scores the log ---

_ROWS = 30
"""The number of requests that are scored alone."""


def refuse_unlike_live(rule: Policy, log: Log, seed: int) -> None:
    """Raise UsageError if a user's own policy scores requests of a log differently than it would live.

    Some requests, drawn by the seed, are scored alone and up to each node: a policy that reads other requests or later
    nodes, or draws at random, differs. Doubts may differ by a step of the grid, since rounding may differ in long sums.
    """
    if not of_ones_own(rule):
        return
    rule.walks(log)  # refuses what is no `Scores` of this log
    read = as_read(log.only(range(log.width) if rule.nodes is None else rule.nodes))
    rows = np.random.default_rng(abs(seed)).permutation(log.n)[:_ROWS].tolist()
    with code_of(rule):
        scores = rule.scores(read)
        rule.scores(_up_to(read, rows[0], np.arange(0), rule.columns))
        for row in rows:
            order = np.arange(read.width) if scores.order is None else scores.order[row]
            for last in np.flatnonzero(read.decides).tolist():
                nodes = order[: last + 1]
                if not read.bought[row, nodes].all():
                    break
                request = _up_to(read, row, nodes, rule.columns)
                alone = rule.scores(request)
                walks(request, alone)
                if differs := _difference(scores, alone, row, last, int(np.searchsorted(read.steps, read.steps[last]))):
                    raise UsageError(
                        f"The policy {rule.kind} scores a request differently when it is served: after "
                        f"{read.nodes[nodes[-1]].name} of {log.ids[row]} in {log.name} {differs} for this request "
                        "alone up to this node. Scores may read only their own request up to their node, and draw "
                        "nothing without a seed."
                    )


def _difference(scores: Scores, alone: Scores, row: int, last: int, first: int) -> str | None:
    """Return how the scores of a row after a node differ from those of the request alone; None if they do not.

    `first` is the first node of the same step.
    """
    ends = scores.order is not None and scores.doubt[row, last] == -np.inf  # what follows does not matter
    columns = {"keep": slice(first, last + 1), "order": slice(last + 2 - ends)}
    for name, of_log, of_request in zip(Scores._fields, scores, alone, strict=True):
        at = columns.get(name, slice(last, last + 1))
        logged = None if of_log is None else of_log[row, at]
        served = None if of_request is None else of_request[0, at]
        if logged is None and served is None:
            continue
        if logged is None or served is None or not np.allclose(logged, served, 1e-6, GRID, equal_nan=True):
            return f"its {name} is {logged}, and {served}"
    return None


def _up_to(log: Log, row: int, nodes: Ints, columns: frozenset[str] | None) -> Log:
    """Return a recorded request as `row_of` gave it when it had bought these nodes: a log of one row."""
    shape, bought = (1, log.width), np.isin(np.arange(log.width), nodes) & log.bought[row]

    def at(values: NDArray[Any], lacking: float) -> NDArray[Any]:
        return np.where(bought, values[row], lacking)[None]

    numbers = {-1: -1}  # in the order of purchase
    for node in nodes.tolist():
        numbers.setdefault(int(log.answer[row, node]), len(numbers) - 1)
    signals = {
        name: at(values, np.nan) for name, values in log.signals.items() if not np.isnan(values[row, nodes]).all()
    }
    signals = dict.fromkeys(LENGTHS, np.full(shape, np.nan)) | signals
    names = sorted(signals if columns is None else signals.keys() & columns)
    request = columns is None or REQUEST in columns
    return Log(
        "live", log.nodes, (log.ids[row] if request else "",), (log.groups[row],),
        np.array([[numbers[answer] for answer in at(log.answer, -1)[0].tolist()]]), np.full(shape, np.nan),
        at(log.cost_nano_usd, 0), bought[None], np.array([log.complete[row] and not (log.bought[row] & ~bought).any()]),
        at(log.confidence, np.nan), {name: signals[name] for name in names},
        {name: values[row : row + 1] for name, values in log.features.items() if request},
        segments=(log.segments[row],),
    )  # fmt: skip
