"""Fit a hedge (when to start the reference's call early) by backward regressions over the steps of a policy's walk.

A walk at the served threshold takes steps c_1 < … < c_m and ends, or reaches the reference. Before each call c_k of an
earlier step the reference's call can be started. The value of this is, in nano-USD,

    v_k = λ · min(t, w_k) if the walk reaches the reference, and −c if it does not,

where λ is the price of a second, t and c are the seconds and the cost of the reference's call, and w_k the seconds of
the calls from c_k on. From the last step back, v_k minus the value of the later rules is regressed on the features of
the steps so far (before the first call, numbers of the request alone). The reference's call starts where the prediction
is above 0. So starting now is compared with starting later and with never. A cancelled call counts in full, because it
may be billed.

The policy, its threshold and its answers do not change.

Reference: Longstaff & Schwartz (2001), as `purchases`; Dean & Barroso, The tail at scale (2013), for hedged requests.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cascade.calibration.samples import places
from cascade.calibration.scores import history_of, scored
from cascade.conformal.arrays import Bools, Floats, Ints, levels, passed
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.questions import ends_in_reference
from cascade.policies.base import History, Policy
from cascade.policies.estimators import Constant, Linear, Scorer
from cascade.policies.features import FeatureSet
from cascade.policies.hedging import Hedge, HedgeRule
from cascade.training.estimators import Ridge, make_design, one_thread
from cascade.training.purchases import State, features_in, offers_of, values_in
from cascade.training.stopping import PENALTY

NEVER = -1
"""The value for walks whose reference is not started early, instead of a column."""
_NANO = 1_000_000_000
_LEAST_ROWS = 30
"""The minimum number of walks for a regression; with fewer, the mean is used."""


@dataclass(frozen=True, slots=True)
class Walks:
    """A policy's walks over logged questions, at the threshold that is served.

    Attributes:
        history: the logged steps, as features read them.
        paid: bool (n, T), the steps that the walk takes; the last one is the reference.
        seconds: float64 (n, T), the duration of each step's call.
        money: int64 (n, T), the cost of each step, nano-USD.
        rows: int64 (n,), the rows of the questions in the table that they come from.
    """

    history: History
    paid: Bools
    seconds: Floats
    money: Ints
    rows: Ints

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.paid.shape[0])

    def take(self, some: Ints | Bools) -> Walks:
        """Return the chosen questions."""
        return Walks(self.history.take(some), self.paid[some], self.seconds[some], self.money[some], self.rows[some])

    def states(self) -> Mapping[State, Ints]:
        """Return, for each state before a call other than the reference's, the rows of the questions that reach it."""
        found: defaultdict[State, list[int]] = defaultdict(list)
        for row, taken in enumerate(self.paid[:, :-1]):
            steps = (np.flatnonzero(taken) + 1).tolist()
            for many in range(len(steps)):
                found[tuple(steps[:many])].append(row)
        order = sorted(found, key=lambda state: (len(state), state))
        return {state: np.array(found[state], dtype=np.int64) for state in order}

    def beside(self, state: State, rows: Ints) -> Ints:
        """Return the column of the call that each question makes next in a state, int64."""
        first = max(state, default=0)
        return np.asarray(first + self.paid[rows, first:].argmax(axis=1), dtype=np.int64)


def walks_of(
    table: EpisodeTable, clock: EpisodeTable, policy: Policy, segments: Mapping[str | None, float]
) -> Walks | None:
    """Return a policy's walks; None if the reference's call cannot be started early.

    `clock` is the table with nanoseconds for costs (`episodes.seconds.clocked`); `segments` has the threshold of each
    segment, and that of all others under None.
    """
    parents = offers_of(table) if ends_in_reference(table) else None
    reference_alone = policy.takes is not None and policy.takes.reference
    if parents is None or parents[-1] or reference_alone:
        return None
    judged, scores = scored(policy, table)
    timed, _ = scored(policy, clock)
    names = list(segments)
    place = places(names, judged)
    kappa = np.array([*segments.values(), -math.inf])[place]  # a segment without a promise keeps everything
    paid = passed(levels(judged.arrays, scores).reach, kappa)
    paid = paid if judged.bought is None else paid & judged.bought
    whole = judged.arrays.complete & (judged.arrays.steps == judged.arrays.horizon) & ~np.isnan(judged.paid).any(axis=1)
    rows = np.flatnonzero(whole)
    if judged.arrays.horizon < 2 or not rows.size:
        return None
    money = np.rint(judged.paid[rows]).astype(np.int64)
    return Walks(history_of(judged).take(rows), paid[rows], timed.arrays.cost[rows] / _NANO, money, rows)


class Played(NamedTuple):
    """For each question, (n,): the seconds, float64; the cost, int64 nano-USD; and whether the call was early."""

    seconds: Floats
    money: Ints
    begun: Bools


def played(walks: Walks, beside: Ints) -> Played:
    """Return time and cost of walks whose reference starts together with the call of a column, int64 (n,), or `NEVER`.

    An unused call counts at its full cost.
    """
    early = beside != NEVER
    reached = walks.paid[:, -1]
    money = np.where(walks.paid, walks.money, 0).sum(axis=1) + np.where(early & ~reached, walks.money[:, -1], 0)
    seconds = np.where(walks.paid, walks.seconds, 0.0).sum(axis=1)
    return Played(seconds - np.where(early & reached, _saved(walks, beside), 0.0), np.asarray(money), early)


