"""A log as a table: requests in rows, the calls that a plan can buy (nodes) in columns. All fits and studies read it.

A node has at most one answer, a cost and signals. The nodes of one step are bought together, and a policy decides after
the last of them whether to go on. A ladder has one node per step; a round of base and guide has two.

Unknown is NaN in floats and −1 in whole numbers: never 0, never "wrong".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cascade.errors import UsageError
from cascade.text import aligned, counted

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
AGREEMENT = "agrees_with_earlier"
"""The signal that compares a node's answer with those bought before it: the share of them that are the same."""
COST = "cost"
"""The name of costs among what a policy reads (`Log.hidden`)."""


class Node(NamedTuple):
    """One call that can be bought.

    Attributes:
        name: its name in reports.
        step: its step, from 0.
        model: the model that is asked, if known.
        reads: the numbers of the earlier nodes whose answers it reads; None: all of them.
    """

    name: str
    step: int
    model: str | None = None
    reads: tuple[int, ...] | None = None


ALONE = (Node("reference", 0),)
"""The nodes of a log of the reference alone (`Log.reference_only`)."""


class Reference(NamedTuple):
    """What a policy is compared with: the guide asked alone, or a ladder's last model.

    Attributes:
        right: float64 (n,), whether its answer is right, 0..1; NaN where the log does not say.
        cost_nano_usd: int64 (n,); −1 where unknown.
        is_last: whether it is the last node, so that a walk to the end serves its answer.
    """

    right: Floats
    cost_nano_usd: Ints
    is_last: bool


class Baseline(NamedTuple):
    """Another recorded way to answer the same requests: a model that decides when to stop, the first model alone.

    Attributes:
        known: bool (n,), whether it is on record for the request; where not, the others mean nothing.
        covered: bool (n,), whether a right answer is among those that it keeps.
        right: float64 (n,), whether the answer that it serves is right, 0..1; NaN: unknown.
        cost_nano_usd: int64 (n,); −1: unknown.
        length: int64 (n,), steps.
        size: int64 (n,), how many different answers it keeps.
    """

    known: Bools
    covered: Bools
    right: Floats
    cost_nano_usd: Ints
    length: Ints
    size: Ints


