"""Which calls to buy, in which order: a fixed ladder, one with skips, and any order, learned by backward regressions.

    python benchmarks/purchases.py LOG...            a ladder log of 2 to 6 models, the last the reference
    python benchmarks/purchases.py LOG --splits 5
    python benchmarks/purchases.py --speed           made-up requests alone: seconds of a fit and of a decision

A state is the set of calls that were bought. In each, backward from the largest sets, one ridge regression foretells
the loss of stopping there and one for each further call what buying it brings: its price, and the value of what the
fitted rule does next. A log of all calls tells this for every set. The loss is regret: the answer served is wrong where
the reference is right. `ladder` buys in the listed order and stops; `skips` may leave calls out; `any order` may also
buy a later one first. The price of a loss, from 1 to 10,000 references, gives a path of rules.

Printed are mean costs as a share of always asking the reference, over group-wise splits (60 % training, 20 %
calibration, 20 % test): where the mean regret of the test questions is as given, interpolated along the path; and
certified, by testing the path from the dearest rule on against regret ≤ α with δ = 0.1 on one request of each group of
the calibration questions (a fixed sequence; the reference alone where the first rule fails).
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from cascade.calibration.samples import once, tied
from cascade.conformal.arrays import Bools, Floats, Ints, Parents
from cascade.conformal.binomial import most_losses
from cascade.episodes.files import read_rows
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.splits import splits
from cascade.training.estimators.linear import Ridge

State: TypeAlias = tuple[int, ...]
KINDS = ("ladder", "skips", "any order")
PRICES = tuple(10.0 ** (k / 4) for k in range(16, -1, -1))
"""Of a loss, in costs of the reference, falling: the rules from the dearest to the cheapest."""
REGRETS, ALPHAS, DELTA = (0.01, 0.02, 0.03, 0.05), (0.02, 0.05), 0.1
PENALTY = 30.0
MOST_CALLS = 6


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests with what each of T calls brought, the last the reference's.

    Attributes:
        answer: int64 (n, T), which distinct answer; −1 = none.
        right: bool (n, T).
        cost: float64 (n, T), as a share of the reference's mean cost.
        seen: float64 (n, T, k), what each call shows: standardised numbers, 0 where unknown.
        asked: float64 (n, d), numbers of the request.
        parents: what each call must see.
    """

    answer: Ints
    right: Bools
    cost: Floats
    seen: Floats
    asked: Floats
    parents: Parents

    @property
    def n(self) -> int:
        """The number of requests."""
        return int(self.answer.shape[0])

    @property
    def calls(self) -> int:
        """T, the calls that can be bought."""
        return int(self.answer.shape[1])

    def take(self, rows: Ints) -> Requests:
        """Return the chosen requests."""
        return Requests(
            self.answer[rows], self.right[rows], self.cost[rows], self.seen[rows], self.asked[rows], self.parents
        )


def requests_of(table: EpisodeTable) -> Requests:
    """Return a ladder's table as requests."""
    arrays = table.arrays
    if arrays.answer.shape[2] != 1 or not 2 <= arrays.horizon <= MOST_CALLS:
        raise SystemExit(f"{table.dataset}: a ladder of 2 to {MOST_CALLS} models is needed.")
    signals = [_standard(table.signals[name]) for name in sorted(table.signals) if name != "agrees_with_earlier"]
    seen = np.stack(signals, axis=2) if signals else np.zeros((*arrays.cost.shape, 0))
    asked = [_standard(table.asked[name]) for name in sorted(table.asked)]
    cost = arrays.cost / arrays.cost[:, -1].mean()
    rows = np.stack(asked, axis=1) if asked else np.zeros((table.n, 0))
    return Requests(
        arrays.answer[:, :, 0], arrays.correct[:, :, 0], cost, seen, rows, table.parents or ((),) * arrays.horizon
    )


def _standard(values: Floats) -> Floats:
    """Return numbers with mean 0 and standard deviation 1 in each column, 0 where they are unknown."""
    known = ~np.isnan(values)
    many = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, values, 0).sum(axis=0) / many
    spread = np.sqrt(np.where(known, (values - centre) ** 2, 0).sum(axis=0) / many)
    return np.where(known, (values - centre) / np.where(spread > 0, spread, 1), 0.0)


def further(state: State, requests: Requests, kind: str) -> list[int]:
    """Return the calls that may be bought next."""
    if requests.calls - 1 in state:
        return []
    able = [j for j in range(requests.calls) if j not in state and all(p - 1 in state for p in requests.parents[j])]
    if kind == "any order":
        return able
    later = [j for j in able if j > max(state, default=-1)]
    return later[:1] if kind == "ladder" else later


def states(requests: Requests, kind: str) -> list[State]:
    """Return the sets that can be come to, the largest first."""
    found: set[State] = {()}
    new: set[State] = {()}
    while new:
        new = {tuple(sorted((*s, j))) for s in new for j in further(s, requests, kind)} - found
        found |= new
    return sorted(found, key=len, reverse=True)


