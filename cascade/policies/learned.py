"""The learned stopping rule: before each call it decides which node to buy next, or to stop and serve.

A state is the set of nodes bought so far, in listed order; the last node is the reference and ends the walk. With a
price μ of a loss, buying node j after a state is worth

    Q_j = E[ μ · (loss of stopping now − loss where the later rules stop) − price of j − cost of what they buy then ],

and the rule goes on, with the best j, while that is above 0. From the largest state back to the empty one, a ridge
regression of the realised value on the features of the state estimates Q_j. μ is the lowest price at which the rules
lose on the training requests only what a certificate will allow. The doubt is Q_j of the best j per mean cost of going
on: near 0 a change of μ moves it equally in every state, so that one threshold acts in all states like another price.

Which node is the best does not depend on the threshold. So walks are nested, and every promise is certified as for a
ladder. Any doubts are valid: the quality of the estimates decides what is saved, never what is promised.

Reference: Longstaff & Schwartz, Valuing American options by simulation (2001); `design/fitting.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cascade.conformal.path import Scores
from cascade.conformal.promise import Kind
from cascade.errors import UsageError
from cascade.policies.features import MOST, columns_of, offered, read, signals_of
from cascade.policies.policy import LARGEST, LEARNED, TIE, Policy, known_score, ranked
from cascade.table import Bools, Floats, Ints, Log, Node

State: TypeAlias = tuple[int, ...]
ALL_STATES, MOST_NODES = 6, 12
"""Up to the first number of nodes every set is a state, beyond it those of `further`; the second is the most nodes."""
FEATURES = 8
"""The most features of a state if a score is `known_score`: 3 to 8 cost the same, 20 cost 3 % more with 400 requests.
Otherwise there are `MOST`."""
KNOTS = 33
"""The number of quantiles that describe a feature's distribution."""
PENALTY = 9.0
"""The penalty of a column is this times the number of columns: best if the columns explain a tenth of the variance."""
AIM = 0.75
"""The share of the allowed loss at which the price of a loss is set, since doubts matter near the later threshold."""
LOW, HIGH, HALVINGS = -6.0, 14.0, 12
"""The range of prices of a loss, as powers of two of a mean call's cost, and how often the search halves it."""
CLIPPED_AT = 0.98
"""The quantile at which a node's costs are clipped for fitting."""
LEAST_COST = 0.01
"""The least cost of going on by which a value is divided, in mean calls."""


class Ranks(NamedTuple):
    """d features as columns between −1 and 1, then an indicator for each that was missing in training.

    A feature x becomes 2 p − 1, with p the share of training requests below x, linear between quantiles. Log-probs
    crowd at 0 and lengths have long tails: rules linear in x itself cost .55 of the guide on MMLU, these .38.

    Attributes:
        knots: float64 (d, K), ascending: the quantiles.
        heights: float64 (d, K), ascending: the column's value at each; equal quantiles have the mean of their values.
        missing: int64 (i,), the features that have an indicator.

    >>> ranks = ranks_of(np.array([[0.0, 5.0], [1.0, 5.0], [2.0, np.nan], [9.0, np.nan]]))
    >>> np.stack(ranks.columns(np.array([[5.5, 5.0], [0.0, np.nan]])), axis=1).round(6)
    array([[ 0.666667,  0.      ,  0.      ],
           [-1.      ,  0.      ,  1.      ]])
    """

    knots: Floats
    heights: Floats
    missing: Ints

    def columns(self, raw: Floats) -> list[Floats]:
        """Return the columns of features (n, d), each (n,); 0 for a missing feature."""
        scaled = [_placed(values, *line) for values, *line in zip(raw.T, self.knots, self.heights, strict=True)]
        return [*scaled, *(np.isnan(raw[:, at]).astype(np.float64) for at in self.missing.tolist())]

    def strange(self, raw: Floats) -> Bools:
        """Return where a feature is missing that was never missing in training: bool (n,)."""
        never = np.ones(len(self.knots), dtype=np.bool_)
        never[self.missing] = False
        return np.asarray(np.isnan(raw[:, never]).any(axis=1))


def ranks_of(raw: Floats) -> Ranks:
    """Return the ranks of training features, float64 (n, d), n > 0, NaN where missing."""
    even = np.linspace(0.0, 1.0, KNOTS)
    knots, heights = np.zeros((raw.shape[1], KNOTS)), np.zeros((raw.shape[1], KNOTS))
    for at, values in enumerate(raw.T):
        finite = values[np.isfinite(values)]
        if finite.size:
            knots[at] = np.quantile(finite, even)
            _, tied, ties = np.unique(knots[at], return_inverse=True, return_counts=True)
            heights[at] = (np.bincount(tied, 2 * even - 1) / ties)[tied]
    return Ranks(knots, heights, np.flatnonzero(np.isnan(raw).any(axis=0)))


