"""One policy network for three budget levels, against three networks trained for one level each.

    python benchmarks/ccpo_levels.py                     5 minutes, 2 processes
    python benchmarks/ccpo_levels.py --seeds 2 --steps 300

Questions and judgement are those of `ccpo.py`. Each level has a threshold of its own, from the same 200 calibration
questions. **at 1 − α**: the cost of the level's policy at a coverage of exactly 1 − its α, cents for 200
questions; **ratio**: over that of the network trained for the level alone. Errors are standard errors over the seeds.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[train]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from ccpo import CALIBRATION, CENTS_OF_200, TRAIN, WORLD, Judged, Made, fresh_of, judge, told
from fitted.methods import scores_of
from fitted.report import head, table
from published.worlds import WORLDS, simulate

from cascade.guarantees.base import Guarantee
from cascade.training.dividing import allowed_loss
from cascade.training.estimators import one_thread
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.fitting import fit_network
from cascade.training.stages import FitTarget

LEVELS = {"low": 0.15, "medium": 0.1, "high": 0.05}
BAR = 1.05


class Pair(NamedTuple):
    """A level of the shared network, and the network of that level alone."""

    shared: Judged
    alone: Judged


@one_thread()
def on_seed(seed: int, world: str, steps: int | None) -> Mapping[str, Pair]:
    """Train both ways on one draw, and judge each level."""
    train, calibration = (
        simulate(WORLDS[world], TRAIN, seed=100 + seed),
        simulate(WORLDS[world], CALIBRATION, seed=10_000 + seed),
    )
    config = CCPOConfig() if steps is None else CCPOConfig(steps=steps)
    losses = {name: allowed_loss(Guarantee("coverage", alpha), calibration.n) for name, alpha in LEVELS.items()}
    asked = {name: FitTarget("coverage", loss) for name, loss in losses.items()}
    shared = fit_network(train, asked, config=config, confidences=False, seed=seed).policies
    found = {}
    for name, alpha in LEVELS.items():
        alone = fit_network(train, asked[name], config=config, confidences=False, seed=seed).policy
        each = [
            judge(Made(partial(scores_of, one), None), calibration, fresh_of(world), alpha)
            for one in (shared[name], alone)
        ]
        found[name] = Pair(*each)
    print(f"seed {seed}: done", file=sys.stderr, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a level costs more than 5 % more than a network of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=sorted(WORLDS), default=WORLD)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, help="by default the configuration's")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args(argv)
    with ProcessPoolExecutor(given.jobs) as pool:
        found = list(pool.map(partial(on_seed, world=given.world, steps=given.steps), range(given.seeds)))
    rows, met = [], True
    for name, alpha in LEVELS.items():
        pairs = [one[name] for one in found]
        ratios = [one.shared.at / one.alone.at for one in pairs]
        met &= float(np.mean(ratios)) <= BAR
        rows.append((
            name, f"{alpha:g}", told([CENTS_OF_200 * one.shared.at for one in pairs], ".2f"),
            told([CENTS_OF_200 * one.alone.at for one in pairs], ".2f"), told(ratios),
            told([CENTS_OF_200 * one.shared.cost for one in pairs], ".2f"),
            told([one.shared.coverage for one in pairs]),
        ))  # fmt: skip
    print(f"{head()}; {given.world}, {given.seeds} seeds\n")
    columns = ("level", "α", "at 1 − α, shared", "alone", "ratio", "cents as served", "covers")
    print("\n".join(table(columns, rows)))
    print(f"\n{'ok    ' if met else 'MISSED'} every level within {100 * (BAR - 1):.0f} % of a network of its own")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