def served(state: State, requests: Requests) -> Ints:
    """Return which call's answer is served, int64 (n,), −1 for none: the reference's, else the most frequent one's."""
    best, most = np.full(requests.n, -1), np.zeros(requests.n)
    for j in state:
        same = np.sum([requests.answer[:, i] == requests.answer[:, j] for i in state], axis=0)
        better = (requests.answer[:, j] >= 0) & ((same >= most) | (j == requests.calls - 1))
        best, most = np.where(better, j, best), np.where(better, same, most)
    return best


def losses(state: State, requests: Requests) -> Bools:
    """Return where what is served is wrong and the reference right, bool (n,)."""
    best = served(state, requests)
    right = requests.right[np.arange(requests.n), np.maximum(best, 0)] & (best >= 0)
    return np.asarray(requests.right[:, -1] & ~right)


def features(state: State, requests: Requests) -> Floats:
    """Return what is known of each request once these calls are bought, float64 (n, d)."""
    columns = [requests.asked]
    for j in state:
        columns += [requests.seen[:, j], (requests.answer[:, j] >= 0).astype(float)[:, None]]
    for i, j in itertools.combinations(state, 2):
        same = (requests.answer[:, i] >= 0) & (requests.answer[:, i] == requests.answer[:, j])
        columns.append(same.astype(float)[:, None])
    return np.concatenate(columns, axis=1)


class Rule(NamedTuple):
    """What a state foretells: the loss of stopping, and the value of each further call."""

    calls: tuple[int, ...]
    intercepts: Floats
    weights: Floats  # (d, 1 + len(calls)): the loss first


Shown: TypeAlias = Callable[[State, Requests], Floats]
Solved: TypeAlias = Callable[[Floats], Callable[[Floats], tuple[float, Floats]]]


def ridge(rows: Floats) -> Callable[[Floats], tuple[float, Floats]]:
    """Return the solver of a design, factorised once."""
    return Ridge.prepare(rows, penalty=PENALTY).solve


def fit(
    requests: Requests, kind: str, prices: Sequence[float], shown: Shown = features, solver: Solved = ridge
) -> list[dict[State, Rule]]:
    """Return the rules of each price of a loss."""
    order = states(requests, kind)
    open_ones = [state for state in order if further(state, requests, kind)]
    rows = {state: shown(state, requests) for state in open_ones}
    solvers = {state: solver(rows[state]) for state in open_ones}
    lost = {state: losses(state, requests).astype(float) for state in order}
    stopping = {state: solvers[state](lost[state]) for state in open_ones if state}
    known = _Known(rows, solvers, lost, stopping)
    return [_at_price(requests, kind, order, price, known) for price in prices]


class _Known(NamedTuple):
    """What hangs on no price: by state its rows, the solver of them, what is lost there, and what foretells that."""

    rows: Mapping[State, Floats]
    solvers: Mapping[State, Callable[[Floats], tuple[float, Floats]]]
    lost: Mapping[State, Floats]
    stopping: Mapping[State, tuple[float, Floats]]


def _at_price(requests: Requests, kind: str, order: Sequence[State], price: float, known: _Known) -> dict[State, Rule]:
    rows, solvers, lost, stopping = known
    worth: dict[State, Floats] = {}
    rules: dict[State, Rule] = {}
    for state in order:
        calls = tuple(further(state, requests, kind))
        if not calls:
            worth[state] = -price * lost[state]
            continue
        bought = [worth[tuple(sorted((*state, j)))] - requests.cost[:, j] for j in calls]
        loss = stopping.get(state, (0.0, np.zeros(rows[state].shape[1])))
        found = [loss, *(solvers[state](value) for value in bought)]
        rule = Rule(calls, np.array([one[0] for one in found]), np.stack([one[1] for one in found], axis=1))
        best = decide(rule, rows[state], price, can_stop=served(state, requests) >= 0)
        options = np.stack([-price * lost[state], *bought], axis=1)
        worth[state], rules[state] = options[np.arange(requests.n), best], rule
    return rules


def decide(rule: Rule, rows: Floats, price: float, can_stop: Bools) -> Ints:
    """Return what to do with each request: 0 stops, k buys the k-th further call."""
    told = rows @ rule.weights + rule.intercepts
    told[:, 0] = np.where(can_stop, -price * told[:, 0], -np.inf)
    return np.asarray(told.argmax(axis=1))


def play(
    rules: Mapping[State, Rule], requests: Requests, price: float, shown: Shown = features
) -> tuple[Floats, Bools]:
    """Return cost and loss of each request."""
    cost, lost = np.zeros(requests.n), np.zeros(requests.n, dtype=np.bool_)
    waiting: list[tuple[State, Ints]] = [((), np.arange(requests.n))]
    while waiting:
        state, here = waiting.pop()
        part = requests.take(here)
        rule = rules.get(state)
        if rule is None:
            lost[here] = losses(state, part)
            continue
        best = decide(rule, shown(state, part), price, served(state, part) >= 0)
        lost[here[best == 0]] = losses(state, part)[best == 0]
        for k, j in enumerate(rule.calls, 1):
            chosen = here[best == k]
            cost[chosen] += requests.cost[chosen, j]
            if chosen.size:
                waiting.append((tuple(sorted((*state, j))), chosen))
    return cost, lost


