"""What `fit --guarantee error --abstain` costs beside the guide alone, where both may serve no answer.

    python benchmarks/abstaining.py FOLDER              40 splits
    python benchmarks/abstaining.py FOLDER --quick      5

A split draws seven of ten groups to fit and certify on; the others are the test. The guide alone with abstention asks
the guide every question and serves its answer at a bar that the same rows certify: its cost is 1 by definition.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fit_regret import halves
from fitted.report import head, table

from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.evaluation.evaluate import play_policy
from cascade.evaluation.logs import open_log
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import fit_policy

FILE, DELTA, ALPHAS = "episodes_zell_mmlu.parquet", 0.1, (0.05, 0.1)
SPLITS, QUICK = 20, 5
LADDERS = (
    ("gpt-4o-mini>gpt-4o", None),
    ("llama-3b>gpt-4o", None),
    ("llama-8b>405b", None),
    ("llama-1b,3b,8b,70b>405b", None),
    ("llama-1b,3b,8b,70b>gpt-4o", None),
    ("llama-1b,3b,8b,70b>405b", (1, 5)),
    ("llama-1b,3b,8b,70b>405b", (4, 5)),
    ("llama-1b,3b,8b,70b>gpt-4o", (4, 5)),
)
"""The ladders, and which of their steps are taken (all by default)."""


class Split(NamedTuple):
    """One split: cost as a share of the guide's; the shares answered, answered by the guide alone, answered wrongly."""

    cost: float
    answered: float
    alone: float
    wrong: float
    asked: tuple[int, ...]


def named(ladder: tuple[str, tuple[int, ...] | None]) -> str:
    """Return what a ladder is called."""
    pair, steps = ladder
    return pair if steps is None else f"steps {', '.join(map(str, steps))} of {pair}"


def one(seed: int, ladder: tuple[str, tuple[int, ...] | None], alpha: float, folder: Path) -> Split | None:
    """Fit, certify and test once; None where nothing is certified."""
    log = whole(ladder, folder)
    guarantee = Guarantee("error", alpha, DELTA, abstain=True)
    to_fit, to_test = halves(log.groups, seed)
    last = log.only((log.arrays.horizon,))
    try:
        found = fit_policy([log.take(to_fit)], guarantee, seed=seed)
        alone = fit_policy([last.take(to_fit)], guarantee, seed=seed)
    except NotCertifiedError:
        return None
    test = log.take(to_test)
    played = play_policy(test, found.artifact.calibrated(found.policy))
    beside = play_policy(last.take(to_test), alone.artifact.calibrated(alone.policy))
    takes = found.policy.takes
    return Split(
        float(played.cost.sum() / beside.cost.sum()),
        float(1 - played.abstained.mean()),
        float(1 - beside.abstained.mean()),
        float(((played.right == 0) & (played.abstained == 0)).mean()),
        () if takes is None else takes.steps,
    )


@lru_cache(1)
def whole(ladder: tuple[str, tuple[int, ...] | None], folder: Path) -> EpisodeTable:
    """Return a ladder's questions."""
    pair, steps = ladder
    (log,) = open_log(str(folder / FILE), {"dataset": f"zell_mmlu/{pair}"}).tables
    return log if steps is None else log.only(steps)


def report(folder: Path, count: int, jobs: int) -> Iterator[str]:
    """Yield the table, a row for each ladder and alpha."""
    rows: list[Sequence[str]] = []
    with ProcessPoolExecutor(jobs) as pool:
        for ladder in LADDERS:
            for alpha in ALPHAS:
                found = list(pool.map(partial(one, ladder=ladder, alpha=alpha, folder=folder), range(count)))
                rows.append(_row(named(ladder), alpha, found))
    yield f"Error with abstention, delta {DELTA:g}, {count} splits. {head()}"
    names = ("ladder", "alpha", "cost ÷ guide", "worst split", "dearer splits", "answered", "guide alone answers")
    yield from table((*names, "wrong", "a cheap model is asked"), rows)


def _row(name: str, alpha: float, found: Sequence[Split | None]) -> Sequence[str]:
    done = [each for each in found if each is not None]
    cost, answered, alone, wrong = (np.array([each[at] for each in done]) for at in range(4))
    dearer = f"{np.count_nonzero(cost > 1 + 1e-9)} of {len(done)}"
    cheap = f"{sum(len(each.asked) > 1 for each in done)} of {len(done)}"
    means = (f"{answered.mean():.3f}", f"{alone.mean():.3f}", f"{wrong.mean():.3f}")
    return (name, f"{alpha:g}", f"{cost.mean():.3f}", f"{cost.max():.3f}", dearer, *means, cheap)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} splits")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    for line in report(given.folder, QUICK if given.quick else SPLITS, given.jobs):
        print(line)


if __name__ == "__main__":
    main()
