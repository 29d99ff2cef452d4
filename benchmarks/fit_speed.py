"""How long `fit` takes on one core, how that grows with the log, and how much memory it needs.

    python benchmarks/fit_speed.py            10³, 10⁴ and 10⁵ episodes of 4 steps, the whole portfolio and OSC alone
    python benchmarks/fit_speed.py --quick    10³ and 10⁴
    python benchmarks/fit_speed.py --json

Each size is fitted in a process of its own that is held to one core and one thread: from a table in memory to a policy
with its certificate, so with training, choice and calibration. Simulated questions; the table is made before the clock
starts. Peak memory is that of the whole process, the interpreter and the table with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

from fitted.report import head, table

WORLD, ALPHA = "hotpotqa/llama-2-7b", 0.1
SIZES = (1_000, 10_000, 100_000)
TIMES = {1_000: 3}
"""How often a size is fitted; the quickest counts."""
PORTFOLIO, OSC = "auto", "net_benefit"
TODAY = date(2026, 11, 21)
BARS_S = {(PORTFOLIO, 1_000): 5.0, (OSC, 1_000): 1.0, (PORTFOLIO, 100_000): 120.0}
BAR_GIB = 2.0
BAR_EXPONENT = 1.15
"""About linear: n log n is n^1.1 between 10³ and 10⁵."""
SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Run(NamedTuple):
    """One fit.

    Attributes:
        method, episodes: what was fitted to how many.
        clock_s, processor_s: of the fit alone.
        before_gib, peak_gib: the process's peak memory before and after it.
        chosen: the method that was taken.
    """

    method: str
    episodes: int
    clock_s: float
    processor_s: float
    before_gib: float
    peak_gib: float
    chosen: str


def fit_once(method: str, episodes: int) -> Run:
    """Fit in this process."""
    from published.worlds import WORLDS, simulate

    from cascade.guarantees.base import Guarantee
    from cascade.training.fitting import fit_policy

    log = simulate(WORLDS[WORLD], episodes, seed=0)
    before = peak_gib()
    clock, worked = time.perf_counter(), time.process_time()
    found = fit_policy([log], Guarantee("coverage", ALPHA), method=method, today=TODAY)
    clock_s, processor_s = time.perf_counter() - clock, time.process_time() - worked
    return Run(method, episodes, clock_s, processor_s, before, peak_gib(), found.policy.method)


def peak_gib() -> float:
    """Return the peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def alone(method: str, episodes: int) -> Run:
    """Fit in a process of its own, on one core."""
    environment = {**os.environ, **dict.fromkeys(SINGLE, "1")}
    command = [sys.executable, __file__, "--one", method, str(episodes)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return Run(*json.loads(done.stdout))


def hold_to_one_core() -> None:
    """Stay on the last core that this process may use; where the system has no such thing, threads alone are held."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def exponent(runs: Sequence[Run]) -> float:
    """Return the slope of log processor seconds over log episodes, from the first to the last size.

    >>> slow = Run("auto", 10, 0, 1.0, 0, 0, ""), Run("auto", 1000, 0, 100.0, 0, 0, "")
    >>> round(exponent(slow), 6)
    1.0
    """
    first, last = runs[0], runs[-1]
    if first.episodes == last.episodes:
        return math.nan
    return math.log(last.processor_s / first.processor_s) / math.log(last.episodes / first.episodes)


def measure(sizes: Sequence[int]) -> list[Run]:
    """Fit everything."""
    found = []
    for method in (OSC, PORTFOLIO):
        for size in sizes:
            found.append(min((alone(method, size) for _ in range(TIMES.get(size, 1))), key=lambda run: run.processor_s))
            print(f"{method}, {size:,}: {found[-1].clock_s:.1f} s", file=sys.stderr, flush=True)
    return found


def bars(runs: Sequence[Run]) -> list[tuple[bool, str]]:
    """Return whether each demand is met, and what was found."""
    found = []
    for run in runs:
        bar = BARS_S.get((run.method, run.episodes))
        if bar is not None:
            said = f"{run.method}, {run.episodes:,} episodes: {run.processor_s:.2f} processor s, at most {bar:g}"
            found.append((run.processor_s <= bar, said))
    most = max(run.peak_gib for run in runs)
    found.append((most <= BAR_GIB, f"peak memory {most:.2f} GiB, at most {BAR_GIB:g}"))
    for method in (OSC, PORTFOLIO):
        slope = exponent([run for run in runs if run.method == method])
        found.append((slope <= BAR_EXPONENT, f"{method}: seconds grow as episodes^{slope:.2f}, at most {BAR_EXPONENT}"))
    return found


def _cells(run: Run) -> tuple[str, ...]:
    seconds = f"{run.processor_s:.2f}", f"{run.clock_s:.2f}"
    return run.method, f"{run.episodes:,}", *seconds, f"{run.peak_gib:.2f}", f"{run.before_gib:.2f}", run.chosen


def show(runs: Sequence[Run]) -> None:
    """Print the table and the demands."""
    print(f"{head()}; one core; load average {os.getloadavg()[0]:.1f}\n")
    columns = ("method", "episodes × 4 steps", "processor s", "clock s", "peak GiB", "of it before", "chosen")
    rows = [_cells(run) for run in runs]
    print("\n".join(table(columns, rows)))
    print()
    for met, said in bars(runs):
        print(f"{'ok    ' if met else 'MISSED'} {said}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a demand is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the largest size")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "EPISODES"), help="fit once, in this process")
    given = parser.parse_args(argv)
    if given.one:
        hold_to_one_core()
        print(json.dumps(fit_once(given.one[0], int(given.one[1]))))
        return 0
    runs = measure(SIZES[:2] if given.quick else SIZES)
    demands = bars(runs)
    if given.json:
        rows: list[dict[str, Any]] = [run._asdict() for run in runs]
        print(json.dumps({"head": head(), "runs": rows, "demands": demands}))
    else:
        show(runs)
    return int(not all(met for met, _ in demands))


if __name__ == "__main__":
    sys.exit(main())
