"""How far what is learned from 1,000 questions is from the best that these signals allow.

    python benchmarks/osc_limit.py                        5 to 10 minutes, 2 processes
    python benchmarks/osc_limit.py --quick                fewer draws
    python benchmarks/osc_limit.py --world mmlu/llama-3.2-3b

Cost at a coverage of exactly 1 − alpha (`Frontier.matched`) on fresh questions of a simulated world, in cents for 200
questions. **The limit** is what backward induction reaches that learns from 150,000 questions, on as many fresh ones:
the cheapest of net benefit, with and without products, of the index, of boosted trees, and of trees four times as many
and as large. Another method could only bring it down. The methods learn from 1,000 and 4,000 questions, several
draws each, as `cascade fit` would with a calibration part of 200 and 800. A ratio is their mean cost on 20,000 of the
fresh questions over that of the limit on the same, with the standard error of the draws.

"floor": the first step alone covers 1 − alpha, every policy stops at once, and there is nothing to learn. How much the
signals tell is `worlds.MEDIUM`, which the published tables leave open; ratios depend on it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from fitted.methods import METHODS, PORTFOLIO, scores_of
from fitted.opponents import clairvoyant_cost, matched, mixture_cost
from fitted.report import head, table
from fitted.trial import Scorer

from cascade.conformal.arrays import hopeless
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.simulate import WORLDS, simulate
from cascade.policies.base import Policy
from cascade.policies.estimators import Scorer as Form
from cascade.training.estimators import one_thread
from cascade.training.stages import FitTarget
from cascade.training.stopping import build, induce, policy_of
from cascade.training.trees import boosted

ALPHAS = (0.1, 0.05)
USUAL = ("hotpotqa/llama-2-7b", "mmlu/llama-2-7b")
MANY, JUDGED = 150_000, 20_000
DRAWS = {1_000: 12, 4_000: 4}
QUICK = {1_000: 4, 4_000: 1}
LARGE = "large trees"
PLAYED = (PORTFOLIO, "net benefit", "net benefit, products", "index2")
BARS = {0.1: 1.02, 0.05: 1.08}
"""Of net benefit with 1,000 questions, as the better of its two forms: what a prototype reached on its own worlds."""
CENTS_OF_200 = 100.0 * 200


class Ratio(NamedTuple):
    """What a method costs over the limit, mean over the draws, with its standard error."""

    method: str
    questions: int
    mean: float
    error: float


class Found(NamedTuple):
    """One world at one alpha; costs in cents for 200 questions.

    Attributes:
        world, alpha: what was asked.
        floor: whether the first step alone covers 1 − alpha; then nothing else was worked out.
        limits: of each method that learned from 150,000 questions, on as many fresh ones.
        mixture, clairvoyant: the best coin between two depths, and who knows every answer.
        ratios: of the methods, to the cheapest of `limits`.
    """

    world: str
    alpha: float
    floor: bool
    limits: Mapping[str, float] = {}
    mixture: float = math.nan
    clairvoyant: float = math.nan
    ratios: tuple[Ratio, ...] = ()


def cost(scorer: Scorer, test: EpisodeTable, alpha: float) -> float:
    """Return what scores bring at a coverage of exactly 1 − alpha."""
    return CENTS_OF_200 * matched(test.arrays, scorer(test), (alpha,))[0]


def fitted(method: str, train: EpisodeTable, alpha: float, seed: int) -> Scorer:
    """Fit a method."""
    if method == LARGE:
        return partial(scores_of, large_trees(train, alpha, seed))
    return METHODS[method].fit(train, (alpha,), seed)[alpha].scores


def large_trees(train: EpisodeTable, alpha: float, seed: int) -> Policy:
    """Fit net benefit with trees that only so many questions can fill."""
    problem = build(train, FitTarget("coverage", alpha), products=True, confidences=False)
    induced = induce(problem)
    steps = zip(problem.stages[:-1], induced.targets, problem.prices.tolist(), strict=True)
    forms: list[Form | None] = [
        None
        if y is None
        else boosted(
            stage.raw[stage.deciding], y / price, seed=seed, trees=240, leaves=32, learning_rate=0.05, least_rows=200
        )
        for stage, y, price in steps
    ]
    return policy_of(problem, "boosted", forms)


@one_thread()
def measure(world: str, alpha: float, draws: Mapping[int, int]) -> Found:
    """Work out the limit, and how near the methods come."""
    fresh = simulate(WORLDS[world], MANY, seed=2)
    if float((fresh.arrays.correct[:, 0].any(axis=1) | hopeless(fresh.arrays)).mean()) >= 1 - alpha:
        return Found(world, alpha, floor=True)
    train, some = simulate(WORLDS[world], MANY, seed=1), fresh.take(np.arange(JUDGED))
    rules = {name: fitted(name, train, alpha, 0) for name in (*PLAYED[1:], "boosted trees", LARGE)}
    limits = {name: cost(rule, fresh, alpha) for name, rule in rules.items()}
    best = cost(rules[min(limits, key=lambda name: limits[name])], some, alpha)
    ratios = []
    for name in PLAYED:
        for questions, many in draws.items():
            drawn = (simulate(WORLDS[world], questions, seed=100 + number) for number in range(many))
            each = np.array([cost(fitted(name, one, alpha, 0), some, alpha) / best for one in drawn])
            error = float(each.std(ddof=1)) / math.sqrt(many) if many > 1 else math.nan
            ratios.append(Ratio(name, questions, float(each.mean()), error))
    print(f"{world}, alpha {alpha:g}: done", file=sys.stderr, flush=True)
    knowing, mixed = (CENTS_OF_200 * bound(fresh.arrays, alpha) for bound in (clairvoyant_cost, mixture_cost))
    return Found(world, alpha, floor=False, limits=limits, mixture=mixed, clairvoyant=knowing, ratios=tuple(ratios))


def bar(found: Found) -> tuple[bool, str]:
    """Return whether a world's demand is met, and what was found."""
    best = min((one for one in found.ratios if one.method.startswith("net") and one.questions == 1_000), key=_mean)
    said = f"{found.world}, alpha {found.alpha:g}: {best.method} {best.mean:.3f} ± {best.error:.3f} × the limit"
    return best.mean <= BARS[found.alpha], f"{said}, at most {BARS[found.alpha]:g}"


