"""One study behind `compare`, `prove` and evaluations: prepare each way on a part of a log, play it on the rest.

A split gives whole groups to one side or the other. A way is prepared on the first side, as a user would: it divides
that side further if it learns. On the other side it is played, and its cost, its losses and what it serves are written
down. Differences are paired over the splits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from cascade.conformal.certify import certify
from cascade.conformal.path import UNITS, Point, reaches, strict_to_lenient
from cascade.conformal.promise import Promise
from cascade.errors import NotCertifiedError, UsageError
from cascade.house.divide import drawn, in_random_order, usable
from cascade.house.fit import Fit, FitSettings, fit
from cascade.house.policy import Policy
from cascade.house.simple import Alone, Depth, named_policy
from cascade.house.student import student_quantile
from cascade.table import Bools, Floats, Log

STRICTEST = Point(-np.inf)
FITS = 0.7
"""The share of the groups that a way is prepared on."""
LEAST_GROUPS = 6
"""With fewer there is no interval: of n differences chance gives all one sign with probability 2^(1 − n)."""


class Played(NamedTuple):
    """What a way does on n requests, float64 (n,) each.

    Attributes:
        loss: the promise's loss; NaN where it covers nothing.
        right: whether what is served is right; NaN: unknown.
        cost: nano-USD; NaN: unknown.
        length: nodes bought.
        size: different answers kept.
        silent: 1 where nothing is served.
    """

    loss: Floats
    right: Floats
    cost: Floats
    length: Floats
    size: Floats
    silent: Floats


class Way(Protocol):
    """A way to answer requests: `prepare` returns how it plays any others."""

    @property
    def name(self) -> str:
        """Its name in the table."""
        ...

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Choose and certify on these requests. Raises NotCertifiedError if nothing is proven."""
        ...


def play(policy: Policy, points: Point | Sequence[Point], log: Log, promise: Promise) -> Played:
    """Return what a policy does on requests, at one point or at one for each request."""
    walked = policy.walks(log)
    each = [points] * log.n if isinstance(points, Point) else points
    kappa, bar = (np.array([point[place] for point in each], dtype=np.float64) for place in (0, 1))
    stop, rows, rules, part = walked.stop(kappa), np.arange(log.n), promise.rules, walked.log
    kept = part.answers & reaches(walked.keep, kappa)
    served = walked.serve[rows, stop]
    right = np.where(served >= 0, part.right[rows, np.maximum(served, 0)], 0.0)
    sure = np.where(np.isnan(walked.sure[rows, stop]), -np.inf, walked.sure[rows, stop])
    silent = sure < bar
    loss = rules.jumps(walked).at(kappa) / UNITS if rules.of_set else rules.at_stop(walked)[rows, stop]
    known = (part.cost_nano_usd >= 0).all(axis=1)
    cost = np.where(known, walked.cost.at(kappa), np.nan)
    size = np.array([np.unique(row[some]).size for row, some in zip(part.answer, kept, strict=True)])
    served_right, lost = np.where(silent, 0.0, right), np.where(silent, 0.0, loss)
    counts = (column.astype(np.float64) for column in (stop + 1, size, silent))
    return Played(lost, served_right, cost, *counts)


@dataclass(frozen=True, slots=True)
class Fitted:
    """What `fit` serves, at its certified thresholds."""

    settings: FitSettings | None = None
    name: str = "cascade fit"

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Fit and certify; each split draws anew which requests learn."""
        done = fit(log, promise, replace(self.settings or FitSettings(), seed=seed))
        return lambda other: play_fit(done, other)


def play_fit(done: Fit, log: Log) -> Played:
    """Return what a fit serves on requests."""
    points = [done.point_of(segment) for segment in log.segments]
    return play(done.policy, points, log, done.promise)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A policy at a fixed point: the reference alone, one node alone, every node."""

    name: str
    policy: Policy
    point: Point = STRICTEST

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Return it as it is."""
        del log, seed
        return lambda other: play(self.policy, self.point, other, promise)


@dataclass(frozen=True, slots=True)
class OneTest:
    """One policy that learns nothing, tested at the whole level: what a skilled engineer writes in an afternoon."""

    name: str
    policy: Policy

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Certify its threshold on one request of each group."""
        part = drawn(usable(log, promise).log, seed)
        walked = self.policy.walks(part)
        proven = certify(strict_to_lenient(walked, promise.rules.jumps(walked)), promise, midway=False)
        if proven is None:
            raise NotCertifiedError(f"{self.name}: not even the strictest threshold is proven.")
        return lambda other: play(self.policy, proven.point, other, promise)


