"""The study behind `compare` and `prove`: prepare each method on a part of a log, and play it on the rest.

A split gives each group to one side or the other. A method is prepared on the first side as a user would prepare it,
and divides that side further if it learns. It is played on the other side, where its cost, its losses and what it
serves are recorded. Differences are paired over the splits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple, TypeAlias

import numpy as np

from cascade.conformal.path import hopeless
from cascade.conformal.promise import Promise, kind_of
from cascade.episodes.rows import Dataset
from cascade.errors import NotCertifiedError, UsageError
from cascade.fitting.divide import in_random_order, usable
from cascade.fitting.fit import LEAST_GROUPS
from cascade.parallel import HERE, parallel_map
from cascade.policies.policy import Depth, ReferenceOnly
from cascade.studies.diagnosis import Diagnosis, diagnose
from cascade.studies.methods import Fitted, Method, Played, fixed, methods
from cascade.table import Bools, Floats, Log

FITS = 0.7
"""The share of the groups that a method is prepared on."""
SERVED = Fitted().name

RISK, SET_RISK, CONFIDENCE = 0.05, 0.1, 0.9
"""The promise if none is given: the risk of one answer served, that of a set of answers, and the confidence."""


def default_promise(
    data: Dataset, kind: str | None = None, risk: float | None = None, confidence: float | None = None
) -> Promise:
    """Return a promise, with defaults for what is not given.

    The kind is what people were asked, or agreement if the reference's output is the truth; else regret if the log has
    the reference's answers; else coverage. One answer served breaks it on at most 5 % of requests, with confidence
    90 %; a set lacks a right answer on 10 % of requests on average.
    """
    truth = data.facts.truth
    if kind is None and truth is not None:
        kind = truth.kind or "agreement"
    kind = kind or ("coverage" if data.log.reference is None else "regret")
    rules = kind_of(kind)
    of_set = rules is not None and rules.of_set
    risk = (SET_RISK if of_set else RISK) if risk is None else risk
    return Promise(kind, risk, CONFIDENCE if confidence is None and not of_set else confidence)


# --- the bound ---


def oracle_cost(log: Log, promise: Promise) -> float | None:
    """Return the lowest mean cost, in nano-USD, of keeping a promise on these requests with every answer known.

    For each request it buys the cheapest answer that loses nothing, with the calls that this answer reads, or only the
    reference; and it gives up as many requests as the risk allows, where that saves most. No policy on these nodes
    costs less on these requests. A call without an answer may be the last one: then nothing is served. None if a cost
    is unknown, losses are graded, or the promise cannot be kept.
    """
    if promise.rules.graded or not log.priced.all():
        return None
    losses, cost = promise.rules.losses(log), np.maximum(log.cost_nano_usd, 0).astype(np.float64)
    options = [np.where(log.bought[:, at], _with_reads(log, cost, at), np.inf) for at in range(log.width)]
    lost = [losses[:, at] for at in range(log.width)]
    if log.reference is not None:
        options.append(log.reference.cost_nano_usd.astype(np.float64))
        wrong = np.where(promise.rules.of_set & hopeless(log), 0.0, 1.0 - log.reference.right)
        lost.append(np.zeros(log.n) if promise.rules.reference_keeps_it else wrong)
    price, harm = np.stack(options, axis=1), np.stack(lost, axis=1)
    safe = np.where(harm <= 0, price, np.inf).min(axis=1)
    least = price.min(axis=1)
    may = math.floor(promise.risk * log.n + 1e-9)
    gain = np.sort(safe - np.where(np.isinf(safe), 0.0, least))[::-1]
    if may < np.count_nonzero(np.isinf(safe)):
        return None
    given_up = gain[:may]
    total = np.where(np.isinf(safe), least, safe).sum() - given_up[np.isfinite(given_up)].sum()
    return float(total / log.n)


def _with_reads(log: Log, cost: Floats, at: int) -> Floats:
    """Return the cost of a node's step with all nodes that it reads, directly or indirectly: float64 (n,)."""
    needed = set(np.flatnonzero(log.steps == log.nodes[at].step).tolist())
    for node in range(max(needed), -1, -1):
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
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Row:
    """One method over all splits; NaN means unknown.

    Attributes:
        name: the name of the method.
        cost_share: its cost / the reference's, with an interval; None if a cost is unknown.
        saving: 1 − `cost_share`: how much less it costs than the reference; also None for the reference itself.
        broken: the number of splits in which a policy was proven and its loss exceeded the promise.
        refused: the number of splits in which nothing was proven, so that the reference answered.
        curve: the cost share in each split, in order.
        risk: the mean loss.
        right, calls, answers: the means of right answers, of calls bought and of different answers kept.
        requests: the mean number of test requests behind the figures.
    """

    name: str
    cost_share: Interval | None
    saving: Interval | None
    broken: int
    refused: int
    curve: tuple[float, ...]
    risk: float
    right: float
    calls: float
    answers: float
    requests: float


