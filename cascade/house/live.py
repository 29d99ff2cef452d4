"""A policy at a certified threshold, as the engine asks it: the request in progress is a log of one row.

The row has the columns that a log of the same walk has, so the same code decides on both, to the last bit. What the
engine ranks answers by, confidences, is set so that it serves the answer that the policy serves.

It cannot say that an answer is served which an earlier purchase brought, another one has replaced since, and the newest
purchase does not repeat; nor withhold answers of a policy that always serves the newest (`Live` refuses that).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cascade.conformal.path import Point, newest
from cascade.errors import UsageError
from cascade.house.policy import Policy as Rule
from cascade.house.simple import TIE, Alone
from cascade.matching.same import answer_key
from cascade.policies.base import ALWAYS, NEVER, SHARED_PLACE, Observation, Policy, Scores, Takes
from cascade.policies.views import asked_numbers, in_places
from cascade.table import Log, Node
from cascade.types import Step

STRICTEST = Point(-np.inf)
"""Go on to the end: how a request is served that no certificate covers."""


def row_of(observation: Observation, nodes: Sequence[Node]) -> Log:
    """Return the log of one row that a request in progress is: what `bridge.log_of` gives for the steps so far.

    Args:
        observation: the question and its steps; the k-th buys the nodes of the k-th step among `nodes`.
        nodes: the nodes that the policy buys.
    """
    question, shape = observation.question, (1, len(nodes))
    answer, cost = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    bought, confidence = np.zeros(shape, dtype=np.bool_), np.full(shape, np.nan)
    signals = {name: np.full(shape, np.nan) for step in observation.steps for name in step.signals}
    if TIE not in signals:
        signals[TIE] = np.full(shape, np.nan)
    numbers: dict[str, int] = {}
    counted = not any(TIE in step.signals for step in observation.steps)
    for step, at in zip(observation.steps, places_of(nodes), strict=False):
        bought[0, at] = True
        spent = step.cost_nano_usd
        cost[0, at[-1]] = -1 if spent is None else spent
        for name, value in step.signals.items():
            signals[name][0, at[-1]] = np.nan if value is None else value
        if counted:
            signals[TIE][0, at[-1]] = _tokens(step)
        for node, candidate in zip(at, in_places(step.candidates, _sources(nodes, at)), strict=False):
            if candidate is not None:
                answer[0, node] = numbers.setdefault(answer_key(candidate.text, question.chat), len(numbers))
                confidence[0, node] = np.nan if candidate.confidence is None else candidate.confidence
    features = asked_numbers(question.text, question.context, question.chat)
    return Log(
        name="live",
        nodes=tuple(nodes),
        ids=("",),
        groups=("",),
        answer=answer,
        right=np.full(shape, np.nan),
        cost_nano_usd=cost,
        bought=bought,
        complete=np.array([observation.last]),
        confidence=confidence,
        signals=signals,
        features={name: np.array([value]) for name, value in features.items()},
        segments=(question.segment,),
    )


def places_of(nodes: Sequence[Node]) -> list[list[int]]:
    """Return the numbers of the nodes of each step.

    >>> places_of([Node("a", 0), Node("b", 0), Node("c", 2)])
    [[0, 1], [2]]
    """
    steps = dict.fromkeys(node.step for node in nodes)
    return [[at for at, node in enumerate(nodes) if node.step == step] for step in steps]


def _sources(nodes: Sequence[Node], at: Sequence[int]) -> tuple[str, ...]:
    """Return whose answer each node of a step holds: any model's where there is one node, else as the name says."""
    if len(at) == 1:
        return (SHARED_PLACE,)
    return tuple([nodes[node].name.rpartition(" ")[2] for node in at])


def _tokens(step: Step) -> float:
    """Return the input and output tokens of a step, as a log counts them; NaN where one is unknown."""
    counts = [count for call in step.calls if call.completion is not None for count in call.completion.usage[:2]]
    known = [count for count in counts if count is not None]
    return float(sum(known)) if known and len(known) == len(counts) else np.nan