class Found(NamedTuple):
    """Means over the splits: cost and regret at each price, and the certified cost at each alpha."""

    cost: Floats
    regret: Floats
    certified: Floats


def judged(table: EpisodeTable, kind: str, count: int, seed: int) -> Found:
    """Return what a kind of order brings on the splits of a log."""
    requests, cost, regret, certified = requests_of(table), [], [], []
    for split in splits(table.groups, count, seed):
        train, test = requests.take(split.train), requests.take(split.test)
        one_each = _one_each(table.groups, split.calibration)
        held = requests.take(one_each)
        rules = fit(train, kind, PRICES)
        done = [play(rule, test, price) for rule, price in zip(rules, PRICES, strict=True)]
        told = [int(play(rule, held, price)[1].sum()) for rule, price in zip(rules, PRICES, strict=True)]
        cost.append([one[0].mean() for one in done])
        regret.append([one[1].mean() for one in done])
        certified.append([_certified(told, held.n, alpha, cost[-1], test) for alpha in ALPHAS])
    return Found(*(np.mean(each, axis=0) for each in (cost, regret, certified)))


def _one_each(groups: Sequence[str], rows: Ints) -> Ints:
    first: dict[str, int] = {}
    for row in rows.tolist():
        first.setdefault(groups[row], row)
    return np.array(sorted(first.values()), dtype=np.int64)


def _certified(told: Sequence[int], n: int, alpha: float, costs: Sequence[float], test: Requests) -> float:
    """Return the cost of the last rule of the path before a test fails; the reference's where the first one does."""
    most, found = most_losses(n, alpha, DELTA), float(test.cost[:, -1].mean())
    for losses_, cost in zip(told, costs, strict=True):
        if most is None or losses_ > most:
            return found
        found = cost
    return found


def at_regret(found: Found, wanted: float) -> float:
    """Return the cost at a mean regret, between the two rules of the path around it; the reference alone is one."""
    regret, cost = np.append(found.regret, 0.0), np.append(found.cost, 1.0)
    order = np.lexsort((cost, regret))
    return float(np.interp(wanted, regret[order], np.minimum.accumulate(cost[order])))


def show(table: EpisodeTable, count: int, seed: int) -> None:
    """Print one log's table."""
    steps = ", ".join(name or "?" for name in table.step_models)
    print(f"{table.dataset}: {table.n:,} requests, {len(set(table.groups)):,} groups; {steps}; {count} splits")
    head = "".join(f"{one:8.0%}" for one in REGRETS), "".join(f"{one:8.0%}" for one in ALPHAS)
    print(f"  {'':10} at regret {head[0]}   certified {head[1]}")
    for kind in KINDS:
        found = judged(table, kind, count, seed)
        matched = "".join(f"{at_regret(found, wanted):8.3f}" for wanted in REGRETS)
        certified = "".join(f"{one:8.3f}" for one in found.certified)
        print(f"  {kind:10}           {matched}             {certified}", flush=True)


def made_up(n: int, calls: int, seed: int = 0) -> Requests:
    """Draw requests whose calls show a number each that tells a little."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n)
    right = np.stack([rng.random(n) > hard * (1 - j / calls) for j in range(calls)], axis=1)
    answer = np.where(right, 0, rng.integers(1, 4, (n, calls)))
    cost = np.broadcast_to(np.geomspace(0.02, 1, calls), (n, calls)).copy()
    seen = rng.normal(size=(n, calls, 6)) + right[:, :, None]
    return Requests(answer, right, cost, seen, hard[:, None] + rng.normal(size=(n, 18)), ((),) * calls)


def speed() -> None:
    """Print what a fit of one price of a loss and a decision take."""
    requests = made_up(1_000, MOST_CALLS)
    for kind in KINDS:
        started = time.process_time()
        (rules,) = fit(requests, kind, [30.0])
        seconds = time.process_time() - started
        one, state = requests.take(np.array([0])), max((s for s in rules), key=len)
        started, many = time.process_time(), 2_000
        for _ in range(many):
            decide(rules[state], features(state, one), 30.0, served(state, one) >= 0)
        each = (time.process_time() - started) / many * 1e3
        print(f"  {kind:10} {len(rules):3} states: fit {seconds:.2f} s of processor, a decision {each:.3f} ms")


def tables(paths: Sequence[Path]) -> Iterator[EpisodeTable]:
    """Yield the logs' tables, one episode of each question."""
    for path in paths:
        for table in tables_from_rows(read_rows(path)):
            whole = tied(table)
            kept = whole.take(once(whole))
            yield kept.take(kept.arrays.steps == kept.arrays.horizon)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", type=Path, metavar="LOG")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", action="store_true", help="time made-up requests")
    asked = parser.parse_args()
    if asked.speed or not asked.logs:
        print(f"1,000 requests × {MOST_CALLS} calls")
        speed()
    for table in tables(asked.logs):
        show(table, asked.splits, asked.seed)


if __name__ == "__main__":
    main()