@dataclass(frozen=True, slots=True)
class Study:
    """The result of a study: every figure of `compare` and `prove`, computed once.

    Attributes:
        log: the name of the log.
        promise: what is promised.
        requests, groups: their numbers; repeated requests count once.
        repeated, left_out: rows left out: repeated requests, and those without the reference's answer.
        unpriced: the requests that lack a cost; savings are computed on the others.
        fitted_on, tested_on: groups on each side of a split.
        splits, seed: the number of splits, and the seed of their draw.
        rows: one for each method, the reference first.
        bound: the cost of `oracle_cost` / the reference's, as a mean over the test sides; None if unknown.
        why: the diagnosis of the log.
    """

    log: str
    promise: Promise
    requests: int
    groups: int
    repeated: int
    left_out: int
    unpriced: int
    fitted_on: int
    tested_on: int
    splits: int
    seed: int
    rows: tuple[Row, ...]
    bound: float | None
    why: Diagnosis

    def row(self, name: str) -> Row:
        """Return a method's row."""
        return next(row for row in self.rows if row.name == name)

    @property
    def verdict(self) -> str:
        """What `fit` would do for the log: "saves", "costs", "unsure", "refused" or "unknown" (no costs)."""
        row = self.row(SERVED)
        if row.saving is None:
            return "unknown"
        if 2 * row.refused >= self.splits:
            return "refused"
        if not row.saving.sure:
            return "unsure"
        return "saves" if row.saving.mean > 0 else "costs"

    @property
    def as_right(self) -> Row | None:
        """The cheapest model that costs less than the reference and is right as often; None if none is known."""
        if self.promise.rules.compares:
            return None
        models = {row.cost_share.mean: row for row in self.rows if row.name.endswith(" alone") and row.cost_share}
        shares = [share for share, row in models.items() if share < 1 and row.right >= self.rows[0].right]
        return models[min(shares)] if shares else None


def study(
    log: Log,
    promise: Promise,
    others: Sequence[Method] | None = None,
    *,
    splits: int = 20,
    seed: int = 0,
    on: str = HERE,
    show: Callable[[str, int, int], None] = lambda name, done, total: None,  # noqa: ARG005 - names are the interface
) -> Study:
    """Prepare every method on splits of a log, and play it on the rest.

    Args:
        log: the log.
        promise: what is promised.
        others: the methods; by default those of `methods`.
        splits: the number of splits.
        seed: the same seed gives the same figures.
        on: where the splits are played, as for `parallel.parallel_map`; the figures are the same everywhere.
        show: called with (the log's name, splits done, splits in all).

    Raises:
        UsageError: the log is too small to be split, or lacks what the promise needs.
    """
    if splits < 1:
        raise UsageError(f"A study needs a split, not {splits}.")
    ready = usable(log, promise)
    requests = ready.log
    name, policy = ("every call", Depth()) if requests.reference is None else ("reference alone", ReferenceOnly())
    playing = [fixed(name, policy), *(each for each in others or methods(requests, promise) if each.name != name)]
    drawn, done = enumerate(_sides(requests, splits, seed), seed), list[_Split]()
    with closing(parallel_map(partial(_split, requests, promise, playing), drawn, on)) as results:
        for result in results:
            done.append(result)
            show(requests.name, len(done), splits)
    sides, bounds, figures = (
        done[0][0],
        np.array([bound for _, bound, _ in done]),
        np.array([figures for *_, figures in done]),
    )
    rows = [_row(each.name, figures[:, at].T, promise, sides, of_reference=not at) for at, each in enumerate(playing)]
    return Study(
        requests.name, promise, requests.n, len(set(requests.groups)), ready.repeated, ready.unknown,
        int(np.count_nonzero(~requests.priced)), *sides, splits, seed, tuple(rows),
        None if np.isnan(bounds).any() else float(bounds.mean()), diagnose(requests, promise),
    )  # fmt: skip


_Split: TypeAlias = tuple[tuple[int, int], float, list[list[float]]]
"""The numbers of groups on both sides, the bound, and each method's figures. NaN means unknown."""