def _placed(values: Floats, knots: Floats, heights: Floats) -> Floats:
    """Return the heights of values between knots, element by element: a row alone gets the same bits as in a log."""
    unknown = np.isnan(values)
    clipped = np.clip(np.where(unknown, knots[0], values), knots[0], knots[-1])
    above = np.clip(np.searchsorted(knots, clipped), 1, knots.size - 1)
    wide = knots[above] - knots[above - 1]
    share = np.where(wide > 0, (clipped - knots[above - 1]) / np.where(wide > 0, wide, 1.0), 1.0)
    return np.where(unknown, 0.0, heights[above - 1] + share * (heights[above] - heights[above - 1]))


class Rule(NamedTuple):
    """What a state buys next.

    Attributes:
        bought: the state.
        following: the k nodes that may follow.
        features: the names of the d features that it reads.
        ranks: turns them into D columns.
        weights: float64 (k, D), in mean calls.
        intercept: float64 (k,).
        cost: float64 (k,), the mean cost of going on with each node, in mean calls.
    """

    bought: State
    following: State
    features: tuple[str, ...]
    ranks: Ranks
    weights: Floats
    intercept: Floats
    cost: Floats

    def values(self, log: Log) -> Floats:
        """Return Q_j of each node that may follow, float64 (n, k), with the same bits for one row as for many."""
        raw = read(log, self.bought, self.features)
        total = np.repeat(self.intercept[None, :], log.n, axis=0)
        for column, weights in zip(self.ranks.columns(raw), self.weights.T, strict=True):
            total = total + column[:, None] * weights
        # A feature that was never missing in training would be a guess: go on to the reference, or towards it.
        total[self.ranks.strange(raw)] = np.where(
            np.arange(len(self.following)) == len(self.following) - 1, LARGEST, -LARGEST
        )
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Learned(Policy):
    """The learned rule of a plan whose nodes are single calls.

    Attributes:
        rules: one for each state.
        right: float64 (T,), how often each node was right in training, 1 for the last. Of the answers bought, the one
            whose node has the highest value is served, and among equals the newest.
        nodes: the nodes of the plan that it may buy; None: all.
    """

    kind: ClassVar[str] = LEARNED
    rules: tuple[Rule, ...]
    right: Floats
    nodes: tuple[int, ...] | None = None

    @property
    def columns(self) -> frozenset[str]:
        """The signals that its rules read."""
        return columns_of([name for rule in self.rules for name in rule.features])

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that no training request lacked; it has learned what to do where others are missing."""
        return signals_of(
            name for rule in self.rules for at, name in enumerate(rule.features) if at not in rule.ranks.missing
        )

    def scores(self, log: Log) -> Scores:
        """Return the nodes in the order of purchase, with the doubt after each."""
        order = np.full(log.answer.shape, -1, dtype=np.int64)
        doubt = np.full(log.answer.shape, -np.inf)
        rules = {rule.bought: rule for rule in self.rules}
        waiting: list[tuple[State, Ints]] = [((), np.arange(log.n))]
        while waiting:
            state, rows = waiting.pop()
            order[rows[:, None], np.arange(len(state))] = state
            if state not in rules or not rows.size:
                continue
            values = rules[state].values(log.take(rows))
            best = values.argmax(axis=1)
            if state:
                doubt[rows, len(state) - 1] = ranked((values / rules[state].cost)[np.arange(rows.size), best])
            waiting += [((*state, node), rows[best == at]) for at, node in enumerate(rules[state].following)]
        filled = _filled(order)
        return Scores(doubt, serve=_served(log, filled, self.right), order=filled)

    def settings(self) -> dict[str, Any]:
        """Return the states, what may follow them, and the names of their features."""
        return {"rules": [[list(rule.bought), list(rule.following), list(rule.features)] for rule in self.rules]}

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return how often each node was right, and the arrays of each rule by its number."""
        arrays: dict[str, NDArray[Any]] = {"right": self.right}
        for number, rule in enumerate(self.rules):
            values = (*rule.ranks, rule.weights, rule.intercept, rule.cost)
            arrays |= {f"{number}.{name}": value for name, value in zip(_PARTS, values, strict=True)}
        return arrays

    @classmethod
    def read(cls, settings: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Learned:
        """Return the policy that was written; the directory's hashes prove that it is unchanged."""
        rules = [
            Rule(tuple(bought), tuple(following), tuple(features), Ranks(*arrays[:3]), *arrays[3:])
            for number, (bought, following, features) in enumerate(settings["rules"])
            for arrays in [[tensors[f"{number}.{name}"] for name in _PARTS]]
        ]
        nodes = settings["nodes"]
        return cls(tuple(rules), tensors["right"], None if nodes is None else tuple(nodes))


_PARTS = ("knots", "places", "missing", "weights", "intercept", "cost")


def _filled(order: Ints) -> Ints:
    """Return orders completed with the nodes that are never bought, at the end."""
    lacks = np.ones(order.shape, dtype=np.bool_)
    rows, columns = np.nonzero(order >= 0)
    lacks[rows, order[rows, columns]] = False
    filled = order.copy()
    filled[order < 0] = np.nonzero(lacks)[1]
    return filled


def _served(log: Log, order: Ints, right: Floats) -> Ints:
    """Return the place of the answer served after each purchase, int64 (n, T): the node's that is most often right."""
    answered = np.take_along_axis(log.answers, order, axis=1)
    ranks = np.where(answered, right[order], -np.inf)
    best = answered & (ranks == np.maximum.accumulate(ranks, axis=1))
    return np.asarray(np.maximum.accumulate(np.where(best, np.arange(log.width), -1), axis=1), dtype=np.int64)


# --- learning


def further(state: State, nodes: Sequence[Node]) -> State:
    """Return the nodes that may be bought next: later ones that read only what is bought, but not the last one first.

    A node that the last node reads is never left out.

    >>> ladder = [Node(name, at, reads=()) for at, name in enumerate("abc")]
    >>> further((), ladder), further((0,), ladder), further((0,), [Node("a", 0), Node("b", 1), Node("c", 2)])
    ((0, 1), (1, 2), (1,))
    """
    width, after = len(nodes), max((-1, *state)) + 1
    reads = [{*range(at)} if node.reads is None else {*node.reads} for at, node in enumerate(nodes)]
    last = min(reads[-1] - {*state}, default=width - 1 if state else width - 2)
    following = [at for at in range(after, last + 1) if reads[at] <= {*state}]
    if width > ALL_STATES and state:
        following = [at for at in following if at in {following[0], width - 1}]
    return tuple(following)


def states(nodes: Sequence[Node]) -> list[State]:
    """Return the sets of nodes that can be bought without the last, smaller ones first.

    >>> states([Node(name, at, reads=()) for at, name in enumerate("abc")])
    [(), (0,), (1,), (0, 1)]
    """
    reached: list[State] = [()]
    for state in reached:  # the list grows meanwhile
        reached += [(*state, at) for at in further(state, nodes) if at < len(nodes) - 1]
    return reached


def router(log: Log, kind: Kind) -> Callable[[Log], Floats]:
    """Return a function that estimates the loss of the first node's answer from the features of requests alone.

    Args:
        log: the training requests, of two nodes; those that lack a node are left out.
        kind: the kind of promise.

    Raises:
        UsageError: no request has both nodes.
    """
    log = _with_every_node(log)
    stage = _stage(log, (), (0,), None, MOST)
    weights, intercept = stage.solve(kind.losses(log)[:, 0])
    rule = Rule((), (0,), stage.features, stage.ranks, weights[None, :], np.array([intercept]), np.ones(1))
    return lambda requests: rule.values(requests)[:, 0]


def _with_every_node(log: Log) -> Log:
    """Return the requests that have every node. Raises UsageError if no request has."""
    if not (complete := log.take(np.flatnonzero(log.bought.all(axis=1)))).n:
        names = ", ".join(node.name for node in log.nodes)
        advice = "log the same requests with all of them, as cascade collect does"
        raise UsageError(f"No request of {log.name} has every node ({names}): {advice}.")
    return complete


class _StateData(NamedTuple):
    """A state's training data: what its rule reads, centred columns, and the inverse of their penalised products."""

    following: State
    features: tuple[str, ...]
    ranks: Ranks
    means: Floats
    columns: Floats
    inverse: Floats

    def solve(self, y: Floats) -> tuple[Floats, float]:
        """Return weights and intercept of the ridge regression of y; einsum gives the same bits on every machine."""
        weights = np.einsum("ij,j->i", self.inverse, np.einsum("nj,n->j", self.columns, y))
        return weights, float(y.mean() - (weights * self.means).sum())


def learn(log: Log, kind: Kind, allowed: float, *, signals: Sequence[str] | None = None) -> Learned:
    """Learn which node to buy next and when to stop.

    Args:
        log: the training requests; those that lack a node are left out.
        kind: the kind of promise.
        allowed: the mean loss that the certificate will allow.
        signals: the only signals that are read, each of the newest node, with the nodes in listed order: with a single
            signal, one threshold per rung, all tuned together. None: all features, and nodes may be left out.

    Raises:
        UsageError: no request has every node, nodes are bought together, or there are more than `MOST_NODES`.
    """
    if not log.decides.all() or not 2 <= log.width <= MOST_NODES:
        raise UsageError(f"A learned rule needs a plan of 2 to {MOST_NODES} single calls, unlike {log.name}: fit auto.")
    log = _with_every_node(log)
    nodes = log.nodes if signals is None else [node._replace(reads=None) for node in log.nodes]
    right = np.append(np.clip(np.nan_to_num(log.right).mean(axis=0)[:-1], 0.0, 0.98), 1.0)
    score = known_score(log)
    most = MOST if score is None or score.signal == TIE else FEATURES
    stages = {state: _stage(log, state, further(state, nodes), signals, most) for state in states(nodes)}
    lost = {state: _lost(log, kind, state, right) for state in (*stages, (log.width - 1,))}
    cost = _costs(log)

    def loss_at(power: float) -> float:
        return _backward(stages, lost, cost, 2.0**power)[1]

    first = float(lost[stages[()].following[:1]].mean())
    aim = max(AIM * min(allowed, first), loss_at(HIGH))
    low, high = LOW, HIGH
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if loss_at(middle) <= aim else (middle, high)
    return Learned(_backward(stages, lost, cost, 2.0**high)[0], right)


def _stage(log: Log, state: State, following: State, signals: Sequence[str] | None, most: int) -> _StateData:
    features = offered(log, state, most)
    if signals is not None:
        features = tuple([f"{name}@{state[-1]}" for name in signals]) if state else ()
    raw = read(log, state, features)
    ranks = ranks_of(raw)
    columns = np.stack([np.ones(log.n), *ranks.columns(raw)], axis=1)[:, 1:]
    means = columns.mean(axis=0)
    columns = columns - means
    penalty = PENALTY * columns.shape[1] * np.eye(columns.shape[1])
    return _StateData(
        following, features, ranks, means, columns, np.linalg.inv(np.einsum("ni,nj->ij", columns, columns) + penalty)
    )


def _lost(log: Log, kind: Kind, state: State, right: Floats) -> Floats:
    """Return the loss of stopping with these nodes bought: float64 (n,); 0 before the first, where no walk stops."""
    if not state:
        return np.zeros(log.n)
    rest = [node for node in range(log.width) if node not in state]
    order = np.broadcast_to(np.array([*state, *rest]), log.answer.shape)
    serve = _served(log, order, right)[:, len(state) - 1]
    return kind.losses(log.in_order(order))[np.arange(log.n), np.maximum(serve, 0)]


def _costs(log: Log) -> Floats:
    """Return the clipped cost of each node, float64 (n, T), in mean calls; 1 each if a cost is unknown or all are 0."""
    cost = log.cost_nano_usd.astype(np.float64)
    if (cost < 0).any() or not cost.any():
        return np.ones(cost.shape)
    cost = np.minimum(cost, np.quantile(cost, CLIPPED_AT, axis=0))
    return np.asarray(cost / cost.mean())


def _backward(
    stages: Mapping[State, _StateData], lost: Mapping[State, Floats], cost: Floats, price: float
) -> tuple[tuple[Rule, ...], float]:
    """Return the rules at one price of a loss, and their mean loss on the training requests."""
    n, width = cost.shape
    end: State = (width - 1,)
    # For walks that start at a state: the loss, and the cost from there on.
    walked: dict[State, tuple[Floats, Floats]] = {end: (lost[end], np.zeros(n))}
    rules: list[Rule] = []
    for state, stage in reversed([*stages.items()]):
        after = [walked[end if node == width - 1 else (*state, node)] for node in stage.following]
        losses = np.stack([loss for loss, _ in after], axis=1)
        spent = np.stack([rest + cost[:, node] for node, (_, rest) in zip(stage.following, after, strict=True)], axis=1)
        worth = price * (lost[state][:, None] - losses) - spent
        solved = [stage.solve(y) for y in worth.T]
        weights, intercept = np.stack([slope for slope, _ in solved]), np.array([slope for _, slope in solved])
        values = worth.mean(axis=0) + np.einsum("nj,kj->nk", stage.columns, weights)
        best = values.argmax(axis=1)[:, None]
        stops = (values.max(axis=1) <= 0) & bool(state)
        walked[state] = (
            np.where(stops, lost[state], np.take_along_axis(losses, best, axis=1)[:, 0]),
            np.where(stops, 0.0, np.take_along_axis(spent, best, axis=1)[:, 0]),
        )
        per = np.maximum(spent.mean(axis=0), LEAST_COST)
        rules.append(Rule(state, stage.following, stage.features, stage.ranks, weights, intercept, per))
    return tuple(reversed(rules)), float(walked[()][0].mean())
