"""The losses and costs of a policy on a log, exactly, at every threshold: sums of jumps.

A policy gives each node a doubt. After the last node of a step the walk goes on while the doubt is at least the
threshold kappa, so −∞ is the strictest threshold and +∞ the most lenient. What a request loses, and what it costs,
changes only where kappa passes one of its own levels:

    reach   v_t = min of the doubts before node t       node t is bought   ⇔ v_t ≥ kappa and v_t > −∞
    keep    m_t = min(v_t, the answer's own score)      an answer is kept  ⇔ m_t ≥ kappa and m_t > −∞

So n requests are n·T jumps, and one sort gives the totals at every threshold, without a grid.

If a record ends before its request does, a walk that reaches the end of the record is lost, since what follows is
unknown. So no total of losses is below the true one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cascade.errors import UsageError
from cascade.table import Bools, Floats, Ints, Log

UNITS = 1 << 30
"""A loss of 1 in units. Losses are counted in whole units, rounded up, so that sums are exact."""
_LARGEST = float(np.finfo(np.float64).max)
_CHUNK = 1 << 14


class Scores(NamedTuple):
    """What a policy returns for a log.

    Attributes:
        doubt: float64 (n, T), read after the last node of each step: the walk goes on while it is at least the
            threshold. NaN, or a step without an answer: it always goes on.
        keep: float64 (n, T), for a policy that keeps a set of answers: the score of each. The highest of a step's
            scores and its doubt is raised to +∞, so that something is done at every threshold. None: every answer
            bought is kept.
        serve: int64 (n, T), the node whose answer is served if the walk ends after it; −1: none. None: the newest.
        order: int64 (n, T), each request's nodes in the order of purchase, as `Log.in_order` takes them; every column
            above is in this order too. A node after a doubt of −∞ is never bought. None: as listed.
    """

    doubt: Floats
    keep: Floats | None = None
    serve: Ints | None = None
    order: Ints | None = None


@dataclass(frozen=True, slots=True)
class Jumps:
    """n step functions of the threshold: `start`, plus each jump whose level the threshold does not exceed.

    Attributes:
        start: int64 (n,), the value where no level is reached.
        level: float64 (n, J); −∞: never reached.
        jump: int64 (n, J).
    """

    start: Ints
    level: Floats
    jump: Ints

    def total(self, kappa: Floats) -> Ints:
        """Return the sum over all rows at each of P ascending thresholds: int64 (P,)."""
        reached = np.where(self.level > -np.inf, np.searchsorted(kappa, self.level, side="right"), 0)
        cells = np.zeros(kappa.size + 1, dtype=np.int64)
        np.add.at(cells, reached.ravel(), self.jump.ravel())
        return np.asarray(int(self.start.sum()) + np.cumsum(cells[::-1])[::-1][1:], dtype=np.int64)

    def at(self, kappa: float | Floats) -> Ints:
        """Return each row's value at one threshold, or at one for each row: int64 (n,)."""
        return np.asarray(self.start + np.where(reaches(self.level, kappa), self.jump, 0).sum(axis=1), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Walks:
    """The walks of a policy over n requests, at every threshold.

    Attributes:
        log: the requests; if the scores have an order, with their nodes in this order.
        reach: float64 (n, T), the highest threshold at which each node is bought; −∞: never.
        keep: float64 (n, T), the highest threshold at which each answer is kept; −∞: never.
        serve: int64 (n, T), as in `Scores`.
        beyond: float64 (n,), the highest threshold at which a walk goes on after its last recorded node; +∞ for a set.
    """

    log: Log
    reach: Floats
    keep: Floats
    serve: Ints
    beyond: Floats

    def take(self, rows: Ints | Bools) -> Walks:
        """Return the walks of the chosen requests."""
        return Walks(self.log.take(rows), self.reach[rows], self.keep[rows], self.serve[rows], self.beyond[rows])

    def ending(self, kappa: float | Floats) -> Walks:
        """Return the same walks; a record beyond which the walk does not go at a threshold counts as complete."""
        goes_on = reaches(self.beyond[:, None], kappa)[:, 0]
        return replace(self, log=replace(self.log, complete=self.log.complete | ~goes_on))

    def stop(self, kappa: float | Floats) -> Ints:
        """Return the last node that each walk buys, at one threshold or at one for each request: int64 (n,).

        −1 if the log lacks even the walk's first node.
        """
        bought = np.count_nonzero(reaches(self.reach, kappa), axis=1)
        return np.asarray(bought - 1, dtype=np.int64)

    @property
    def cost(self) -> Jumps:
        """The cost of each request, nano-USD; an unknown cost counts as 0 (`Log.priced` says where)."""
        spent = np.maximum(self.log.cost_nano_usd, 0)
        return Jumps(np.zeros(self.log.n, dtype=np.int64), self.reach, spent)

    @property
    def thresholds(self) -> Floats:
        """Every threshold at which a decision changes, with −∞ and +∞: float64 (P,), ascending."""
        levels = np.unique(np.concatenate([self.reach.ravel(), self.keep.ravel()]))
        return np.concatenate([[-np.inf], levels[np.isfinite(levels)], [np.inf]])


def reaches(level: Floats, kappa: float | Floats) -> Bools:
    """Return where levels (n, J) are reached at a threshold, or at one for each row: at least kappa, and not −∞."""
    bar = np.maximum(np.asarray(kappa, dtype=np.float64), -_LARGEST)
    return np.asarray(level >= (bar[:, None] if bar.ndim else bar), dtype=np.bool_)


def walks(log: Log, scores: Scores) -> Walks:
    """Return the walks that a policy's scores lead to.

    Raises:
        UsageError: the scores have a wrong type or shape, or serve a node that is not bought yet.
    """
    if not isinstance(scores, Scores):
        raise UsageError(f"A policy's scores are cascade.conformal.path.Scores, not {type(scores).__name__}.")
    shape = log.answer.shape
    wrong = [name for name, a in zip(scores._fields, scores, strict=True) if a is not None and a.shape != shape]
    if wrong:
        raise UsageError(f"The scores {', '.join(wrong)} must have the shape {shape}, as the log {log.name}.")
    for name, numbers in (("serve", scores.serve), ("order", scores.order)):
        if numbers is not None and not np.issubdtype(numbers.dtype, np.integer):
            raise UsageError(f"The scores {name} are numbers of nodes, int64, not {numbers.dtype}.")
    if scores.order is not None:
        log = log.in_order(scores.order)
    last = np.searchsorted(log.steps, log.steps, side="right") - 1
    if scores.serve is not None and ((scores.serve < -1) | (scores.serve > last)).any():
        raise UsageError("The scores serve must be −1 or the number of a node that is bought by then.")
    onward, own = _raised(log, scores)
    if scores.order is not None:  # a node left out stays left out, even if the last node bought has no answer
        onward = np.where(scores.doubt == -np.inf, -np.inf, onward)
    levels = np.concatenate([np.full((log.n, 1), np.inf), np.minimum.accumulate(onward, axis=1)], axis=1)
    ends = np.count_nonzero(log.bought, axis=1) * (scores.keep is None)  # for a set, `_raised` leaves the end open
    beyond = levels[np.arange(log.n), ends]
    reach = np.where(log.bought, levels[:, :-1], -np.inf)
    keep = np.where(log.answers, np.minimum(own, reach), -np.inf)
    return Walks(log, reach, keep, newest(log) if scores.serve is None else scores.serve, beyond)


def _raised(log: Log, scores: Scores) -> tuple[Floats, Floats]:
    """Return the levels of going on and of keeping each answer, with the best of each decision raised to +∞.

    At an open end no decision is raised: whether the walk would have gone on is unknown, so an answer there is kept
    for its own score only.
    """
    answers, decides, steps = log.answers, log.decides, log.steps
    onward = np.where(np.isnan(scores.doubt) | ~decides, np.inf, scores.doubt)
    if scores.keep is None:
        for step in np.unique(steps).tolist():
            at = np.flatnonzero(steps == step)
            onward[~answers[:, at].any(axis=1), at[-1]] = np.inf
        return onward, np.full(onward.shape, np.inf)
    own = np.where(answers & ~np.isnan(scores.keep), scores.keep, -np.inf)
    open_end, rows = log.open_end, np.arange(log.n)
    bought = np.count_nonzero(log.bought, axis=1)
    for step in np.unique(steps).tolist():
        at = np.flatnonzero(steps == step)
        last = at[-1]
        answered, score = answers[:, at], own[:, at]
        best = np.where(answered.any(axis=1), np.where(answered, score, -np.inf).argmax(axis=1), -1)
        # If every score is −∞ or missing, the first answer that exists is the best.
        first = answered.argmax(axis=1)
        best = np.where((best >= 0) & ~answered[rows, best], first, best)
        score_of_best = np.where(best >= 0, scores.keep[rows, at[best]], -np.inf)
        ends = bought <= last + 1
        goes_on = ~ends & ((best < 0) | ~(onward[:, last] <= score_of_best))
        onward[goes_on, last] = np.inf
        chosen = (best >= 0) & ~goes_on & ~open_end[:, last]
        own[rows[chosen], at[best[chosen]]] = np.inf
    return onward, own


def newest(log: Log) -> Ints:
    """Return the newest answer up to each node, as its node's number, int64 (n, T); −1: none yet."""
    numbers = np.where(log.answers, np.arange(log.width), -1)
    return np.asarray(np.maximum.accumulate(numbers, axis=1), dtype=np.int64)


def surest(log: Log) -> Ints:
    """Return the surest of the answers bought up to each node, as its node's number, int64 (n, T); −1: none.

    It is the answer with the highest known confidence; among equals the one that most nodes gave, then the latest
    step's, then the first. Of the nodes that gave it, the surest is returned.
    """
    ranked, answers, steps = np.where(np.isnan(log.confidence), -1.0, log.confidence), log.answers, log.steps
    if not (np.count_nonzero(answers, axis=1) > 1).any():  # nothing to compare
        return newest(log)
    best = np.full(log.answer.shape, -1, dtype=np.int64)
    for start in range(0, log.n, _CHUNK):
        rows = slice(start, start + _CHUNK)
        best[rows] = _surest(log.answer[rows], ranked[rows], answers[rows], steps)
    return best


def _surest(answer: Ints, ranked: Floats, answers: Bools, steps: Ints) -> Ints:
    best = np.full(answer.shape, -1, dtype=np.int64)
    for count in range(1, steps.size + 1):
        if not answers[:, count - 1].any():  # a node that a request in progress has not bought yet
            best[:, count - 1] = best[:, count - 2] if count > 1 else -1
            continue
        answered, sure = answers[:, :count], ranked[:, None, :count]
        equal = (answer[:, :count, None] == answer[:, None, :count]) & answered[:, :, None] & answered[:, None, :]
        keys = (
            np.where(equal, sure, -np.inf).max(axis=2),
            equal.sum(axis=2),
            np.where(equal, steps[:count], -1).max(axis=2),
            -np.where(equal, np.arange(count), count).min(axis=2),
        )
        leading = answered.copy()
        for key in keys:
            worth = np.where(leading, key, -np.inf)
            leading &= worth == worth.max(axis=1, keepdims=True)
        chosen = np.where(leading, ranked[:, :count], -np.inf).argmax(axis=1)
        best[:, count - 1] = np.where(answered.any(axis=1), chosen, -1)
    return best


def stopped(walks: Walks, loss: Floats, unknown: Floats) -> Floats:
    """Return the loss of a walk that ends after each node: float64 (n, T).

    Args:
        walks: the walks.
        loss: float64 (n, T), the loss if a node's answer is served; where it has none, the loss of serving nothing.
        unknown: float64 (n,), the loss at an open end, where the served answer is unknown.
    """
    serve = walks.serve
    served = np.where(serve >= 0, np.take_along_axis(loss, np.maximum(serve, 0), axis=1), loss)
    return np.where(walks.log.open_end, unknown[:, None], served)


def loss_jumps(walks: Walks, at_stop: Floats) -> Jumps:
    """Return the losses of single served answers as jumps; `at_stop` is (n, T), as `stopped` returns it."""
    units = np.ceil(at_stop * UNITS).astype(np.int64)
    return Jumps(units[:, 0], walks.reach[:, 1:], np.diff(units, axis=1))


def hopeless(log: Log) -> Bools:
    """Return which requests no call answered correctly: complete, every answer judged, none of them right."""
    unjudged = (log.answers & np.isnan(log.right)).any(axis=1)
    return np.asarray(log.complete & ~unjudged & ~(log.right == 1).any(axis=1), dtype=np.bool_)


def missed_jumps(walks: Walks) -> Jumps:
    """Return 1 for each request without a right answer among those kept, though a right one may exist."""
    right = walks.log.right == 1
    level = np.where(right, walks.keep, -np.inf).max(axis=1)
    level[hopeless(walks.log)] = np.inf
    lost = np.full(walks.log.n, UNITS, dtype=np.int64)
    return Jumps(lost, level[:, None], -lost[:, None])


@dataclass(frozen=True, slots=True)
class Path:
    """Exact totals of n requests at P thresholds, in the order in which these are tested.

    Attributes:
        n: the number of requests.
        kappas: float64 (P,), the thresholds: a walk goes on while the doubt is at least kappa.
        loss: int64 (P,), the losses in `UNITS`.
        cost_nano_usd: int64 (P,), the recorded costs.
        every: whether they include every threshold at which a decision changes, so that all between two decide alike.
    """

    n: int
    kappas: Floats
    loss: Ints
    cost_nano_usd: Ints
    every: bool = False


def strict_to_lenient(walks: Walks, jumps: Jumps) -> Path:
    """Return the path over every threshold, the strictest first: an order that depends on no outcome.

    >>> from cascade.table import Log, Node
    >>> answer, right = np.array([[0, 1], [0, 0]]), np.array([[0.0, 1.0], [1.0, 1.0]])
    >>> log = Log("two", (Node("small", 0), Node("large", 1)), ("a", "b"), ("a", "b"), answer, right,
    ...     np.array([[1, 9], [1, 9]]), answer >= 0, np.ones(2, dtype=bool), np.full((2, 2), np.nan))
    >>> walked = walks(log, Scores(np.array([[0.8, 0.0], [0.2, 0.0]])))
    >>> wrong = stopped(walked, 1 - right, np.ones(2))
    >>> path = strict_to_lenient(walked, loss_jumps(walked, wrong))
    >>> path.kappas.tolist(), path.loss.tolist(), path.cost_nano_usd.tolist()
    ([-inf, 0.2, 0.8, inf], [0, 0, 0, 1073741824], [20, 20, 11, 2])
    """
    kappa = walks.thresholds
    return Path(walks.log.n, kappa, jumps.total(kappa), walks.cost.total(kappa), every=True)


def along(walks: Walks, at_stop: Floats, kappas: Floats) -> Path:
    """Return the totals at thresholds, float64 (P,), that were ordered by means of other requests.

    `at_stop`, float64 (n, T), is the loss of a walk that ends after each node.
    """
    rows, units = np.arange(walks.log.n), np.ceil(at_stop * UNITS).astype(np.int64)
    stops = [walks.stop(kappa) for kappa in kappas.tolist()]
    # If the first call is not on record, the answer that would be served is unknown.
    loss = np.array([np.where(stop < 0, UNITS, units[rows, stop]).sum() for stop in stops], dtype=np.int64)
    cost = np.array([walks.cost.at(kappa).sum() for kappa in kappas.tolist()], dtype=np.int64)
    return Path(walks.log.n, kappas, loss, cost)