def _split(log: Log, promise: Promise, playing: Sequence[Method], split: tuple[int, Bools]) -> _Split:
    """Prepare every method, the reference first, on the rows of one side of a split, and play it on the others."""
    seed, fits = split
    here, rest = log.take(fits), log.take(~fits)
    alone = playing[0].prepare(here, promise, seed)(rest)
    alone = alone._replace(cost=np.where(rest.priced, alone.cost, np.nan))  # as in the savings of `fit`
    least, cost = oracle_cost(rest, promise), _mean(alone.cost)
    bound = least / cost if least is not None and cost > 0 else math.nan
    figures = list[list[float]]()
    for method in playing:
        try:
            figures.append([*_figures(method.prepare(here, promise, seed)(rest), alone), 0.0])
        except NotCertifiedError:  # the reference answers
            figures.append([*_figures(alone, alone), 1.0])
    return (len(set(here.groups)), len(set(rest.groups))), bound, figures


def _figures(played: Played, alone: Played) -> Iterator[float]:
    """Yield a method's cost share, then the means that end a `Row`, in its order."""
    priced = np.isfinite(played.cost) & np.isfinite(alone.cost)
    paid = float(alone.cost[priced].sum())
    yield float(played.cost[priced].sum()) / paid if paid else math.nan
    yield from map(_mean, (played.loss, played.right, played.length, played.size))
    yield float(np.count_nonzero(~np.isnan(played.length)))


def _sides(log: Log, count: int, seed: int) -> Iterator[Bools]:
    """Yield the rows that each split prepares on, bool (n,)."""
    names = in_random_order(log.groups, seed)
    if len(names) < 2:
        raise UsageError(f"{log.name} has one group of requests, which cannot be split.")
    number = {name: position for position, name in enumerate(names)}
    member = np.array([number[group] for group in log.groups])
    fitting = min(len(names) - 1, max(1, round(FITS * len(names))))
    for split in range(count):
        order = np.random.default_rng([seed % 2**63, split]).permutation(len(names))
        yield np.asarray((order < fitting)[member], dtype=np.bool_)


def _row(name: str, figures: Floats, promise: Promise, sides: tuple[int, int], *, of_reference: bool) -> Row:
    """Return the means of a method's figures over the splits."""
    share, *means, refused = figures
    cost = None if np.isnan(share).any() else interval(share, *sides)
    ends = None if cost is None or of_reference else (cost.mean, cost.high, cost.low)
    saving = None if ends is None else Interval._make(None if end is None else 1 - end for end in ends)
    broken = int(np.count_nonzero((means[0] > promise.risk) & (refused == 0)))
    return Row(
        name, cost, saving, broken, int(refused.sum()), tuple(share.tolist()), *map(_mean, means),
    )  # fmt: skip


def _mean(values: Floats) -> float:
    """Return the mean of the known values; NaN if there are none."""
    recorded = values[~np.isnan(values)]
    return float(recorded.mean()) if recorded.size else math.nan


def interval(values: Sequence[float] | Floats, fitted_on: int, tested_on: int) -> Interval:
    """Return the mean of cost shares, with a 95 % interval from the spread of J splits: Student's t, J − 1 degrees.

    No cost lies below 0. Splits share most requests, so their mean is hardly more certain than one of them. A threshold
    depends on a few losses: with the usual correction (Nadeau & Bengio, 2003: 1/J + tested/fitted of the variance),
    which covers the tests only, 95 % intervals covered .84 to .88 of simulated logs.
    """
    mean, splits = float(np.mean(values)), len(values)
    if splits < 2 or fitted_on + tested_on < LEAST_GROUPS:
        return Interval(mean, None, None)
    half = student_quantile(0.975, splits - 1) * float(np.std(values, ddof=1))
    return Interval(mean, max(0.0, mean - half), mean + half)


@cache
def student_quantile(p: float, df: int) -> float:
    """Return the p-quantile of Student's t with a whole number of degrees of freedom, 0.5 ≤ p < 1, to 1e-10.

    >>> round(student_quantile(0.975, 19), 4), round(student_quantile(0.975, 1), 4)
    (2.093, 12.7062)
    """
    angle = np.linspace(0, math.pi / 2, 200_001)  # t = sqrt(df) tan(angle) has a density of cos(angle) ** (df - 1)
    density = np.cos(angle) ** (df - 1)
    below = np.append(0.0, np.cumsum(density[1:] + density[:-1]))
    return math.sqrt(df) * math.tan(float(np.interp(2 * p - 1, below / below[-1], angle)))