@dataclass(frozen=True, slots=True)
class Live(Policy):
    """A policy at certified thresholds.

    Attributes:
        rule: the policy.
        plan: the nodes of the whole plan.
        point: how requests without a segment are served.
        points: how those of each segment are; empty: all at `point`.

    Raises:
        UsageError: the engine cannot serve it: it takes part of a round, or withholds what it always serves.
    """

    rule: Rule
    plan: tuple[Node, ...]
    point: Point = STRICTEST
    points: Mapping[str, Point] = field(default_factory=dict)

    def __post_init__(self) -> None:
        part, whole = places_of(self.nodes), places_of(self.plan)
        if self.takes is not None and len(self.plan) > len(whole):
            raise UsageError(f"The policy buys {len(part)} nodes of a plan whose steps buy several at once.")
        width = len(self.nodes)
        nothing = np.full((1, width), -1, dtype=np.int64)
        unknown = np.full((1, width), np.nan)
        no, none = np.zeros((1, width), dtype=np.bool_), np.zeros((1, width), dtype=np.int64)
        log = Log("empty", self.nodes, ("",), ("",), nothing, unknown, none, no, np.zeros(1, dtype=np.bool_), unknown)
        scores = self.rule.scores(log)
        if scores.serve is None and scores.sure is not None:
            raise UsageError("A policy that says how sure an answer is must say which answer it serves.")

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it buys."""
        return self.plan if self.rule.nodes is None else tuple([self.plan[at] for at in self.rule.nodes])

    @property
    def kappa(self) -> float:
        """The threshold."""
        return self.point.kappa

    @property
    def abstain_below(self) -> float | None:
        """How sure an answer must be to be served; None: any is."""
        return None if self.point.bar == -np.inf else self.point.bar

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it cannot do without."""
        return self.rule.reads

    @property
    def needs(self) -> tuple[str, ...]:
        """The same."""
        return self.rule.reads

    @property
    def takes(self) -> Takes | None:
        """The steps that it takes; None: all of them."""
        if isinstance(self.rule, Alone):
            return Takes(reference=True)
        return None if self.rule.nodes is None else Takes(tuple([node.step + 1 for node in self.nodes]))

    def for_segment(self, segment: str | None) -> Live:
        """Return it as it serves a segment: to the end where no certificate covers that."""
        point = self.points.get(segment or "", STRICTEST) if self.points else self.point
        return self if point == self.point else replace(self, point=point)

    def scores(self, observation: Observation) -> Scores:
        """Return the doubt about going on, the scores of the answers that are kept, and what ranks them."""
        log = row_of(observation, self.nodes)
        given = self.rule.scores(log)
        candidates, at = observation.step.candidates, places_of(self.nodes)[len(observation.steps) - 1]
        row = in_places(candidates, _sources(self.nodes, at))
        node_of = {id(candidate): node for node, candidate in zip(at, row, strict=False) if candidate is not None}
        nodes = [node_of.get(id(candidate)) for candidate in candidates]
        keep = given.keep
        scores = [ALWAYS if keep is None else NEVER if node is None else float(keep[0, node]) for node in nodes]
        doubt = float(given.doubt[0, at[-1]])
        if keep is not None and given.serve is None:
            return Scores(tuple(scores), doubt)
        serve = int((newest(log) if given.serve is None else given.serve)[0, at[-1]])
        level = (at[-1] + 1) / len(self.nodes) if given.sure is None else float(given.sure[0, at[-1]])
        unknown = np.isnan(level) or (given.sure is None and self.abstain_below is not None)
        answers = log.answer[0]
        served = [] if serve < 0 or unknown else [serve] if serve in at else np.flatnonzero(answers == answers[serve])
        ranks = [level if node is not None and node in served else None for node in nodes]
        return Scores(tuple(scores), doubt, tuple(ranks))