def ways(log: Log) -> list[Way]:
    """Return the ways that a log has the numbers for: the simple ones, then `fit`."""
    alone = [at for at in range(log.width) if _alone(log, at)]
    found: list[Way] = [Fixed(f"{log.nodes[at].name} alone", Depth((at,))) for at in alone]
    found.append(Fixed("every call", Depth()))
    simple = named_policy(log)
    if simple is not None and log.width > 1:
        found.append(OneTest("one threshold, exact test", simple.without_ties()))
        found.append(OneTest("one threshold, ties broken", simple))
    return [*found, Fitted()]


def _alone(log: Log, at: int) -> bool:
    """Whether a node reads no other, so that it can be asked alone."""
    return at == 0 or log.nodes[at].reads == ()


# --- the bound ---


def clairvoyant(log: Log, promise: Promise) -> float | None:
    """Return the least mean cost, nano-USD, at which these requests can keep a promise, knowing every answer.

    It buys for each request the cheapest answer that loses nothing, with the calls that this answer reads, or the
    reference alone; and it gives up the requests where that saves most, as many as the risk allows. No policy on these
    nodes costs less on these requests. None if a cost is unknown or the promise cannot be kept.
    """
    if promise.rules.of_set or not log.priced.all():
        return None
    losses, cost = promise.rules.loss(log), np.maximum(log.cost_nano_usd, 0).astype(np.float64)
    options = [np.where(log.answers[:, at], _with_reads(log, cost, at), np.inf) for at in range(log.width)]
    lost = [losses[:, at] for at in range(log.width)]
    if log.reference is not None:
        options.append(log.reference.cost_nano_usd.astype(np.float64))
        lost.append(np.zeros(log.n) if promise.rules.reference_keeps_it else 1.0 - log.reference.right)
    price, harm = np.stack(options, axis=1), np.stack(lost, axis=1)
    safe = np.where(harm <= 0, price, np.inf).min(axis=1)
    least = price.min(axis=1)
    may = math.floor(promise.risk * log.n + 1e-9)
    gain = np.sort(np.where(np.isinf(safe), np.inf, safe - least))[::-1]
    if may < np.count_nonzero(np.isinf(safe)):
        return None
    given_up = gain[:may]
    total = np.where(np.isinf(safe), least, safe).sum() - given_up[np.isfinite(given_up)].sum()
    return float(total / log.n)


def _with_reads(log: Log, cost: Floats, at: int) -> Floats:
    """Return the cost of a node with all nodes that it reads, directly or not: float64 (n,)."""
    needed = {at}
    for node in range(at, -1, -1):
        if node in needed:
            reads = log.nodes[node].reads
            needed |= set(range(node)) if reads is None else set(reads)
    return np.asarray(cost[:, sorted(needed)].sum(axis=1), dtype=np.float64)


# --- splits ---


class Interval(NamedTuple):
    """A mean over splits with its 95 % interval; a bound is None where it is unknown."""

    mean: float
    low: float | None
    high: float | None

    @property
    def sure(self) -> bool:
        """Whether 0 lies outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Row:
    """One way over all splits.

    Attributes:
        name: the way's.
        cost_share: its cost / the reference's, and the interval of that; None if a cost is unknown.
        saving: 1 − that of the reference row, paired: how much less it costs; None for the reference itself.
        risk: the mean loss.
        broken: in how many splits the loss exceeded the promise.
        refused: in how many splits nothing was proven; there the reference answered.
        right, length, size, silent: means.
        curve: the cost share in each split, in order.
    """

    name: str
    cost_share: Interval | None
    saving: Interval | None
    risk: float
    broken: int
    refused: int
    right: float
    length: float
    size: float
    silent: float
    curve: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """The result of a study: every figure of `compare` and `prove`, computed once.

    Attributes:
        log: the name of the log.
        promise: what is promised.
        requests, groups: how many; repeated requests count once.
        fitted_on, tested_on: groups on each side of a split.
        splits, seed: of the draw.
        rows: one for each way, the first the reference.
        bound: the clairvoyant's mean cost / the reference's, over the splits' tests; None if unknown.
    """

    log: str
    promise: Promise
    requests: int
    groups: int
    fitted_on: int
    tested_on: int
    splits: int
    seed: int
    rows: tuple[Row, ...]
    bound: float | None

    def row(self, name: str) -> Row:
        """Return a way's row."""
        return next(row for row in self.rows if row.name == name)


