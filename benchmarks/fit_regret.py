"""What a policy costs that is hardly ever wrong where the guide alone is right, beside asking the guide always.

    python benchmarks/fit_regret.py FOLDER              200 splits
    python benchmarks/fit_regret.py FOLDER --quick      10

A split draws seven of ten groups for `fit --guarantee regret`, which trains, orders a path of thresholds, and certifies
on questions of its own among them; the rest is for the test. Regret: the answer served is wrong where the guide alone
is right. Where nothing can be certified the guide is asked always: at its cost, without regret. A promise is broken
where the realised regret of a split's test questions is above alpha; by the certificate that may happen in a share of
delta of the splits, and the test's own chance adds to it. A method is called in breach where more splits break it than
delta and three standard errors allow.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fitted.figures import ratio, told
from fitted.report import head, table

from cascade.calibration.scores import reference_cost, sample_of
from cascade.conformal.arrays import Ints
from cascade.conformal.served import PathPoint
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.evaluation.evaluate import numbered
from cascade.evaluation.logs import open_log
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import reference_right
from cascade.guarantees.served_answer import Error, Regret
from cascade.training.fitting import Fitted, fit_policy

LOGS = (("zell_mmlu", "zell_mmlu/gpt-4o-mini>gpt-4o"), ("firstpass_mbpp", "firstpass_mbpp/haiku-4.5>opus-4.8"))
METHODS = ("auto", "threshold")
ALPHAS, DELTA = (0.02, 0.05), 0.1
SPLITS, QUICK = 200, 10
FIT_SHARE = 0.7


class Outcome(NamedTuple):
    """One split.

    Attributes:
        certified: whether a certificate could be made.
        chosen: the method that was taken; "" where nothing was certified.
        regret: share of the test questions; 0 where the guide is asked always.
        cost, guide: mean cost of a test question, of the policy and of the guide alone, USD.
        error, guide_error: share of the test questions that the policy, and the guide alone, answer wrongly.
    """

    certified: bool
    chosen: str
    regret: float
    cost: float
    guide: float
    error: float
    guide_error: float


class Row(NamedTuple):
    """All splits of one log, method and alpha."""

    log: str
    method: str
    alpha: float
    n_fit: int
    n_test: int
    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def broken(self) -> float:
        """The share of splits that break the promise."""
        return float(np.mean([one.regret > self.alpha + 1e-12 for one in self.outcomes]))

    @property
    def breach(self) -> bool:
        """Whether more splits break it than chance allows."""
        return self.broken > DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / len(self.outcomes))


def halves(groups: Sequence[str], seed: int) -> tuple[Ints, Ints]:
    """Return the rows to fit to and those to test on: whole groups."""
    member = numbered(groups)
    many = int(member.max()) + 1
    to_fit = np.random.default_rng([23, seed]).permutation(many) < round(FIT_SHARE * many)
    return np.flatnonzero(to_fit[member]), np.flatnonzero(~to_fit[member])


def split(log: EpisodeTable, method: str, alpha: float, seed: int) -> Outcome:
    """Fit, certify and test once."""
    to_fit, to_test = halves(log.groups, seed)
    test = log.take(to_test)
    guide = reference_cost(test)
    assert guide is not None  # noqa: S101 - these logs know it
    wrong = float(1 - reference_right(test).mean())
    try:
        found = fit_policy([log.take(to_fit)], Guarantee("regret", alpha, DELTA), method=method, seed=seed)
    except NotCertifiedError:
        return Outcome(False, "", 0.0, guide / 1e9, guide / 1e9, wrong, wrong)
    return _tested(found, test, guide, wrong)


def _tested(found: Fitted, test: EpisodeTable, guide: float, wrong: float) -> Outcome:
    """Serve the test questions at the certified point."""
    (held,) = found.artifact.certificates
    point = PathPoint(held.kappa, -math.inf if held.abstain_below is None else held.abstain_below)
    sample = sample_of(test, found.policy)
    regret, error = (kind.served(sample).at(point) for kind in (Regret(), Error()))
    cost, chosen = float(regret.cost.mean()), found.policy.method
    return Outcome(True, chosen, float(regret.loss.mean()), cost / 1e9, guide / 1e9, float(error.loss.mean()), wrong)


def row(job: tuple[str, str, float], folder: Path, count: int) -> Row:
    """Do all splits of one log, method and alpha."""
    name, method, alpha = job
    file = next(file for file, dataset in LOGS if dataset == name)
    tables = open_log(str(folder / f"episodes_{file}.parquet")).tables
    log = next(one for one in tables if one.dataset == name)
    started = time.perf_counter()
    outcomes = tuple(split(log, method, alpha, seed) for seed in range(count))
    seconds = (time.perf_counter() - started) / count
    print(f"{name}, {method}, alpha {alpha:g}: {seconds:.2f} s a split", file=sys.stderr, flush=True)
    n_fit = halves(log.groups, 0)[0].size
    return Row(name, method, alpha, n_fit, log.n - n_fit, outcomes, seconds)


def measure(folder: Path, methods: Sequence[str], count: int, jobs: int) -> list[Row]:
    """Do everything."""
    wanted = [(name, method, alpha) for _, name in LOGS for alpha in ALPHAS for method in methods]
    one = partial(row, folder=folder, count=count)
    if jobs == 1:
        return [one(job) for job in wanted]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(one, wanted))


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    columns: tuple[str, ...] = (
        "log",
        "fit, test",
        "α",
        "method",
        "cost ÷ always guide",
        "÷ it where certified",
        "certified",
    )
    columns += ("regret, mean", "splits above α", "error: guide's", "policy's", "chosen", "s a split")
    yield from table(columns, [_cells(one) for one in rows])


def _cells(one: Row) -> list[str]:
    cost, guide = (np.array([getattr(found, name) for found in one.outcomes]) for name in ("cost", "guide"))
    certified = np.array([found.certified for found in one.outcomes])
    all_ = ratio(cost, guide, n_train=one.n_fit, n_test=one.n_test)
    some = f"{cost[certified].sum() / guide[certified].sum():.3f}" if certified.any() else "–"
    chosen = Counter(found.chosen for found in one.outcomes if found.certified)
    return [
        one.log,
        f"{one.n_fit:,}, {one.n_test:,}",
        f"{one.alpha:g}",
        one.method,
        told(all_),
        some,
        f"{certified.mean():.0%}",
        f"{100 * np.mean([found.regret for found in one.outcomes]):.2f} %",
        f"{one.broken:.1%}{' BREACH' if one.breach else ''}",
        f"{np.mean([found.guide_error for found in one.outcomes]):.1%}",
        f"{np.mean([found.error for found in one.outcomes]):.1%}",
        ", ".join(f"{name} {times}" for name, times in chosen.most_common(3)),
        f"{one.seconds:.2f}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a promise is broken beyond chance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the logs are")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} splits")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args(argv)
    started = time.monotonic()
    if not all((given.folder / f"episodes_{file}.parquet").exists() for file, _ in LOGS):
        print(f"The logs are not in {given.folder}.", file=sys.stderr)
        return 2
    count = QUICK if given.quick else given.splits
    rows = measure(given.folder, given.methods.split(","), count, given.jobs)
    print(f"{head()}; {count} splits, delta {DELTA:g}; {(time.monotonic() - started) / 60:.1f} minutes\n")
    print("\n".join(lines(rows)))
    broken = [one for one in rows if one.breach]
    print(f"\n{'BROKEN' if broken else 'ok    '} at most {DELTA:g} of the splits above alpha, within chance")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