def _mean(one: Ratio) -> float:
    return one.mean


def show(results: Sequence[Found]) -> None:
    """Print the tables."""
    print(f"{head()}\n")
    open_ = [one for one in results if not one.floor]
    for one in (one for one in results if one.floor):
        print(f"{one.world}, alpha {one.alpha:g}: floor\n")
    rows = [
        (one.world, f"{one.alpha:g}", name, f"{value:.3f}", f"{one.mixture:.3f}", f"{one.clairvoyant:.3f}")
        for one in open_
        for name, value in sorted(one.limits.items(), key=lambda item: item[1])
    ]
    print(f"What {MANY:,} questions bring, cents for 200 questions:\n")
    print("\n".join(table(("world", "alpha", "method", "cost", "best coin of two depths", "clairvoyant"), rows)))
    print("\nCost over the limit, the cheapest of these:\n")
    ratios = [
        (one.world, f"{one.alpha:g}", ratio.method, f"{ratio.questions:,}", f"{ratio.mean:.3f}{_spread(ratio.error)}")
        for one in open_
        for ratio in one.ratios
    ]
    print("\n".join(table(("world", "alpha", "method", "questions", "cost ÷ limit"), ratios)))
    print()
    for met, said in map(bar, open_):
        print(f"{'ok    ' if met else 'MISSED'} {said}")


def _spread(error: float) -> str:
    return "" if math.isnan(error) else f" ± {error:.3f}"  # a single draw has none


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a demand is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", action="append", choices=sorted(WORLDS), help="may be given again")
    parser.add_argument("--quick", action="store_true", help="fewer draws")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(argv)
    cells = [(world, alpha) for alpha in ALPHAS for world in given.world or USUAL]
    with ProcessPoolExecutor(given.jobs) as pool:
        draws = QUICK if given.quick else DRAWS
        results = list(pool.map(measure, *zip(*cells, strict=True), [draws] * len(cells)))
    if given.json:
        rows: list[dict[str, Any]] = [
            {**one._asdict(), "ratios": [ratio._asdict() for ratio in one.ratios]} for one in results
        ]
        print(json.dumps({"head": head(), "worlds": rows}))
    else:
        show(results)
    return int(not all(bar(one)[0] for one in results if not one.floor))


if __name__ == "__main__":
    sys.exit(main())