def _saved(walks: Walks, beside: Ints) -> Floats:
    """Return the seconds saved if the walk reaches the reference, (n,)."""
    since = np.arange(walks.paid.shape[1]) >= beside[:, None]
    waited = np.where(walks.paid & since, walks.seconds, 0.0)[:, :-1].sum(axis=1)
    return np.asarray(np.minimum(waited, walks.seconds[:, -1]))


def always(walks: Walks) -> Ints:
    """Return the column of the first call, int64 (n,); `NEVER` for a walk that begins with the reference."""
    first = walks.paid.argmax(axis=1)
    return np.where(first < walks.paid.shape[1] - 1, first, NEVER)


def decided(hedge: Hedge, walks: Walks) -> Ints:
    """Return the column of the call with which a hedge starts the reference's, int64 (n,); `NEVER` if it does not."""
    found = np.full(walks.n, NEVER, dtype=np.int64)
    rules = {rule.bought: rule for rule in hedge.rules}
    for state, rows in walks.states().items():
        rule = rules.get(state)
        if rule is not None:
            raw = values_in(rule.features, walks.history.take(rows), state)
            begins = _begins(rule.worth, raw) & (found[rows] == NEVER)
            found[rows[begins]] = walks.beside(state, rows)[begins]
    return found


def _begins(worth: Scorer, raw: Floats) -> Bools:
    told = worth.values(raw)
    return np.asarray((told > 0) & np.isfinite(told))


@one_thread()
def fit_hedge(walks: Walks, usd_a_second: float) -> Hedge:
    """Fit the rules for starting the reference's call early."""
    price = usd_a_second * _NANO
    later = np.zeros(walks.n)
    rules: list[HedgeRule] = []
    for state, rows in reversed([*walks.states().items()]):
        part = walks.take(rows)
        reached, beside = part.paid[:, -1], walks.beside(state, rows)
        now = np.where(reached, price * _saved(part, beside), -part.money[:, -1])
        features, worth = _regression(part.history, state, now - later[rows])
        begins = _begins(worth, values_in(features, part.history, state))
        later[rows] = np.where(begins, now, later[rows])
        rules.append(HedgeRule(state, features, worth))
    return Hedge(walks.paid.shape[1], walks.history.sources, usd_a_second, tuple(reversed(rules)))


def _regression(history: History, state: State, y: Floats) -> tuple[FeatureSet, Scorer]:
    """Return the regression of y on the features of a state; the mean if there are too few questions or features."""
    nothing = FeatureSet((), history.sources), Constant(float(y.mean()))
    if len(y) < _LEAST_ROWS:
        return nothing
    features = features_in(history, state)
    raw = values_in(features, history, state)
    design = make_design(raw, products=False)
    columns = design.rows(raw)
    if not columns.shape[1]:
        return nothing
    found = Ridge.prepare(columns, PENALTY * columns.shape[1]).solve(y)
    return features, Linear(design, found.weights, found.intercept)


# --- its figures on held-out questions ---


class Way(NamedTuple):
    """The figures of one way to ask: mean cost in USD, mean and 95th percentile of seconds."""

    cost_usd: float
    seconds: float
    p95_s: float

    @classmethod
    def of(cls, money: Ints, seconds: Floats) -> Way:
        """Return the figures of questions."""
        return cls(float(money.mean()) / _NANO, float(seconds.mean()), float(np.quantile(seconds, 0.95)))

    def priced(self, usd_a_second: float) -> float:
        """Return the mean cost of a question in USD, its seconds priced."""
        return self.cost_usd + usd_a_second * self.seconds


class HeldOut(NamedTuple):
    """The effect of hedging on questions that did not fit it.

    Attributes:
        questions: the number of questions.
        sequential: the policy without a hedge.
        hedged: the policy with the fitted hedge.
        always: the reference's call starts with the first call of every question.
        reference: the reference alone.
        begun: the share of questions whose reference's call starts early.
        unused: the share of questions whose reference's call starts early and is not needed.
    """

    questions: int
    sequential: Way
    hedged: Way
    always: Way
    reference: Way
    begun: float
    unused: float


def held_out(walks: Walks, fold: Ints, usd_a_second: float, shown: Bools) -> HeldOut:
    """Cross-fit hedges, and return their effect.

    For each question, a hedge fitted on the other folds decides. The figures are of the questions in `shown`.
    """
    beside = np.full(walks.n, NEVER, dtype=np.int64)
    for one in np.unique(fold):
        test = np.flatnonzero(fold == one)
        beside[test] = decided(fit_hedge(walks.take(fold != one), usd_a_second), walks.take(test))
    part = walks.take(shown)
    return figures(part, beside[shown])


def figures(walks: Walks, beside: Ints) -> HeldOut:
    """Return the figures of walks whose reference's call starts together with these columns' calls."""

    def way(columns: Ints) -> Way:
        found = played(walks, columns)
        return Way.of(found.money, found.seconds)

    hedged = played(walks, beside)
    return HeldOut(
        walks.n,
        way(np.full(walks.n, NEVER, dtype=np.int64)),
        Way.of(hedged.money, hedged.seconds),
        way(always(walks)),
        Way.of(walks.money[:, -1], walks.seconds[:, -1]),
        float(hedged.begun.mean()),
        float((hedged.begun & ~walks.paid[:, -1]).mean()),
    )


def ways(found: HeldOut) -> Sequence[tuple[str, Way]]:
    """Return the ways by their names, as they are printed."""
    return (
        ("one after the other", found.sequential),
        ("hedged", found.hedged),
        ("always begun early", found.always),
        ("the reference alone", found.reference),
    )
