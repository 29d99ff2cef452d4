"""What a policy loses and spends on a log at every threshold, exactly: sums of jumps.

A policy gives each node a doubt. After the last node of a step the walk goes on while the doubt is at least the
threshold kappa, so −∞ is the strictest threshold and +∞ the most lenient. What a request loses, and what it costs,
changes only where kappa passes one of its own levels:

    reach   v_t = min of the doubts before node t       node t is bought   ⇔ v_t ≥ kappa and v_t > −∞
    keep    m_t = min(v_t, the answer's own score)      an answer is kept  ⇔ m_t ≥ kappa and m_t > −∞

So n requests are n·T jumps, and one sort gives the totals at every threshold, without a grid.

A record that ends before the request does is lost where a walk reaches its end: what follows is unknown. No total is
below the true one.
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
    """What a policy gives for a log.

    Attributes:
        doubt: float64 (n, T), read after the last node of each step: the walk goes on while it is at least the
            threshold. NaN, or a step without an answer: it always goes on.
        keep: float64 (n, T), for a policy that keeps a set of answers: the score of each. The best of a step's scores
            and its doubt is taken at every threshold, so that there is always something to do. None: every answer
            bought is kept.
        serve: int64 (n, T), the node whose answer is served if the walk ends after a node; −1: none. None: the newest.
        order: int64 (n, T), each request's nodes in the order of purchase, as `Log.in_order` takes them; every column
            above is in this order too. A node behind a doubt of −∞ is never bought. None: as listed.
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
        """Return the sum over all rows at each of P rising thresholds: int64 (P,)."""
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
        keep: float64 (n, T), that at which each answer is kept.
        serve: int64 (n, T), as in `Scores`.
        beyond: float64 (n,), the highest threshold at which it goes on behind the last node on record; of a set: +∞.
    """

    log: Log
    reach: Floats
    keep: Floats
    serve: Ints
    beyond: Floats

    def take(self, rows: Ints | Bools) -> Walks:
        """Return the chosen requests."""
        return Walks(self.log.take(rows), self.reach[rows], self.keep[rows], self.serve[rows], self.beyond[rows])

    def ending(self, kappa: float | Floats) -> Walks:
        """Return the same walks; a record that ends where a walk ends, at a threshold, is complete."""
        goes_on = reaches(self.beyond[:, None], kappa)[:, 0]
        return replace(self, log=replace(self.log, complete=self.log.complete | ~goes_on))

    def stop(self, kappa: float | Floats) -> Ints:
        """Return the last node that each walk buys, at one threshold or at one for each request: int64 (n,).

        −1 where the log has none: a walk's first node is missing.
        """
        bought = np.count_nonzero(reaches(self.reach, kappa), axis=1)
        return np.asarray(bought - 1, dtype=np.int64)

    @property
    def cost(self) -> Jumps:
        """What each request costs, nano-USD; an unknown cost counts as 0 (`Log.priced` says where)."""
        spent = np.maximum(self.log.cost_nano_usd, 0)
        return Jumps(np.zeros(self.log.n, dtype=np.int64), self.reach, spent)

    @property
    def thresholds(self) -> Floats:
        """Every threshold at which a decision changes, with −∞ and +∞: float64 (P,), rising."""
        levels = np.unique(np.concatenate([self.reach.ravel(), self.keep.ravel()]))
        return np.concatenate([[-np.inf], levels[np.isfinite(levels)], [np.inf]])


def reaches(level: Floats, kappa: float | Floats) -> Bools:
    """Return where levels (n, J) are reached at a threshold, or at one for each row: at least kappa, and not −∞."""
    bar = np.maximum(np.asarray(kappa, dtype=np.float64), -_LARGEST)
    return np.asarray(level >= (bar[:, None] if bar.ndim else bar), dtype=np.bool_)


def walks(log: Log, scores: Scores) -> Walks:
    """Return the walks that a policy's scores lead to.

    Raises:
        UsageError: they are no `Scores`, or one has another shape than the log, or serves what is not bought yet.
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
    if scores.order is not None:  # what is left out stays left out, also where the last node bought has no answer
        onward = np.where(scores.doubt == -np.inf, -np.inf, onward)
    levels = np.concatenate([np.full((log.n, 1), np.inf), np.minimum.accumulate(onward, axis=1)], axis=1)
    ends = np.count_nonzero(log.bought, axis=1) * (scores.keep is None)  # what a set keeps there, `_raised` leaves open
    beyond = levels[np.arange(log.n), ends]
    reach = np.where(log.bought, levels[:, :-1], -np.inf)
    keep = np.where(log.answers, np.minimum(own, reach), -np.inf)
    return Walks(log, reach, keep, newest(log) if scores.serve is None else scores.serve, beyond)


def _raised(log: Log, scores: Scores) -> tuple[Floats, Floats]:
    """Return the levels of going on and of keeping each answer, with the best of each decision raised to +∞.

    At an open end nothing is raised: whether the walk would have gone on is unknown, so an answer there is kept for its
    own score alone.
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
        # Of several answers without a score the first is the best; −∞ for all of them: the first that is there.
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
    """Return the newest answer up to each node: the node's number, int64 (n, T); −1: none yet."""
    numbers = np.where(log.answers, np.arange(log.width), -1)
    return np.asarray(np.maximum.accumulate(numbers, axis=1), dtype=np.int64)


def surest(log: Log) -> Ints:
    """Return the answer served up to each node, of all that were bought: the node's number, int64 (n, T); −1: none.

    It is the answer with the highest known confidence; then the one that most nodes gave, then the latest step's, then
    the first. Of the nodes that gave it, the surest stands for it.
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
        if not answers[:, count - 1].any():  # of a request in progress, what is not bought yet
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
        unknown: float64 (n,), the loss where it is unknown what is served: at an open end.
    """
    serve = walks.serve
    served = np.where(serve >= 0, np.take_along_axis(loss, np.maximum(serve, 0), axis=1), loss)
    return np.where(walks.log.open_end, unknown[:, None], served)


def loss_jumps(walks: Walks, at_stop: Floats) -> Jumps:
    """Return the losses of single answers as the threshold falls; `at_stop`, (n, T), as `stopped` returns."""
    units = np.ceil(at_stop * UNITS).astype(np.int64)
    return Jumps(units[:, 0], walks.reach[:, 1:], np.diff(units, axis=1))


def hopeless(log: Log) -> Bools:
    """Return which requests no call could answer rightly: complete, every answer judged, none of them right."""
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
    """Totals of n requests at P thresholds, tested from the first: exact.

    Attributes:
        n: the number of requests.
        kappas: float64 (P,), the thresholds: a walk goes on while the doubt is at least kappa.
        loss: int64 (P,), the losses in `UNITS`.
        cost_nano_usd: int64 (P,), of the recorded costs.
        every: whether every threshold at which a decision changes is among them: those between two decide alike.
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
    """Return the totals along thresholds, float64 (P,), that were put in order on other requests.

    `at_stop`, float64 (n, T), is the loss of a walk that ends after each node.
    """
    rows, units = np.arange(walks.log.n), np.ceil(at_stop * UNITS).astype(np.int64)
    stops = [walks.stop(kappa) for kappa in kappas.tolist()]
    # Where the first call is not on record, what would be served is unknown.
    loss = np.array([np.where(stop < 0, UNITS, units[rows, stop]).sum() for stop in stops], dtype=np.int64)
    cost = np.array([walks.cost.at(kappa).sum() for kappa in kappas.tolist()], dtype=np.int64)
    return Path(walks.log.n, kappas, loss, cost)
