"""What fitted policies cost on real logs, at the same coverage as those who look at one number or at none.

    python benchmarks/fit_logs.py FOLDER                       every suitable log, 20 splits
    python benchmarks/fit_logs.py FOLDER --jobs 2 --out R      each log to the file R as soon as it is judged
    python benchmarks/fit_logs.py --table R S                          the tables of the files R and S
    python benchmarks/fit_logs.py --only demo --quick                  the demo logs alone, 3 splits
    python benchmarks/fit_logs.py FOLDER --only zell_mmlu --way "net benefit" --way portfolio --splits 5

With `--out` a run that was stopped goes on where it stood: a log that the file has is not judged again.

A split draws whole groups: at most 1,000 questions to train on, 200 to calibrate on, the rest to test on; three, one
and one of five where there are fewer. A policy is fitted on the first, its threshold set on the second by split
conformal. Costs are means over the test questions at a coverage of exactly 1 − alpha (`Frontier.matched`):

* **mixture**: the best coin between two fixed depths, the coin chosen on the test questions;
* **tuned threshold**: a threshold on the log's measure of doubt, calibrated (`evaluation.methods.Threshold`);
* **best single**: of all thresholds on one signal, in both directions, the one that is the cheapest on the mean of the
  splits: chosen with hindsight. Where a log has no signals, on one number of the question's text, or on the tokens or
  the price of the first step: forty ways, of which hindsight finds one that was lucky; no demand is made there;
* **luckiest single**: the cheapest of them on each split: harder than anything that could be served;
* **clairvoyant**: knows every answer beforehand.

A ratio is that of the means over the splits, with Nadeau and Bengio's interval. Cells of one source share their
questions, so a geometric mean gives each source one vote, and its interval is over the sources. "floor": one step
covers 1 − alpha, nothing is to be saved; such cells are left out of the geometric means. A ladder's name has its models
in the order of its steps: `zell_mmlu/llama-1b,3b,8b,70b>gpt-4o` is also read without its last step (the four small
models alone) and without its first, as four steps that end with the guide. z: how many standard errors
the mean coverage of the calibrated policy lies above 1 − alpha; given the log, split conformal promises that it is not
below.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import numpy as np
from fitted.cells import Cell, LeftOut, cells, is_ladder
from fitted.figures import told
from fitted.methods import METHODS, PORTFOLIO, methods
from fitted.opponents import TUNED
from fitted.records import append, done, read, splits
from fitted.report import BEST, Against, by_cell, head, summary
from fitted.trial import Trial, run

ALPHAS = (0.1, 0.05)
SPLITS, QUICK = 20, 3
LADDER_BARS = {0.1: 0.66, 0.05: 0.72}
SINGLE_BAR, Z_BAR = 1.02, -3.5


def measure(some: Sequence[Cell], ways: Sequence[str], count: int, jobs: int) -> Iterator[Trial]:
    """Judge every cell, and yield each as soon as it is judged."""
    judged = partial(judge, ways=tuple(ways), count=count)
    if jobs == 1:
        yield from map(judged, some)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for one in as_completed([pool.submit(judged, cell) for cell in some]):
            yield one.result()


def judge(cell: Cell, ways: tuple[str, ...], count: int) -> Trial:
    """Judge one cell."""
    started = time.perf_counter()
    found = run(cell, methods(ways), ALPHAS, count)
    print(f"{cell.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return found


def bars(trials: Sequence[Trial], way: str) -> Iterator[tuple[bool, str]]:
    """Yield whether each demand is met, and what was found."""
    for alpha in ALPHAS:
        for trial in (one for one in trials if is_ladder(one.cell)):
            found = Against(trial, way, alpha).to(TUNED).mean
            bar = LADDER_BARS[alpha]
            yield found <= bar, f"{trial.cell}, alpha {alpha:g}: {found:.3f} × the tuned threshold, at most {bar:g}"
        open_ = [Against(trial, way, alpha) for trial in trials if trial.signals and alpha not in trial.floor]
        known = [(one.to(BEST), one.trial.cell) for one in open_ if one.known]
        over = [f"{name} {told(found)}" for found, name in sorted(known, reverse=True) if found.mean > SINGLE_BAR]
        surely = sum(found.low is not None and found.low > 1 for found, _ in known)
        said = f"{len(over)} of {len(known)} cells above {SINGLE_BAR:g}, {surely} surely above 1. {'; '.join(over)}"
        yield not over, f"alpha {alpha:g}, cost ÷ best single threshold: {said}"
        real = [(trial.cell, covered.z) for trial in trials if (covered := trial.coverage(way, alpha)) is not None]
        below = [f"{cell} z = {z:.1f}" for cell, z in real if z < Z_BAR]
        yield not below, f"alpha {alpha:g}, coverage below 1 − alpha beyond chance: {'; '.join(below) or 'nowhere'}"


def show(trials: Sequence[Trial], left: Sequence[LeftOut], ways: Sequence[str]) -> None:
    """Print the tables."""
    counts = sorted({splits(trial) for trial in trials})
    print(f"{head()}; {' or '.join(map(str, counts))} splits")
    for alpha in ALPHAS:
        print(f"\n### alpha = {alpha:g}: geometric means\n")
        print("\n".join(summary(trials, ways, alpha)))
        for way in ways[:1]:
            print(f"\n### alpha = {alpha:g}: {way}, log by log\n")
            print("\n".join(by_cell(trials, way, alpha)))
    print("\nSeconds to fit for both alphas, mean over cells and splits:")
    for way in ways:
        spent = [second for trial in trials for second in trial.seconds.get(way, ())]
        print(f"  {way}: {np.mean(spent):.2f}, most {np.max(spent):.2f}" if spent else f"  {way}: –")
    if left:
        print("\nLeft out:")
    for why in sorted({one.why for one in left}):
        names = [one.name for one in left if one.why == why]
        print(f"  {why}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
    for way in ways[:1]:
        print(f"\nDemands on {way}:")
        for met, said in bars(trials, way):
            print(f"  {'ok    ' if met else 'MISSED'} {said}")


def judged(given: argparse.Namespace, some: Sequence[Cell], ways: Sequence[str]) -> list[Trial]:
    """Judge the cells that the file has not yet, write each down, and return all."""
    count = QUICK if given.quick else given.splits
    held = read([given.out]) if given.out and given.out.exists() else []
    missing = [cell for cell in some if not done(held, cell.name, ways, count)]
    new: list[Trial] = []
    for trial in measure(missing, ways, count, given.jobs):
        new.append(trial)
        if given.out:
            append(given.out, trial)
    found = read([given.out]) if given.out and given.out.exists() else new
    place = {cell.name: number for number, cell in enumerate(some)}
    return sorted((one for one in found if one.cell in place), key=lambda one: place[one.cell])


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the logs are; without it, the demo logs alone")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} splits")
    parser.add_argument("--only", action="append", default=[], help="part of a log's name; may be given again")
    parser.add_argument(
        "--way",
        action="append",
        default=[],
        choices=METHODS,
        help="may be given again; the first is judged by the demands",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--out", type=Path, help="write each log here once it is judged; what is here is not judged again"
    )
    parser.add_argument("--table", type=Path, nargs="+", help="judge nothing: print the tables of these files")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a demand is missed, unless it is a quick look: three splits say little."""
    given = parsed(argv)
    left: list[LeftOut] = []
    if given.table:
        trials = [
            trial for trial in read(given.table) if not given.only or any(name in trial.cell for name in given.only)
        ]
        ways = given.way or list(dict.fromkeys(way for trial in trials for way in trial.seconds))
    else:
        some, left = cells(given.folder, tuple(given.only))
        ways = given.way or [PORTFOLIO]
        trials = judged(given, some, ways)
    if not trials:
        print("No such log is there.", file=sys.stderr)
        return 2
    show(trials, left, ways)
    return int(not given.quick and not all(met for met, _ in bars(trials, ways[0])))


if __name__ == "__main__":
    sys.exit(main())
