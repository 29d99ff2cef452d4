"""CCPO as its text prints it, and what each repair brings: the cost at exactly 1 − alpha.

    python benchmarks/ccpo_literal.py --keep runs.json     20 to 40 minutes, 2 processes
    python benchmarks/ccpo_literal.py --read runs.json     prints kept runs
    python benchmarks/ccpo_literal.py --quick              2 seeds, 300 steps

The first variant is `LiteralConfig.literal()`; each one below it has one repair more, and the last two are the sampled
and the exact defaults. All learn from the same 1,000 simulated questions a seed. Judged on 20,000 fresh ones: cost at a
coverage of exactly 1 − alpha over that of the limit, which is optimal stopping (net benefit with products) learned from
150,000; and what a threshold calibrated on 200 questions of its own covers.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[train]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fitted.methods import METHODS, scores_of
from fitted.opponents import matched
from fitted.report import head, table
from literal.config import LiteralConfig
from literal.training import LiteralFigures, train_literal
from published.worlds import WORLDS, simulate

from cascade.conformal.arrays import levels, rollout
from cascade.conformal.split import critical_values, split_kappa
from cascade.training.networks.fitting import fit_network
from cascade.training.stages import FitTarget

WORLD, ALPHA = "hotpotqa/llama-2-7b", 0.1
TRAINED, CALIBRATED, JUDGED, MANY = 1_000, 200, 20_000, 150_000
SEEDS, QUICK_SEEDS, QUICK_STEPS = 5, 2, 300
LIMIT = "net benefit, products"
GRID = 1e-6
"""The finest threshold of the text: a calibrated one below it is not on its grid."""
CASES = ("recover", "active", "inactive", "rejected")

REPAIRS: Mapping[str, Mapping[str, Any]] = {
    "as printed": {},
    "sign of Eq. 9 put right": {"kappa_sign": "corrected"},
    "κ kept in 0.1..1/3, counted before the update": {"kappa_range": None, "kappa_timing": "before"},
    "coverage exact, not right answers counted": {"constraint_form": "exact"},
    "cost of the set, not of one path": {"cost_form": "conformal"},
    "no clips, states weighted": {"rho_clip": None, "gradient_clip": None, "state_weights": True},
    "30 % exploration": {"exploration": 0.3},
    "soft mask 0.05 wide": {"mask_width": 0.05},
    "trust region on π, smoothed, annealed": {
        "trust_region_of": "policy", "smoothing": 0.9, "anneal": True, "activation": "softsign",
    },
}  # fmt: skip
"""Each on top of those above it."""
OPEN = {"steps": 1_500, "solver": "exact"}
"""Of the 1,500 to 2,000 steps of the text; its ten conjugate gradients take twice as long as the exact H⁻¹."""
DEFAULTS: Mapping[str, LiteralConfig] = {
    "multiplier and Adam, averaged: the sampled default": LiteralConfig(estimator="sampled"),
    "exact gradients: the default": LiteralConfig(),
}


class Ran(NamedTuple):
    """One run.

    Attributes:
        variant, seed: which.
        ratio: cost at a coverage of exactly 1 − alpha, over the limit's; NaN where every threshold covers more.
        calibrated: the probability that is the threshold of 200 questions.
        covered: by it, on fresh questions.
        cases: how often each case of the step came.
        diverged: why the run was ended early; None where it was not.
        seconds: of training.
    """

    variant: str
    seed: int
    ratio: float
    calibrated: float
    covered: float
    cases: Mapping[str, int]
    diverged: str | None
    seconds: float


def configs(steps: int | None = None) -> dict[str, LiteralConfig]:
    """Return the variants: the text, and each repair on top of those before.

    >>> len(configs()), configs()["as printed"] == LiteralConfig.literal().model_copy(update=OPEN)
    (11, True)
    """
    found, held = dict[str, LiteralConfig](), {**LiteralConfig.literal().model_dump(), **OPEN}
    for name, changed in REPAIRS.items():
        held = {**held, **changed}
        found[name] = LiteralConfig.model_validate(held)
    found.update(DEFAULTS)
    return found if steps is None else {name: one.model_copy(update={"steps": steps}) for name, one in found.items()}


class Judge:
    """The fresh questions, and what the limit costs on them."""

    def __init__(self) -> None:
        self.test = simulate(WORLDS[WORLD], JUDGED, seed=2)
        rule = METHODS[LIMIT].fit(simulate(WORLDS[WORLD], MANY, seed=1), (ALPHA,), 0)[ALPHA]
        self.limit = matched(self.test.arrays, rule.scores(self.test), (ALPHA,))[0]


def run(name: str, config: LiteralConfig, seed: int, judge: Judge) -> Ran:
    """Train one variant on one draw of questions, and judge it."""
    train, own = (simulate(WORLDS[WORLD], n, seed=first + seed) for n, first in ((TRAINED, 100), (CALIBRATED, 300)))
    started = time.process_time()
    learned = fit_network(
        train, FitTarget("coverage", ALPHA), config=config, confidences=False, seed=seed, run=train_literal
    )
    seconds = time.process_time() - started
    test = judge.test.arrays
    scores = scores_of(learned.policy, judge.test)
    kappa = split_kappa(critical_values(own.arrays, scores_of(learned.policy, own)), ALPHA)
    cases = Counter(row.case for row in learned.trained.rows if isinstance(row, LiteralFigures))
    return Ran(
        name, seed, matched(test, scores, (ALPHA,))[0] / judge.limit, math.exp(kappa),
        float(rollout(test, levels(test, scores), kappa).covered.mean()), dict(cases),
        learned.trained.diverged, seconds,
    )  # fmt: skip


_JUDGE: list[Judge] = []


def _job(job: tuple[str, LiteralConfig, int]) -> Ran:
    done = run(*job, _JUDGE[0])
    print(f"{job[0]}, seed {job[2]}: {done.ratio:.3f}, {done.seconds:.0f} s", file=sys.stderr, flush=True)
    return done


def measure(seeds: Sequence[int], steps: int | None, jobs: int) -> Iterator[Ran]:
    """Do everything: all variants of a seed before the next seed, so that what is interrupted is still a table."""
    todo = [(name, config, seed) for seed in seeds for name, config in configs(steps).items()]
    with ProcessPoolExecutor(jobs, initializer=_prepare) as pool:
        yield from pool.map(_job, todo)


def _prepare() -> None:
    _JUDGE[:] = [Judge()]


def lines(runs: Sequence[Ran]) -> list[str]:
    """Return the table."""
    columns: tuple[str, ...] = (
        "each with all above it",
        "cost ÷ limit at .90: median",
        "least, most",
        "κ calibrated: median, least",
    )
    columns += ("below 10⁻⁶", "covered, mean", "diverged", "recover", "active", "inactive", "rejected", "s")
    return table(columns, [_cells(name, [one for one in runs if one.variant == name]) for name in _names(runs)])


def _names(runs: Sequence[Ran]) -> list[str]:
    """Return the variants in order; those that a run was interrupted before are left out."""
    known = {one.variant for one in runs}
    return [name for name in configs() if name in known]


def _cells(name: str, runs: Sequence[Ran]) -> list[str]:
    ratios = sorted(one.ratio for one in runs)
    kappas = sorted(one.calibrated for one in runs)
    steps = sum(sum(one.cases.values()) for one in runs)
    shares = [sum(one.cases.get(case, 0) for one in runs) / steps for case in CASES]
    dual = any("dual" in one.cases for one in runs)
    return [
        name,
        f"{np.median(ratios):.2f}",
        f"{ratios[0]:.2f}, {ratios[-1]:.2f}",
        f"{np.median(kappas):.2g}, {kappas[0]:.2g}",
        f"{sum(one < GRID for one in kappas)} of {len(runs)}",
        f"{np.mean([one.covered for one in runs]):.3f}",
        f"{sum(one.diverged is not None for one in runs)} of {len(runs)}",
        *(["–"] * len(CASES) if dual else [f"{100 * one:.0f} %" for one in shares]),
        f"{np.mean([one.seconds for one in runs]):.0f}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds, {QUICK_STEPS} steps")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--keep", type=Path, help="a JSON file for the runs")
    parser.add_argument("--read", type=Path, nargs="+", help="runs that were kept, instead of new ones")
    given = parser.parse_args(argv)
    runs = list[Ran]()
    for path in given.read or []:
        runs += [Ran(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
    if not given.read:
        seeds = range(given.first, given.first + (QUICK_SEEDS if given.quick else given.seeds))
        for one in measure(seeds, QUICK_STEPS if given.quick else None, given.jobs):
            runs.append(one)
            if given.keep:
                given.keep.write_text(json.dumps([kept._asdict() for kept in runs]), encoding="utf-8")
    print(f"{head()}\n\n" + "\n".join(lines(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
