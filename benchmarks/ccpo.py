"""CCPO, CPO and optimal stopping on the same questions: what each costs at exactly 1 − alpha, and what it covers.

    python benchmarks/ccpo.py                                    the simulated HotpotQA world, 20 seeds, 2 processes
    python benchmarks/ccpo.py --world mmlu/llama-2-7b --alpha 0.05
    python benchmarks/ccpo.py --logs FOLDER --splits 3           every multi-step log of a folder, and the demo's
    python benchmarks/ccpo.py --quick                            2 seeds, 300 steps

A seed draws 1,000 questions to train on and 200 to calibrate on; what is learned is judged on 20,000 fresh ones, the
same for all. **at 1 − α**: the cost at a coverage of exactly 1 − alpha (`Frontier.matched`), cents for 200 questions,
and its ratio to the limit: net benefit that learned from 150,000 questions. **covers**: of the policy as
it would be served, calibrated by exact split conformal on its 200 questions; CPO takes its argmax, and CPO online its
threshold from the training questions: neither promises anything. Errors are standard errors over the seeds.

On logs a split draws 1,000, 200 and the rest, as `fit_logs.py`; costs are in USD a question and given over that of net
benefit; "floor": one step covers 1 − alpha.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[train]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fitted.cells import Cell, cells
from fitted.methods import scores_of
from fitted.opponents import clairvoyant_cost, going_on, matched, mixture_cost
from fitted.report import head, table
from fitted.splitting import parts
from literal.config import LiteralConfig
from literal.training import train_literal
from published.worlds import WORLDS, simulate

from cascade.calibration.samples import doubt_of
from cascade.conformal.arrays import ScoreArrays, levels, rollout
from cascade.conformal.split import critical_values, split_kappa
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.policies.learned import LearnedPolicy
from cascade.training.dividing import allowed_loss
from cascade.training.estimators import one_thread
from cascade.training.networks.fitting import fit_network
from cascade.training.stages import FitTarget
from cascade.training.stopping import build, fit_net_benefit

WORLD, ALPHA, SEEDS, SPLITS = "hotpotqa/llama-2-7b", 0.1, 20, 3
TRAIN, CALIBRATION, FRESH, MANY = 1_000, 200, 20_000, 150_000
CENTS_OF_200 = 100.0 * 200
OSC, CCPO, SAMPLED, REGION = "OSC (net benefit)", "CCPO, exact", "CCPO, sampled", "CCPO, exact, trust region"
BATCH, BATCH_SAMPLED, ONLINE, CPO, LAMBDA = (
    "CPO batch",
    "CPO batch, sampled",
    "CPO online",
    "CPO",
    "CCPO, exact, λ = 0.02",
)
THRESHOLD = "threshold"
SETTINGS: Mapping[str, Mapping[str, object]] = {
    CCPO: {},
    REGION: {"update": "trust_region"},
    SAMPLED: {"estimator": "sampled"},
    LAMBDA: {"lambda_set": 0.02},
}
"""Of CCPO, what is not the default."""
WAYS = (THRESHOLD, CPO, BATCH, BATCH_SAMPLED, ONLINE, *SETTINGS, OSC)
ON_LOGS = (THRESHOLD, BATCH, ONLINE, CCPO, SAMPLED, OSC)
GAP, MOST, AIM = 0.12, 1.20, 1.05
"""CCPO below CPO batch at least, and over the limit at most; what is aimed at."""


class Judged(NamedTuple):
    """One policy on fresh questions.

    Attributes:
        at: USD a question at exactly 1 − alpha; NaN out of reach.
        cost: USD a question as served.
        coverage: as served.
        length, leaves, distinct: as served, means.
        seconds: to train.
        diverged: whether training was ended early.
    """

    at: float
    cost: float
    coverage: float
    length: float
    leaves: float
    distinct: float
    seconds: float = 0.0
    diverged: bool = False


class Made(NamedTuple):
    """A policy, and how it is served: at its own threshold, or at one that is calibrated."""

    scores: Callable[[EpisodeTable], ScoreArrays]
    kappa: float | None
    diverged: bool = False


Maker = Callable[[EpisodeTable, float, int], Mapping[str, Made]]
"""From training questions, the loss that calibration will allow and a seed to one policy or several, by name."""


def network(train: EpisodeTable, loss: float, seed: int, *, name: str, config: LiteralConfig) -> dict[str, Made]:
    """Train CCPO."""
    return {name: _trained(train, loss, seed, "ccpo", config)}


def pointwise(
    train: EpisodeTable, loss: float, seed: int, *, names: Sequence[str], config: LiteralConfig
) -> dict[str, Made]:
    """Train CPO once, for CPO, CPO batch and CPO online, as far as asked for: one network, three thresholds."""
    online = _trained(train, loss, seed, "cpo_online", config)
    kappas = {CPO: 1.0, ONLINE: online.kappa}  # no log-probability is above 0: the argmax
    return {name: online._replace(kappa=kappas.get(name)) for name in names}


def _trained(train: EpisodeTable, loss: float, seed: int, method: str, config: LiteralConfig) -> Made:
    found = fit_network(
        train,
        FitTarget("coverage", loss),
        method=method,
        config=config,
        confidences=False,
        seed=seed,
        run=train_literal,
    )
    policy: LearnedPolicy = found.policy
    kappa = policy.kappa if method == "cpo_online" else None
    return Made(partial(scores_of, policy), kappa, found.trained.diverged is not None)


def osc(train: EpisodeTable, loss: float, seed: int) -> dict[str, Made]:
    """Fit net benefit."""
    policy = fit_net_benefit(build(train, FitTarget("coverage", loss), confidences=False, seed=seed))
    return {OSC: Made(partial(scores_of, policy), None)}


def threshold(train: EpisodeTable, loss: float, seed: int) -> dict[str, Made]:  # noqa: ARG001 - as every maker
    """Go on while the log's measure of doubt is high; where it has none, a fixed depth."""
    doubt = doubt_of(train)

    def scores(table: EpisodeTable) -> ScoreArrays:
        nothing = -np.arange(table.arrays.horizon) * np.ones((table.n, 1))
        return going_on(table, nothing if doubt is None else doubt.read(table))

    return {THRESHOLD: Made(scores, None)}