def study(
    log: Log,
    promise: Promise,
    others: Sequence[Way] | None = None,
    *,
    splits: int = 20,
    seed: int = 0,
    tell: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005 - names are the interface
) -> Study:
    """Prepare every way on splits of a log, and play it on the rest.

    Args:
        log: the log.
        promise: what is promised.
        others: the ways; by default those of `ways`.
        splits: how many.
        seed: the same seed gives the same figures.
        tell: called with (splits done, splits in all).

    Raises:
        UsageError: the log is too small to be split, or lacks what the promise needs.
    """
    whole = usable(log, promise).log
    playing: list[Way] = list(ways(whole) if others is None else others)
    alone_way, every = Fixed("the reference alone", Alone()), Fixed("every call", Depth())
    reference: Way = every if whole.reference is None else alone_way
    playing = [reference, *(way for way in playing if way.name != reference.name)]
    tallies = {way.name: _Tally() for way in playing}
    bounds, sides = list[float](), (0, 0)
    for number, fits in enumerate(_sides(whole, splits, seed)):
        here, there = whole.take(fits), whole.take(~fits)
        sides = len(set(here.groups)), len(set(there.groups))
        alone = reference.prepare(here, promise, seed)(there)
        least = clairvoyant(there, promise)
        if least is not None:
            bounds.append(least / float(np.nanmean(alone.cost)))
        for way in playing:
            tallies[way.name].add(_tried(way, here, there, promise, seed + number), alone, promise)
        tell(number + 1, splits)
    return Study(
        whole.name, promise, whole.n, len(set(whole.groups)), *sides, splits, seed,
        tuple([tally.row(name, sides, of_reference=name == reference.name) for name, tally in tallies.items()]),
        float(np.mean(bounds)) if len(bounds) == splits else None,
    )  # fmt: skip


def _tried(way: Way, here: Log, there: Log, promise: Promise, seed: int) -> Played | None:
    """Return what a way does on the test; None if it proves nothing."""
    try:
        return way.prepare(here, promise, seed)(there)
    except NotCertifiedError:
        return None


def _sides(log: Log, count: int, seed: int) -> Iterator[Bools]:
    """Yield the rows that each split prepares on, bool (n,)."""
    names = in_random_order(log.groups, seed)
    if len(names) < 2:
        raise UsageError(f"{log.name} has one group of requests, which cannot be split.")
    number = {name: place for place, name in enumerate(names)}
    member = np.array([number[group] for group in log.groups])
    many = min(len(names) - 1, max(1, round(FITS * len(names))))
    for split in range(count):
        order = np.random.default_rng([seed, split]).permutation(len(names))
        yield np.asarray((order < many)[member], dtype=np.bool_)


class _Tally:
    """The figures of one way, a value for each split."""

    def __init__(self) -> None:
        self.share, self.gap, self.risk = list[float](), list[float](), list[float]()
        self.others = list[tuple[float, ...]]()
        self.broken = self.refused = 0

    def add(self, played: Played | None, alone: Played, promise: Promise) -> None:
        """Add a split; where nothing was proven the reference answers."""
        self.refused += played is None
        did = alone if played is None else played
        paid = float(np.nanmean(alone.cost)) if np.isfinite(alone.cost).any() else math.nan
        both = np.isfinite(did.cost) & np.isfinite(alone.cost)
        share = float(did.cost[both].sum() / alone.cost[both].sum()) if both.any() and paid else math.nan
        self.share.append(share)
        self.gap.append(1 - share)
        risk = float(np.nanmean(did.loss))
        self.risk.append(risk)
        self.broken += risk > promise.risk
        self.others.append(tuple([float(np.nanmean(each)) for each in (did.right, did.length, did.size, did.silent)]))

    def row(self, name: str, sides: tuple[int, int], *, of_reference: bool) -> Row:
        """Return the means over the splits."""
        known = not np.isnan(self.share).any()
        right, length, size, silent = np.mean(self.others, axis=0).tolist()
        return Row(
            name=name,
            cost_share=interval(self.share, *sides) if known else None,
            saving=interval(self.gap, *sides) if known and not of_reference else None,
            risk=float(np.mean(self.risk)),
            broken=self.broken,
            refused=self.refused,
            right=right,
            length=length,
            size=size,
            silent=silent,
            curve=tuple(self.share),
        )


def interval(values: Sequence[float], fitted_on: int, tested_on: int) -> Interval:
    """Return the mean over splits and its 95 % interval, corrected for the overlap of splits.

    The variance over J splits is multiplied by 1/J + tested/fitted instead of 1/J; Student's t with J − 1 degrees.

    Reference: Nadeau & Bengio, Inference for the generalization error (2003).
    """
    mean, many = float(np.mean(values)), len(values)
    if many < 2 or fitted_on + tested_on < LEAST_GROUPS:
        return Interval(mean, None, None)
    spread = math.sqrt(float(np.var(values, ddof=1)) * (1 / many + tested_on / fitted_on))
    half = student_quantile(0.975, many - 1) * spread
    return Interval(mean, mean - half, mean + half)