@dataclass(frozen=True, slots=True, repr=False)
class Log:
    """n requests and T nodes.

    Attributes:
        name: the name of the log.
        nodes: the T nodes, by rising step.
        ids: an id of each request; equal requests have equal ids.
        groups: what each request belongs to (a conversation, a document, a user); no split divides a group.
        answer: int64 (n, T), equal for equal answers of a request; −1: none.
        right: float64 (n, T), whether an answer is right, 0..1; NaN: unknown.
        cost_nano_usd: int64 (n, T), −1: unknown; 0 where a node was not bought.
        bought: bool (n, T), whether the log has the node.
        complete: bool (n,), whether no further node was possible after the last bought one.
        confidence: float64 (n, T), the plan's own estimate that an answer is right; NaN: unknown.
        signals: float64 (n, T) by name; NaN: unknown.
        features: float64 (n,) by name, numbers known before any call; NaN: unknown.
        reference: what regret and savings compare with; None if the log has none.
        segments: the part of the traffic that each request belongs to (a tenant, a task); None: none.
        kinds: the form of each request (`conformal.scope`); None: unknown.
        drawn: bool (n,), the requests that were drawn for people to judge; None: all.
        texts_known: bool (n,), whether unequal numbers of `answer` mean unequal answers; None: for all.
        baselines: other recorded ways to answer the same requests, by name; the reference is not among them.
        hidden: the names of signals, and "cost", that show what is right or lost: no policy may read them.
    """

    name: str
    nodes: tuple[Node, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    answer: Ints
    right: Floats
    cost_nano_usd: Ints
    bought: Bools
    complete: Bools
    confidence: Floats
    signals: Mapping[str, Floats] = field(default_factory=dict)
    features: Mapping[str, Floats] = field(default_factory=dict)
    reference: Reference | None = None
    segments: tuple[str | None, ...] = ()
    kinds: tuple[Mapping[str, float | str] | None, ...] = ()
    drawn: Bools | None = None
    texts_known: Bools | None = None
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raise UsageError, listing every problem, if the columns do not fit together."""
        shape = len(self.ids), len(self.nodes)
        columns: dict[str, NDArray[Any]] = {"answer": self.answer, "right": self.right, "bought": self.bought}
        columns |= {"cost_nano_usd": self.cost_nano_usd, "confidence": self.confidence}
        columns |= {f"signals[{name}]": values for name, values in self.signals.items()}
        problems = [f"{name} has the shape {a.shape}, not {shape}" for name, a in columns.items() if a.shape != shape]
        rows = {"groups": len(self.groups), "complete": self.complete.size, "segments": len(self.segments) or shape[0]}
        rows |= {f"features[{name}]": values.size for name, values in self.features.items()}
        problems += [f"{name} has {size} rows, not {shape[0]}" for name, size in rows.items() if size != shape[0]]
        steps = [node.step for node in self.nodes]
        if not steps or steps != sorted(steps):
            problems.append("the nodes must be listed by rising step, and there must be one")
        if problems:
            raise UsageError(f"The log {self.name} is not a table: {'; '.join(problems)}.")
        for name in ("segments", "kinds"):
            object.__setattr__(self, name, getattr(self, name) or (None,) * shape[0])

    def __repr__(self) -> str:
        """Return one small table: a row for each node."""
        rows = [("node", "answers", "right", "USD per 1,000")]
        for at, node in enumerate(self.nodes):
            right, cost = self.right[:, at], self.cost_nano_usd[self.bought[:, at], at]
            judged, priced = right[~np.isnan(right)], cost.size and (cost >= 0).all()
            shares = f"{judged.mean():.1%}" if judged.size else "–", f"{cost.mean() / 1e6:.3g}" if priced else "–"
            rows.append((node.name, f"{np.count_nonzero(self.bought[:, at]):,}", *shares))
        head = f"{self.name}: {counted(self.n, 'request')} of {counted(len(set(self.groups)), 'group')}"
        return "\n".join([head, *aligned(rows), f"signals: {', '.join(self.signals) or 'none'}"])

    @property
    def n(self) -> int:
        """The number of requests."""
        return len(self.ids)

    @property
    def width(self) -> int:
        """T, the number of nodes."""
        return len(self.nodes)

    @property
    def steps(self) -> Ints:
        """The step of each node, int64 (T,)."""
        return _steps_of(self.nodes)[0]

    @property
    def decides(self) -> Bools:
        """Bool (T,): whether a policy decides after the node, the last of its step, whether to go on."""
        return _steps_of(self.nodes)[1]

    @property
    def answers(self) -> Bools:
        """Bool (n, T): whether the node gave an answer."""
        return self.bought & (self.answer >= 0)

    @property
    def open_end(self) -> Bools:
        """Bool (n, T): the nodes of the last recorded step, if the record ends before the request does."""
        last = np.where(self.bought, self.steps, -1).max(axis=1)
        return np.asarray(self.bought & (self.steps == last[:, None]) & ~self.complete[:, None], dtype=np.bool_)

    @property
    def priced(self) -> Bools:
        """Bool (n,): whether every cost of the request is known, the reference's included."""
        priced = np.asarray((self.cost_nano_usd >= 0).all(axis=1), dtype=np.bool_)
        return priced if self.reference is None else priced & (self.reference.cost_nano_usd >= 0)

    def in_groups(self, groups: AbstractSet[str]) -> Bools:
        """Bool (n,): whether the group of each request is among these."""
        return np.fromiter(map(groups.__contains__, self.groups), np.bool_, self.n)

    def take(self, rows: Ints | Bools) -> Log:
        """Return the chosen requests; a row may be repeated."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if np.array_equal(chosen, np.arange(self.n)):
            return self
        return replace(self, **{name: _rows_of(getattr(self, name), chosen) for name in _OF_REQUESTS})

    def only(self, nodes: Sequence[int]) -> Log:
        """Return the same requests as if there were only these nodes; they are numbers from 0, ascending.

        Exact if no chosen node reads one that is left out. A record that lacks a chosen node ends before it. Agreement
        with earlier answers is computed again.
        """
        columns = np.array(nodes, dtype=np.int64)
        if np.array_equal(columns, np.arange(self.width)) and self.bought.all():
            return self
        bought = np.logical_and.accumulate(self.bought[:, columns], axis=1)
        named = tuple([self.nodes[at] for at in nodes])
        return self._gathered(named, np.broadcast_to(columns, bought.shape), self.complete & bought.all(axis=1))

    def in_order(self, order: Ints) -> Log:
        """Return the same requests, the nodes of each in an order of its own, with every node as a step.

        A record ends before the first node that it lacks, and is complete only if it has no later one. `order`, int64
        (n, T), has every node once in each row.

        Raises:
            UsageError: `order` has not, or nodes of this log are bought together.
        """
        if order.shape != self.answer.shape or (np.sort(order, axis=1) != np.arange(self.width)).any():
            raise UsageError(f"An order of purchase has every node of {self.name} once in each row.")
        if not self.decides.all():
            raise UsageError(f"Nodes of {self.name} are bought together, and cannot be bought in another order.")
        bought = np.take_along_axis(self.bought, order, axis=1)
        cut = bought & ~np.logical_and.accumulate(bought, axis=1)
        nodes = tuple([Node(f"call {step + 1}", step) for step in range(self.width)])
        return self._gathered(nodes, order, self.complete & ~cut.any(axis=1))

    def _gathered(self, nodes: tuple[Node, ...], columns: Ints, complete: Bools) -> Log:
        """Return the requests with these columns, int64 (n, k), each request up to the first that its record lacks."""
        bought = np.logical_and.accumulate(np.take_along_axis(self.bought, columns, axis=1), axis=1)

        def at(values: NDArray[Any], lacking: float) -> NDArray[Any]:
            return np.where(bought, np.take_along_axis(values, columns, axis=1), lacking)

        answer, signals = at(self.answer, -1), {name: at(values, np.nan) for name, values in self.signals.items()}
        if AGREEMENT in signals:
            moved = ~np.logical_and.accumulate(columns == np.arange(columns.shape[1]), axis=1)
            signals[AGREEMENT] = np.where(moved, self._agreement(answer), signals[AGREEMENT])
        return replace(
            self,
            nodes=nodes,
            answer=answer,
            right=at(self.right, np.nan),
            cost_nano_usd=at(self.cost_nano_usd, 0),
            bought=bought,
            complete=complete,
            confidence=at(self.confidence, np.nan),
            signals=signals,
        )

    def _agreement(self, answer: Ints) -> Floats:
        """Return, for each answer, the share of earlier ones that equal it, float64 (n, k); NaN: none, or unknown.

        `answer` has the nodes in the order of purchase. If a step has several nodes, all is NaN: its strategy decides.
        """
        answered, earlier = answer >= 0, np.tri(answer.shape[1], k=-1)
        equal = (answer[:, :, None] == answer[:, None, :]) & answered[:, None, :]
        counts = answered.astype(np.float64) @ earlier.T
        comparable = answered & (counts > 0) & self.decides.all()
        if self.texts_known is not None:
            comparable &= self.texts_known[:, None]
        return np.where(comparable, (equal * earlier).sum(axis=2) / np.maximum(counts, 1.0), np.nan)

    def reference_only(self) -> Log:
        """Return the same requests as the reference alone answers them: one node.

        Raises:
            UsageError: the log has no reference.
        """
        if self.reference is None:
            raise UsageError(f"{self.name} has no answer of a reference alone.")
        judged, cost = ~np.isnan(self.reference.right), self.reference.cost_nano_usd
        answers = judged & self.answers[:, -1] if self.reference.is_last else judged
        unknown = np.full((self.n, 1), np.nan)
        return replace(
            self,
            nodes=ALONE,
            answer=np.where(answers, 0, -1)[:, None],
            right=self.reference.right[:, None],
            cost_nano_usd=cost[:, None],
            bought=judged[:, None],
            complete=judged,
            confidence=unknown,
            signals=dict.fromkeys(self.signals, unknown),
            reference=self.reference._replace(is_last=True),
        )


@lru_cache
def _steps_of(nodes: tuple[Node, ...]) -> tuple[Ints, Bools]:
    """Return `Log.steps` and `Log.decides`, which a live request asks for at each decision."""
    steps = np.array([node.step for node in nodes], dtype=np.int64)
    decides = np.append(steps[1:] != steps[:-1], True).astype(np.bool_)
    for column in (steps, decides):
        column.flags.writeable = False
    return steps, decides


def joined(logs: Sequence[Log], name: str) -> Log:
    """Return the requests of several logs of the same nodes as one log. Columns that a log lacks are unknown in it.

    Raises:
        UsageError: their nodes differ in number or step.
    """
    if len({tuple(log.steps.tolist()) for log in logs}) > 1:
        raise UsageError(
            f"The logs {', '.join([log.name for log in logs])} have other nodes, so they cannot be joined."
        )
    filled = [_filled(log, logs) for log in logs]
    columns = {name: _stacked([getattr(log, name) for log in filled]) for name in _OF_REQUESTS}
    return replace(filled[0], name=name, **columns, hidden=frozenset().union(*[log.hidden for log in logs]))


_OF_REQUESTS = tuple([column.name for column in fields(Log) if column.name not in {"name", "nodes", "hidden"}])
"""The columns with a value for each request, or with several such columns by name."""


def _rows_of(column: Any, rows: Ints | Bools) -> Any:
    """Return the chosen requests of a column."""
    if column is None or isinstance(column, bool):
        return column
    if isinstance(column, np.ndarray):
        return column[rows]
    if isinstance(column, Mapping):
        return {name: _rows_of(values, rows) for name, values in column.items()}
    if isinstance(column, Reference | Baseline):
        return type(column)(*[_rows_of(values, rows) for values in column])
    return tuple([column[row] for row in rows.tolist()])


def _stacked(columns: Sequence[Any]) -> Any:
    """Return a column of all requests of several logs."""
    first = columns[0]
    if first is None or isinstance(first, bool):
        return first and all(columns)
    if isinstance(first, np.ndarray):
        return np.concatenate(columns)
    if isinstance(first, Mapping):
        return {name: _stacked([column[name] for column in columns]) for name in first}
    if isinstance(first, Reference | Baseline):
        return type(first)(*[_stacked(values) for values in zip(*columns, strict=True)])
    return tuple([value for column in columns for value in column])


def _filled(log: Log, logs: Sequence[Log]) -> Log:
    """Return a log with every column that one of the others has, filled with unknown values where it lacks one."""
    nan, zeros, every = np.full(log.n, np.nan), np.zeros(log.n, dtype=np.int64), np.ones(log.n, dtype=np.bool_)
    nothing = Baseline(~every, ~every, nan, zeros - 1, zeros, zeros)
    blank = np.full(log.answer.shape, np.nan)
    lacks = log.reference is None and any(peer.reference is not None for peer in logs)
    last = all(peer.reference.is_last for peer in logs if peer.reference is not None)
    return replace(
        log,
        signals={key: log.signals.get(key, blank) for peer in logs for key in peer.signals},
        features={key: log.features.get(key, nan) for peer in logs for key in peer.features},
        baselines={key: log.baselines.get(key, nothing) for peer in logs for key in peer.baselines},
        reference=Reference(nan, zeros - 1, last) if lacks else log.reference,
        drawn=every if log.drawn is None else log.drawn,
        texts_known=every if log.texts_known is None else log.texts_known,
    )