def makers(ways: Sequence[str], steps: int | None) -> Iterator[Maker]:
    """Yield what makes the policies of these names."""

    def config(**more: object) -> LiteralConfig:
        return LiteralConfig.model_validate(more if steps is None else {**more, "steps": steps})

    if THRESHOLD in ways:
        yield threshold
    family = [name for name in (CPO, BATCH, ONLINE) if name in ways]
    if family:
        yield partial(pointwise, names=family, config=config())
    if BATCH_SAMPLED in ways:
        yield partial(pointwise, names=[BATCH_SAMPLED], config=config(estimator="sampled"))
    for name, more in SETTINGS.items():
        if name in ways:
            yield partial(network, name=name, config=config(**more))
    if OSC in ways:
        yield osc


def judge(made: Made, calibration: EpisodeTable, fresh: EpisodeTable, alpha: float) -> Judged:
    """Play a policy on fresh questions."""
    calibrated = split_kappa(critical_values(calibration.arrays, made.scores(calibration)), alpha)
    scores, kappa = made.scores(fresh), calibrated if made.kappa is None else made.kappa
    done = rollout(fresh.arrays, levels(fresh.arrays, scores), kappa)
    at, cost = matched(fresh.arrays, scores, (alpha,))[0], float(done.cost.mean()) / 1e9
    length, leaves, distinct = (float(one.mean()) for one in (done.length, done.leaves, done.distinct))
    return Judged(at, cost, float(done.covered.mean()), length, leaves, distinct)


def judged(
    way: Maker, train: EpisodeTable, calibration: EpisodeTable, fresh: EpisodeTable, alpha: float, seed: int
) -> dict[str, Judged]:
    """Make policies and play them."""
    started = time.perf_counter()
    loss = allowed_loss(Guarantee("coverage", alpha), calibration.n)
    made = way(train, loss, seed)
    seconds = time.perf_counter() - started
    played = {name: judge(one, calibration, fresh, alpha) for name, one in made.items()}
    return {name: one._replace(seconds=seconds, diverged=made[name].diverged) for name, one in played.items()}


