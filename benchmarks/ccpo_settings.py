"""What each setting of CCPO is worth: one changed at a time, cost at exactly 1 − alpha over the limit.

    python benchmarks/ccpo_settings.py                   10 minutes, 2 processes
    python benchmarks/ccpo_settings.py --seeds 2 --only exact

Questions, limit and judgement are those of `ccpo.py`; errors are standard errors over the seeds. The settings are those
that `design/ccpo.md` gives a reason for.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[train]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from ccpo import ALPHA, CALIBRATION, TRAIN, WORLD, fresh_of, judged, limit_of, network, told
from fitted.report import head, table
from literal.config import LiteralConfig

from cascade.evaluation.simulate import WORLDS, simulate
from cascade.training.estimators import one_thread

EXACT: Mapping[str, Mapping[str, object]] = {
    "the default": {},
    "μ from 5/α (multiplier 5)": {"multiplier": 5.0},
    "no proportional part (multiplier_gain 0)": {"multiplier_gain": 0.0},
    "the last weights (average_from 1)": {"average_from": 1.0},
    "ReLU": {"activation": "relu"},
    "ε = 0.01": {"mask_width": 0.01},
    "ε = 0.1": {"mask_width": 0.1},
    "logit mask, ε = 0.5": {"mask_space": "logit", "mask_width": 0.5},
    "κ in [0, 1]": {"kappa_range": (0.0, 1.0)},
    "300 steps": {"steps": 300},
    "2,000 steps": {"steps": 2_000},
    "batch 10": {"batch": 10},
    "path cost": {"cost_form": "path"},
    "right leaves counted": {"constraint_form": "paper"},
    "trust region": {"update": "trust_region"},
    "trust region, constraint of the batch (smoothing 0)": {"update": "trust_region", "smoothing": 0.0},
    "trust region, constant δ": {"update": "trust_region", "anneal": False},
    "trust region of S": {"update": "trust_region", "trust_region_of": "soft_mask"},
}
SAMPLED: Mapping[str, Mapping[str, object]] = {
    "the default": {},
    "no proportional part (multiplier_gain 0)": {"multiplier_gain": 0.0},
    "violation of the batch (smoothing 0)": {"smoothing": 0.0},
    "no exploration": {"exploration": 0.0},
    "ρ̄ unclipped": {"rho_clip": None},
    "batch 50": {"batch": 50},
}


@one_thread()
def ratio(settings: Mapping[str, object], seed: int, alpha: float) -> float:
    """Return the cost at exactly 1 − alpha of one draw, USD a question."""
    train, calibration = (
        simulate(WORLDS[WORLD], n, seed=first + seed) for n, first in ((TRAIN, 100), (CALIBRATION, 10_000))
    )
    way = partial(network, name="", config=LiteralConfig.model_validate(dict(settings)))
    return judged(way, train, calibration, fresh_of(WORLD), alpha, seed)[""].at


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=ALPHA)
    parser.add_argument("--only", choices=("exact", "sampled"))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args(argv)
    print(f"{head()}; {WORLD}, alpha = {given.alpha:g}, {given.seeds} seeds")
    with ProcessPoolExecutor(given.jobs) as pool:
        limit = pool.submit(limit_of, WORLD, given.alpha).result()
        for estimator, settings in (("exact", EXACT), ("sampled", SAMPLED)):
            if given.only in {None, estimator}:
                rows = []
                for name, more in settings.items():
                    one = partial(ratio, {**more, "estimator": estimator}, alpha=given.alpha)
                    rows.append((name, told([cost / limit for cost in pool.map(one, range(given.seeds))])))
                    print(f"{estimator}, {name}: done", file=sys.stderr, flush=True)
                print(f"\n{estimator.capitalize()}:\n")
                print("\n".join(table(("setting", "÷ limit"), rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
