"""One network for five models and three levels, as CORL's controller; beside each model alone and the ladder.

    python benchmarks/controller.py FOLDER                       every log of five models, 5 splits
    python benchmarks/controller.py FOLDER --only zell_mmlu --splits 2 --steps 300

FOLDER holds the logs of `simple_ways.py`. The controller is one policy network that sees its level (`cascade fit
--policy ccpo --levels …`): after each model's answer it says whether to keep it or to ask the next model. Each level
promises that at most so many answers are wrong where the last model is right, δ = .1, with a certificate of its own.
The ladder is a policy by backward regressions for each level, "one score" the exact test of a threshold on the best
single score (`simple/opponents.py`). A split draws seven of ten groups to fit and to certify, the others are the test.
A cost is a share of the last model's on the test questions, and 1 where nothing is certified.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fit_regret import halves
from fitted.report import head, table
from simple.cells import read
from simple.opponents import exact, rows_of, serve
from simple_ways import DELTA

from cascade.calibration.samples import one_a_group
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.evaluation.evaluate import play_policy
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import reference_right
from cascade.training.fitting import Fitted
from cascade.training.levels import Conditioned, conditioned, fit_levels
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.trainer import Networks

LEVELS = {"low": 0.1, "medium": 0.05, "high": 0.02}
MODELS = 5


class Found(NamedTuple):
    """One way on the test questions: its cost as a share of the last model's, the shares right and of regret."""

    cost: float
    right: float
    regret: float


def on_split(log: EpisodeTable, seed: int, config: CCPOConfig) -> Iterator[tuple[str, Found]]:
    """Yield what each way comes to on a split."""
    given, test = (log.take(rows) for rows in halves(log.groups, seed))
    for rung in range(log.arrays.horizon):
        yield f"model {rung + 1} alone", _found(test, test.arrays.cost[:, rung], test.arrays.correct[:, rung, 0])
    networks = Networks(config)
    for way, make in (("controller", conditioned(networks, "ccpo", seed)), ("ladder", None)):
        for level, one in _fitted(given, seed, make, networks).items():
            yield f"{way}, {level}", _served(test, one)
    rows, shown = rows_of(one_a_group(given, seed=seed)), rows_of(test)
    for level, alpha in LEVELS.items():
        simple = serve(exact(rows, alpha, DELTA), shown)
        yield f"one score, {level}", Found(simple.ratio, float("nan"), simple.regret)


def _fitted(
    given: EpisodeTable, seed: int, make: Conditioned | None, networks: Networks
) -> Mapping[str, Fitted | None]:
    """Fit all levels; the last model alone at each where a level cannot be certified."""
    asked, method = Guarantee("regret", LEVELS["medium"], DELTA), "auto" if make else "net_benefit"
    try:
        return fit_levels([given], asked, LEVELS, method=method, make=make, seed=seed, networks=networks)
    except NotCertifiedError:
        return dict.fromkeys(LEVELS)


def _served(test: EpisodeTable, one: Fitted | None) -> Found:
    if one is None:
        return _found(test, test.arrays.cost[:, -1], reference_right(test))
    played = play_policy(test, one.artifact.calibrated(one.policy))
    return _found(test, played.cost, played.right)


def _found(test: EpisodeTable, cost: np.ndarray, right: np.ndarray) -> Found:
    lost = (1 - right.astype(float)) * reference_right(test)
    return Found(float(cost.sum() / test.arrays.cost[:, -1].sum()), float(right.mean()), float(lost.mean()))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a level's mean regret is above its promise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=("llama-1b,3b,8b,70b>",), help="parts of the names of logs")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of training; by default the configuration's")
    given = parser.parse_args(argv)
    config = CCPOConfig() if given.steps is None else CCPOConfig(steps=given.steps)
    print(head())
    kept = True
    for cell in read(given.folder, given.only)[0]:
        if cell.table.arrays.horizon < MODELS:
            continue
        each: dict[str, list[Found]] = defaultdict(list)
        for seed in range(given.splits):
            for way, found in on_split(cell.table, seed, config):
                each[way].append(found)
        mean = {way: Found(*np.mean(found, axis=0).tolist()) for way, found in each.items()}
        kept &= all(mean[f"controller, {level}"].regret <= alpha for level, alpha in LEVELS.items())
        rows = [[way, *("" if np.isnan(number) else f"{number:.3f}" for number in one)] for way, one in mean.items()]
        print(f"\n{cell.name}, {cell.table.n} questions, {given.splits} splits\n", flush=True)
        print("\n".join(table(["way", "cost", "right", "wrong where the last is right"], rows)), flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