@cache
def fresh_of(world: str) -> EpisodeTable:
    """Return the questions that all are judged on."""
    return simulate(WORLDS[world], FRESH, seed=2)


@one_thread()
def on_seed(world: str, alpha: float, seed: int, ways: tuple[str, ...], steps: int | None) -> dict[str, Judged]:
    """Judge every way on one draw."""
    train, fresh = simulate(WORLDS[world], TRAIN, seed=100 + seed), fresh_of(world)
    calibration = simulate(WORLDS[world], CALIBRATION, seed=10_000 + seed)
    found: dict[str, Judged] = {}
    for way in makers(ways, steps):
        found |= judged(way, train, calibration, fresh, alpha, seed)
    print(f"{world}, alpha {alpha:g}, seed {seed}: done", file=sys.stderr, flush=True)
    return found


@one_thread()
def limit_of(world: str, alpha: float) -> float:
    """Return what 150,000 questions bring, USD at exactly 1 − alpha."""
    made = osc(simulate(WORLDS[world], MANY, seed=1), alpha, 0)[OSC]
    return matched(fresh_of(world).arrays, made.scores(fresh_of(world)), (alpha,))[0]


@one_thread()
def on_cell(cell: Cell, alpha: float, splits: int, ways: tuple[str, ...], steps: int | None) -> dict[str, list[Judged]]:
    """Judge every way on the splits of a log."""
    found: dict[str, list[Judged]] = {name: [] for name in ways}
    for number, part in enumerate(parts(cell.table, splits, 0)):
        for way in makers(ways, steps):
            for name, one in judged(way, part.train, part.calibration, part.test, alpha, number).items():
                found[name].append(one)
    print(f"{cell.name}: done", file=sys.stderr, flush=True)
    return found


def told(values: Sequence[float], form: str = ".3f") -> str:
    """Return mean ± standard error."""
    held = np.array(values)
    error = f" ± {held.std(ddof=1) / math.sqrt(held.size):{form}}" if held.size > 1 else ""
    return f"{held.mean():{form}}{error}"


def show_world(world: str, alpha: float, limit: float, found: Sequence[Mapping[str, Judged]]) -> bool:
    """Print one world's table; whether its demands are met."""
    fresh = fresh_of(world)
    print(f"\n### {world}, alpha = {alpha:g}, {len(found)} seeds\n")
    rows = []
    for name in found[0]:
        some = [one[name] for one in found]
        at = [one.at / limit for one in some]
        cents = [CENTS_OF_200 * one.at for one in some]
        lost = sum(one.diverged for one in some)
        rows.append((
            name, told(cents, ".2f"), told(at), told([CENTS_OF_200 * one.cost for one in some], ".2f"),
            told([one.coverage for one in some]), f"{np.mean([one.length for one in some]):.2f}",
            f"{np.mean([one.leaves for one in some]):.2f} / {np.mean([one.distinct for one in some]):.2f}",
            str(lost), f"{np.mean([one.seconds for one in some]):.1f}",
        ))  # fmt: skip
    columns = (
        "policy",
        "cents at 1 − α",
        "÷ limit",
        "cents as served",
        "covers",
        "length",
        "leaves / distinct",
        "diverged",
        "fit s",
    )
    print("\n".join(table(columns, rows)))
    knowing, mixed = (CENTS_OF_200 * bound(fresh.arrays, alpha) for bound in (clairvoyant_cost, mixture_cost))
    bounds = f"limit {CENTS_OF_200 * limit:.2f}, best coin of two depths {mixed:.2f}, clairvoyant {knowing:.2f}"
    print(f"\nCents for 200 questions: {bounds}.\n")
    return _demands(found, limit, alpha)


