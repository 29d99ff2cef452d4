"""What the constants of optimal stopping are worth: how the cost changes where one of them is another.

    python benchmarks/osc_settings.py                     a simulated world, 3 minutes
    python benchmarks/osc_settings.py FOLDER      a ladder of zell_mmlu too

Net benefit with products learns from 1,000 questions, at alpha 0.1 and 0.05. Shown is its mean cost on others at a
coverage of exactly 1 − alpha, over that as `cascade fit` has it on the same draws, with the standard error of the
paired differences. `penalty` is that of a feature (`stopping.PENALTY`), `products` how many times more a product has
(`stages.PRODUCTS_TIMES`), `aim` the share of the allowed loss that is aimed at (`stopping._AIM`).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from fitted.cells import cells
from fitted.methods import scores_of
from fitted.opponents import matched
from fitted.report import head, table
from fitted.splitting import parts

from cascade.conformal.arrays import Floats
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.simulate import WORLDS, simulate
from cascade.training import stages, stopping
from cascade.training.estimators import one_thread
from cascade.training.stages import FitTarget
from cascade.training.stopping import PENALTY, build, fit_net_benefit

ALPHAS = (0.1, 0.05)
WORLD, DRAWS, JUDGED = "hotpotqa/llama-2-7b", 6, 20_000
LADDER = "zell_mmlu/llama-1b,3b,8b,70b>gpt-4o"


class Setting(NamedTuple):
    """What net benefit is fitted with."""

    name: str
    penalty: float = PENALTY
    products: float = stages.PRODUCTS_TIMES
    aim: float = stopping._AIM  # noqa: SLF001 - what is measured here


AS_IT_IS = Setting("as it is")
SETTINGS = (
    *(Setting(f"penalty {value:g}", penalty=value) for value in (1.0, 3.0, 30.0, 100.0)),
    *(Setting(f"products {value:g}", products=value) for value in (1.0, 10.0, 30.0, 300.0)),
    *(Setting(f"aim {value:g}", aim=value) for value in (0.5, 0.6, 0.9, 1.0)),
)


class Draw(NamedTuple):
    """Questions to learn from, and others to be judged on."""

    train: EpisodeTable
    test: EpisodeTable


def costs(draws: Sequence[Draw], setting: Setting, alpha: float) -> Floats:
    """Return the matched cost of each draw, USD; NaN out of reach."""
    asked, found = FitTarget("coverage", alpha), []
    with (
        patch.object(stages, "PRODUCTS_TIMES", setting.products),
        patch.object(stopping, "_AIM", setting.aim),
    ):
        for train, test in draws:
            policy = fit_net_benefit(build(train, asked, products=True, confidences=False), penalty=setting.penalty)
            found.append(matched(test.arrays, scores_of(policy, test), (alpha,))[0])
    return np.array(found)


def logs(folder: Path | None) -> Iterator[tuple[str, list[Draw]]]:
    """Yield what there is to learn from, by name."""
    test = simulate(WORLDS[WORLD], JUDGED, seed=2)
    yield f"{WORLD} (simulated)", [Draw(simulate(WORLDS[WORLD], 1_000, seed=100 + k), test) for k in range(DRAWS)]
    if folder is not None:
        for cell in (one for one in cells(folder, (LADDER,))[0] if one.name == LADDER):
            yield cell.name, [Draw(one.train, one.test) for one in islice(parts(cell.table, DRAWS, 0), DRAWS)]


def row(name: str, setting: Setting, alpha: float, mine: Floats, base: Floats) -> tuple[str, ...]:
    """Return a line of the table: the ratio of the means, with the error of the paired differences."""
    apart = (mine - base) / base.mean()
    error = float(apart.std(ddof=1)) / math.sqrt(apart.size)
    return name, f"{alpha:g}", setting.name, f"{1 + float(apart.mean()):.3f} ± {error:.3f}"


@one_thread()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the logs are")
    given = parser.parse_args(argv)
    rows = []
    for name, draws in logs(given.folder):
        for alpha in ALPHAS:
            base = costs(draws, AS_IT_IS, alpha)
            rows += [row(name, one, alpha, costs(draws, one, alpha), base) for one in SETTINGS]
            print(f"{name}, alpha {alpha:g}: done", file=sys.stderr, flush=True)
    print(f"{head()}\n")
    print("\n".join(table(("questions", "alpha", "with", "cost ÷ as it is"), rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
