"""How many labels a certified regret takes on logged tool calls, by each way of labelling, and whether it holds.

    python benchmarks/labels.py FOLDER                20 splits of each pair, 50 re-splits of each: 1,000 calibrations
    python benchmarks/labels.py FOLDER --quick        2 splits of the first pair
    python benchmarks/labels.py FOLDER --train 40     40 outputs of training requests are judged, too
    python benchmarks/labels.py FOLDER --promises     how often promises of agreement and regret are broken, every pair
    python benchmarks/labels.py --validity            20,000 simulated calibrations a row, conversations as groups

FOLDER holds bfcl_v1.parquet, bfcl_v4_live.parquet and css_classification.parquet. `correct` plays the reviewer. A split
trains a policy on half of the groups. Without a label it is fitted for agreement at 10 %. With --train it is fitted for
regret with the judgements of so many outputs of training requests that differ, drawn at random; an output that nobody
judged counts as much as those that were on average. A re-split draws calibration requests, one of each group, from the
other half, labels them along the path of thresholds, and certifies regret at alpha with delta = 0.1; what is left is
the test. A promise is broken where the regret over calibration and test requests, each group counting once, is above
alpha. Costs are in units of the reference's, 1 where nothing is certified; ±: one standard error over splits.
--promises trains with every label, and for agreement without any.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from chat_pairs import PAIRS, Pair, runs

from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.conformal.labels import KEPT, LOST, NO_LOSS, UNLABELLED, is_drawn, most_labelled_losses, sampled, walk
from cascade.conformal.ltt import certified_points
from cascade.conformal.served import PathPoint, Served
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee, get
from cascade.guarantees.questions import Labels, Truth
from cascade.guarantees.served_answer import ServedAnswer
from cascade.review.labels import Harmless, tables_with
from cascade.review.pairs import compare, digest_of, place_of
from cascade.training.dividing import Divided
from cascade.training.fitting import choice_on, objective_of

DELTA = 0.1
RATES = (1.0, 0.5, 0.2)
ALPHAS = (0.02, 0.05)
PROMISES = (("agreement", 0.05), ("agreement", 0.1), ("regret", 0.02), ("regret", 0.05))
EVERY = 1_000_000
LAZY = 5
"""Re-splits of each split in which labels are asked for one by one."""


class World(NamedTuple):
    """One pair's log.

    Attributes:
        base: the table in which an output is right that equals the reference's.
        ways: the table for each number of an output, in which all others lose nothing; last one without any loss.
        harms: bool (n, C), whether serving the output of a number is a loss: it is wrong and the reference right.
        groups: int64 (n,), the group of each request.
    """

    base: EpisodeTable
    ways: Sequence[EpisodeTable]
    harms: Bools
    groups: Ints


def world(folder: Path, pair: Pair) -> World:
    """Read one pair: each request once, with what the reviewer would say of each output."""
    first: dict[str, str] = {}
    rows = runs(folder, pair)
    for row in rows:  # two requests of the same words are one
        first.setdefault(row["context"], row["episode_id"])
    rows = [row for row in rows if first[row["context"]] == row["episode_id"]]
    compared = compare(lambda: rows)
    many = 1 + max(pair.number for pair in compared.pairs())
    ways = [_only(tables_with(compared, _all_but(number))) for number in range(many + 1)]
    base = _only(tables_with(compared, lambda _, __: False))
    place = {name: row for row, name in enumerate(base.ids)}
    last_right = {row["episode_id"]: bool(row["correct"]) for row in rows if row["step"] == len(pair.models)}
    harms = np.zeros((base.n, many), dtype=np.bool_)
    for row in rows:
        one, at = compared.episodes.get(place_of(row)), place.get(row["episode_id"])
        if one is None or at is None or row["answer"] is None:
            continue
        number = one.numbers.get(digest_of(row["answer"]), -1)
        if number >= 0:
            harms[at, number] |= not row["correct"] and last_right.get(row["episode_id"], False)
    return World(base, ways, harms, np.unique(np.array(base.groups), return_inverse=True)[1])


def _all_but(number: int) -> Harmless:
    """Return what says that every output loses nothing but those of this number."""
    return lambda _, other: other != number


def _only(tables: Sequence[EpisodeTable]) -> EpisodeTable:
    (table,) = tables
    return table


class Half(NamedTuple):
    """The half of the requests that nothing was trained on, under the trained policy: `served` for each of the ways."""

    ways: Sequence[Served]
    harms: Bools
    groups: Ints
    weight: Floats
    reach: Floats
    reference_cost: Floats

    def outputs(self, kappa: float, rows: Ints) -> Ints:
        """Return which differing output is served at a threshold: `NO_LOSS` where none is, C where all is lost."""
        lost = [one.take(rows).at(PathPoint(kappa)) for one in self.ways]
        found = np.full(rows.size, NO_LOSS, dtype=np.int64)
        for number, way in enumerate(lost[:-1]):
            found[way.loss] = number
        found[lost[-1].loss | lost[-1].cut] = len(self.ways) - 1
        return found

    def regret(self, kappa: float, rows: Ints) -> Bools:
        """Return on which requests the policy loses at a threshold."""
        served = self.outputs(kappa, rows)
        harms = np.concatenate([self.harms, np.ones((self.harms.shape[0], 1), dtype=np.bool_)], axis=1)
        return np.where(served == NO_LOSS, False, harms[rows, np.maximum(served, 0)])


LEVEL = 0.1
"""The share of differences that a policy is fitted for where nobody has judged anything, as `cascade fit` does."""


def trained(one: World, seed: int, asked: Guarantee, train: int = 0) -> Half:
    """Train on one half of the groups, and score the other.

    Args:
        one: the log.
        seed: draws the half, and what is judged.
        asked: what the policy is fitted for.
        train: so many outputs of training requests that differ, drawn at random, are judged.
    """
    draw = np.random.default_rng([31, seed])
    chosen = draw.permutation(int(one.groups.max()) + 1) < (int(one.groups.max()) + 1) // 2
    training, rest = np.flatnonzero(chosen[one.groups]), np.flatnonzero(~chosen[one.groups])
    table = one.base if asked.kind == "agreement" else _judged_on(one, training, train, seed)
    parts = Divided(table.take(training), table.take(rest), 0)
    policy = choice_on(parts.training, objective_of(parts, asked), seed=seed).chosen.whole(parts.training)
    samples = [sample_of(table.take(rest), policy) for table in one.ways]
    rules = get("regret")
    assert isinstance(rules, ServedAnswer)  # noqa: S101 - it is one
    scored = [replace(one, table=replace(one.table, truth=_asked(one.table))) for one in samples]
    groups = np.unique(one.groups[rest], return_inverse=True)[1]
    cost = one.base.arrays.cost[rest, -1].astype(np.float64)
    weight = 1.0 / np.bincount(groups)[groups]
    return Half([rules.served(each) for each in scored], one.harms[rest], groups, weight, samples[0].levels.reach, cost)


def _judged_on(one: World, training: Ints, train: int, seed: int) -> EpisodeTable:
    """Return the table as reviews of so many outputs of training requests would make it."""
    every = one.ways[-1].arrays.correct
    places = [every & ~way.arrays.correct for way in one.ways[:-1]]  # of each number of an output
    pairs = [(row, at) for at, place in enumerate(places) for row in training.tolist() if place[row].any()]
    order = np.random.default_rng([35, seed]).permutation(len(pairs))[:train]
    judged, correct = np.zeros_like(every), one.base.arrays.correct.copy()
    for row, at in (pairs[which] for which in order.tolist()):
        judged[row] |= places[at][row]
        correct[row] |= places[at][row] & (not one.harms[row, at])
    unjudged = np.logical_or.reduce(places) & ~judged
    labels = Labels(np.ones(one.base.n, dtype=np.bool_), unjudged.any(axis=(1, 2)), judged, unjudged)
    return replace(one.base, arrays=replace(one.base.arrays, correct=correct), truth=_asked(one.base), labels=labels)


def _asked(table: EpisodeTable) -> Truth:
    assert table.truth is not None  # noqa: S101 - a relabelled table has one
    return table.truth._replace(asked="regret")


class Draw(NamedTuple):
    """One calibration.

    Attributes:
        kappa: the certified threshold; None where none is.
        cost: mean cost of a test request, in units of the reference's; groups count once.
        regret: on calibration and test requests, groups counting once.
        labels: how many labels were asked for, by the way of labelling; None where that was not counted.
    """

    kappa: float | None
    cost: float
    regret: float
    labels: Mapping[str, int] | None = None


def calibrated(half: Half, n: int, alpha: float, rate: float, seed: int, *, lazy: bool) -> Draw:
    """Calibrate on n requests, one of each group, and test on the other groups."""
    draw = np.random.default_rng([32, seed])
    groups = draw.permutation(int(half.groups.max()) + 1)[:n]
    order = draw.permutation(half.groups.size)
    first = order[np.unique(half.groups[order], return_index=True)[1]]  # a random request of each group
    rows = first[groups]
    drawn = np.array([is_drawn(f"key {seed}", str(row), rate) for row in rows])
    path = thresholds(half.reach[rows])
    most = most_labelled_losses(n, alpha, DELTA, rate)
    losses = np.array([np.count_nonzero(half.regret(kappa, rows) & drawn) for kappa in path])
    front = certified_points(losses, n, sampled(alpha, rate), DELTA)
    kappa = path[front - 1] if front else None
    labels = _labels(half, rows, drawn, path[: front + 1], most) if lazy else None
    return _drawn(half, kappa, ~np.isin(half.groups, groups), labels)


def thresholds(reach: Floats) -> list[float]:
    """Return every threshold at which a decision changes, the strictest first, as the product tests them."""
    return [-math.inf, *np.unique(reach[np.isfinite(reach)]).tolist(), math.inf]


def _drawn(half: Half, kappa: float | None, test: Bools, labels: Mapping[str, int] | None) -> Draw:
    if kappa is None:
        return Draw(None, 1.0, 0.0, labels)
    everything = np.arange(half.groups.size)
    regret = float(np.average(half.regret(kappa, everything), weights=half.weight))
    cost = half.ways[0].at(PathPoint(kappa)).cost
    paid, guide = (np.average(one[test], weights=half.weight[test]) for one in (cost, half.reference_cost))
    return Draw(kappa, float(paid / guide), regret, labels)


def _labels(half: Half, rows: Ints, drawn: Bools, path: Sequence[float], most: int | None) -> dict[str, int]:
    """Count the labels that each way of labelling asks for."""
    outputs = [np.where(drawn, half.outputs(kappa, rows), NO_LOSS) for kappa in path]
    last = half.ways[:-1]
    differ = np.stack([way.take(rows).loss.any(axis=1) for way in last], axis=1) & drawn[:, None]
    along = {(row, out) for one in outputs for row, out in enumerate(one.tolist()) if 0 <= out < len(last)}
    known = np.full((rows.size, len(half.ways)), UNLABELLED, dtype=np.int64)
    known[:, -1] = LOST
    asked = 0
    while (found := walk(outputs, known, most)).open.any():
        row = int(np.flatnonzero(found.open)[0])  # the rows are in random order
        out = int(outputs[found.certified][row])
        known[row, out] = LOST if half.harms[rows[row], out] else KEPT
        asked += 1
    return {
        "everything": int(np.count_nonzero(drawn)),
        "what differs": int(np.count_nonzero(differ)),
        "along the path": len(along),
        "until settled": asked,
    }


# --- simulated calibrations ---


def simulated(n: int, rate: float, alpha: float, calibrations: int, *, hardest: bool, seed: int = 0) -> tuple[int, int]:
    """Return how many simulated calibrations break the promise, and how many certify a point that saves.

    A request is a turn of a conversation of one to five turns, each more doubtful than the one before; one turn of
    each, drawn at random, certifies. Doubt has 20 values. At threshold j the cheap output is served on turns of doubt j
    or less. It harms with a probability that rises with doubt; or, hardest, so that every threshold but the first has a
    risk just above alpha.
    """
    points, longest = 20, 5
    share = np.zeros(points)  # of a random turn of a random conversation, by its doubt
    for begins in range(points):
        for turns in range(1, longest + 1):
            for turn in range(turns):
                share[min(begins + turn, points - 1)] += 1 / (points * longest * turns)
    harmful = 0.45 * ((np.arange(points) + 0.5) / points) ** 2
    if hardest:
        harmful = np.where(np.arange(points) < 2, (alpha + 1e-9) / share[:2].sum(), 0.0)
    risk = np.cumsum(harmful * share)
    draw = np.random.default_rng([34, seed, n, round(100 * rate), hardest])
    names = [str(row) for row in range(n)]
    broken = saved = 0
    for number in range(calibrations):
        drawn = draw.integers(0, draw.integers(1, longest + 1, n))  # the turn of each conversation
        place = np.minimum(draw.integers(0, points, n) + drawn, points - 1)
        lost = np.flatnonzero(draw.random(n) < harmful[place])  # whether the others are drawn changes nothing
        counted = [row for row in lost.tolist() if is_drawn(str(number), names[row], rate)]
        losses = np.cumsum(np.bincount(place[counted], minlength=points))
        front = certified_points(losses, n, sampled(alpha, rate), DELTA)
        broken += bool((risk[:front] > alpha).any())
        saved += front > 0
    return broken, saved


def validity(calibrations: int) -> bool:
    """Print how often simulated calibrations break the promise; return whether all rows hold."""
    print(f"{'n':>5} {'rate':>5} {'alpha':>6} {'population':>11} {'broken':>8} {'allowed':>8} {'certified':>10}")
    holds = True
    allowed = DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / calibrations)
    for n in (100, 300, 1000):
        for rate in RATES:
            for hardest in (False, True):
                broken, saved = simulated(n, rate, 0.05, calibrations, hardest=hardest)
                holds &= broken / calibrations <= allowed
                name = "hardest" if hardest else "rising"
                shown = f"{broken / calibrations:8.4f} {allowed:8.4f} {saved / calibrations:10.3f}"
                print(f"{n:5d} {rate:5g} {0.05:6g} {name:>11} {shown}", flush=True)
    return holds


# --- what is printed ---


def measure(pair: Pair, given: argparse.Namespace) -> bool:
    """Print the rows of one pair; return whether no promise is broken too often."""
    one, holds = world(given.folder, pair), True
    for alpha in given.alpha or ALPHAS:
        asked = Guarantee("regret", alpha, DELTA) if given.train else Guarantee("agreement", LEVEL, DELTA)
        halves = [trained(one, seed, asked, given.train) for seed in range(given.splits)]
        n = _certify(pair, halves)
        for rate in given.rate or RATES:
            draws = [
                calibrated(half, n, alpha, rate, 1_000 * split + again, lazy=again < LAZY)
                for split, half in enumerate(halves)
                for again in range(given.resplits)
            ]
            holds &= _row(pair.name, n, alpha, rate, draws, len(halves))
    return holds


def _certify(pair: Pair, halves: Sequence[Half]) -> int:
    """Return how many requests certify: three quarters of the groups that did not train, where those are few."""
    return min(pair.certify, min(int(half.groups.max()) + 1 for half in halves) * 3 // 4)


def promises(pair: Pair, given: argparse.Namespace) -> bool:
    """Print how often each promise of one pair is broken, with every label; return whether none is too often."""
    one, holds = world(given.folder, pair), True
    differ = one._replace(harms=np.ones_like(one.harms))  # for agreement every output that differs is a loss
    for kind, alpha in PROMISES:
        known = differ if kind == "agreement" else one
        halves = [trained(known, seed, Guarantee(kind, alpha, DELTA), EVERY) for seed in range(given.splits)]
        n = _certify(pair, halves)
        draws = [
            calibrated(half, n, alpha, 1.0, 1_000 * split + again, lazy=False)
            for split, half in enumerate(halves)
            for again in range(given.resplits)
        ]
        holds &= _row(f"{pair.name}, {kind}", n, alpha, 1.0, draws, len(halves))
    return holds


def _row(name: str, n: int, alpha: float, rate: float, draws: Sequence[Draw], splits: int) -> bool:
    broken = float(np.mean([one.regret > alpha + 1e-12 for one in draws]))
    allowed = DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / len(draws))
    counted = [one.labels for one in draws if one.labels is not None]
    labels = [np.mean([one[way] for one in counted]) / n for way in (counted[0] if counted else ())]
    shown = " ".join(f"{share:8.3f}" for share in labels)
    of_split = np.reshape([one.cost for one in draws], (splits, -1)).mean(axis=1)
    error = of_split.std(ddof=1) / math.sqrt(splits) if splits > 1 else math.nan
    cost, regret = of_split.mean(), np.mean([one.regret for one in draws])
    certified = np.mean([one.kappa is not None and one.cost < 1 for one in draws])
    print(
        f"{name:26} {n:5d} {alpha:5g} {rate:5g} {cost:7.3f} {error:6.3f} {regret:8.4f} {certified:9.2f} {broken:8.4f} "
        f"{allowed:8.4f} {shown}",
        flush=True,
    )
    return broken <= allowed


def main() -> None:
    """Measure and print; end with 1 where a promise is broken too often."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--validity", action="store_true")
    parser.add_argument("--promises", action="store_true", help="how often promises are broken, with every label")
    parser.add_argument("--only", default="", help="pairs whose name has this")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--resplits", type=int, default=50)
    parser.add_argument("--train", type=int, default=0, help="training requests whose output is judged")
    parser.add_argument("--alpha", type=float, action="append", help="by default 0.02 and 0.05")
    parser.add_argument("--rate", type=float, action="append", help="by default 1, 0.5 and 0.2")
    parser.add_argument("--calibrations", type=int, default=20_000)
    given = parser.parse_args()
    started = time.process_time()
    if given.validity:
        holds = validity(given.calibrations)
    elif given.folder is None:
        parser.error("name the folder of the logs")
    else:
        ways = "      all   differ     path  settled"
        heads = f"{'pair':26} {'n':>5} {'alpha':>5} {'rate':>5} {'cost':>7} {'±':>6} {'regret':>8} {'certified':>9}"
        print(f"{heads} {'broken':>8} {'allowed':>8} {ways}")
        pairs = [one for one in PAIRS if given.only in one.name][: 1 if given.quick else None]
        if given.quick:
            given.splits, given.resplits = 2, 10
        work = promises if given.promises else measure
        holds = all([work(pair, given) for pair in pairs])  # noqa: C419 - every pair is measured
    print(f"{time.process_time() - started:.0f} s of one core", file=sys.stderr)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