def _demands(found: Sequence[Mapping[str, Judged]], limit: float, alpha: float) -> bool:
    def mean(name: str) -> float:
        return float(np.mean([one[name].at for one in found]))

    met = True
    pairs = [(CCPO, BATCH), (SAMPLED, BATCH_SAMPLED)]
    for name, other in (pair for pair in pairs if all(one in found[0] for one in pair)):
        covered = np.array([one[name].coverage for one in found])
        least = 1 - alpha - 2 * covered.std(ddof=1) / math.sqrt(covered.size) if covered.size > 1 else 1 - alpha
        lost = sum(one[name].diverged for one in found)
        gap, over = 1 - mean(name) / mean(other), mean(name) / limit
        said = [
            (
                covered.mean() >= least,
                f"covers {covered.mean():.4f}, at least {1 - alpha:g} within two standard errors",
            ),
            (lost == 0, f"diverged in {lost} of {len(found)} seeds"),
            (gap >= GAP, f"{100 * gap:.1f} % below {other} at 1 − α, at least {100 * GAP:.0f} %"),
            (over <= MOST, f"{over:.3f} × the limit, at most {MOST:g}; {AIM:g} is aimed at"),
        ]
        for kept, words in said:
            print(f"{'ok    ' if kept else 'MISSED'} {name}: {words}")
            met &= bool(kept)
    return met


def show_logs(results: Sequence[tuple[Cell, Mapping[str, list[Judged]]]], alpha: float, ways: Sequence[str]) -> None:
    """Print the logs' table."""
    rows, ratios = [], {name: list[float]() for name in ways}
    for cell, found in results:
        base = float(np.mean([one.at for one in found[OSC]]))
        floor = cell.floor(alpha)
        shown = []
        for name in ways:
            ratio = float(np.mean([one.at for one in found[name]])) / base
            covers = float(np.mean([one.coverage for one in found[name]]))
            shown.append(f"{ratio:.2f} ({covers:.3f})")
            if not floor and math.isfinite(ratio):
                ratios[name].append(ratio)
        rows.append((cell.name + (", floor" if floor else ""), str(cell.table.n), *shown))
    print(f"\n### Logs, alpha = {alpha:g}: cost at exactly 1 − α over {OSC} (coverage as served)\n")
    print("\n".join(table(("log", "questions", *ways), rows)))
    print("\nGeometric means over the logs that are no floor:")
    for name in ways:
        some = ratios[name]
        print(f"  {name}: {math.exp(float(np.mean(np.log(some)))):.3f} over {len(some)}" if some else f"  {name}: –")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", action="append", choices=sorted(WORLDS), help="may be given again")
    parser.add_argument("--alpha", type=float, default=ALPHA)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--logs", type=Path, nargs="?", const=Path(), help="judge on logs instead: a folder")
    parser.add_argument("--only", action="append", default=[], help="part of a log's name; may be given again")
    parser.add_argument("--splits", type=int, default=SPLITS, help="of each log")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be given again")
    parser.add_argument("--steps", type=int, help="of training; by default the configuration's")
    parser.add_argument("--quick", action="store_true", help="2 seeds, 300 steps")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a demand is missed, unless it is a quick look."""
    given = parsed(argv)
    steps = 300 if given.quick and given.steps is None else given.steps
    print(head())
    with ProcessPoolExecutor(given.jobs) as pool:
        if given.logs is not None:
            ways = tuple(given.way or ON_LOGS)
            some, _ = cells(given.logs, tuple(given.only))
            play = partial(on_cell, alpha=given.alpha, splits=given.splits, ways=ways, steps=steps)
            show_logs(list(zip(some, pool.map(play, some), strict=True)), given.alpha, ways)
            return 0
        met = True
        ways = tuple(given.way or WAYS)
        for world in given.world or [WORLD]:
            limit = pool.submit(limit_of, world, given.alpha)
            seeds = range(2 if given.quick else given.seeds)
            run = partial(on_seed, world, given.alpha, ways=ways, steps=steps)
            met &= show_world(world, given.alpha, limit.result(), list(pool.map(run, seeds)))
    return int(not met and not given.quick)


if __name__ == "__main__":
    sys.exit(main())
