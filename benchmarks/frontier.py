"""How long the exact frontier of a policy takes, how that grows, and what a grid of thresholds would take instead.

    python benchmarks/frontier.py            about a minute, 2 GB at the largest size; --rows 1000000 for less
    python benchmarks/frontier.py --json

Random scores without ties are the worst case: every level is a point of its own. Timed are the levels, the critical
values and the frontier, from scores to curves, in one thread. Processor seconds are shown beside the clock's, because
other work on the machine stretches the latter.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from cascade.conformal.arrays import Levels, ScoreArrays, StepArrays, levels
from cascade.conformal.frontier import Frontier, frontier
from cascade.conformal.split import critical_kappa

STEPS, CANDIDATES, EPISODES = 4, 2, 100_000
GRID_STEP, GRID_POINTS_TIMED = 1e-6, 40
GOAL_S, GOAL_RATIO = 0.5, 1_000.0


@dataclass(frozen=True, slots=True)
class Timing:
    """One size: the best of several runs, and the mean user time of all.

    Processor time is user and system time. The latter is the kernel handing out fresh memory, page by page: on a
    virtual machine that waits for its host, and says nothing about the algorithm.
    """

    rows: int
    clock_s: float
    processor_s: float
    user_s: float


def made(episodes: int, seed: int = 0) -> tuple[StepArrays, ScoreArrays]:
    """Return a random log, four answers a question and one right for two of three, and scores no two alike."""
    rng = np.random.default_rng(seed)
    shape = (episodes, STEPS, CANDIDATES)
    answer = rng.integers(0, 4, shape)
    steps = StepArrays(
        answer=answer,
        correct=answer == rng.integers(0, 6, episodes)[:, None, None],
        cost=rng.integers(10_000, 1_000_000, shape[:2]),
        steps=np.full(episodes, STEPS),
        complete=np.ones(episodes, dtype=np.bool_),
    )
    return steps, ScoreArrays(rng.random(shape), rng.random(shape[:2]))


def timed(call: Callable[[], object], rows: int, runs: int) -> Timing:
    """Run several times, after once to warm up."""
    call()
    clock, processor, user_s = [], [], resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for _ in range(runs):
        started, worked = time.perf_counter(), time.process_time()
        call()
        clock.append(time.perf_counter() - started)
        processor.append(time.process_time() - worked)
    # The system splits user from system time by clock ticks of 1 to 10 ms: only the sum over many is exact.
    user_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - user_s
    return Timing(rows, min(clock), min(processor), user_s / runs)


def exact(steps: StepArrays, scores: ScoreArrays) -> Frontier:
    """Do what is measured."""
    found = levels(steps, scores)
    critical_kappa(steps, found)
    return frontier(steps, found)


def growth(largest: int) -> list[Timing]:
    """Time sizes up to the largest, a factor of 5 apart."""
    found = []
    for rows in (80_000, 400_000, 2_000_000, 10_000_000):
        if rows <= largest:
            steps, scores = made(rows // STEPS)
            found.append(timed(partial(exact, steps, scores), rows, max(2, 4_000_000 // rows)))
    return found


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Return the slope of log seconds over log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def grid_point_s(steps: StepArrays, found: Levels, curve: Frontier) -> float:
    """Return the seconds for one point of a grid, the leanest way there is, and check its results."""
    critical = critical_kappa(steps, found)
    firsts = found.leaf[found.first]
    drawn = np.random.default_rng(1).integers(0, round(1 / GRID_STEP), GRID_POINTS_TIMED)
    kappas = np.asarray(drawn * GRID_STEP, dtype=np.float64)
    started, results = time.process_time(), []
    for kappa in kappas.tolist():
        paid = found.reach >= kappa
        results.append(
            (
                int(np.count_nonzero(critical >= kappa)),
                int(steps.cost[paid].sum()),
                int(np.count_nonzero(paid)),
                int(np.count_nonzero(found.leaf >= kappa)),
                int(np.count_nonzero(firsts >= kappa)),
            )
        )
    seconds = (time.process_time() - started) / GRID_POINTS_TIMED
    at = curve.index(kappas)
    curves = (curve.covered, curve.cost_nano_usd, curve.steps, curve.kept, curve.different)
    if results != list(zip(*(sums[at].tolist() for sums in curves), strict=True)):
        raise SystemExit("the grid and the frontier disagree: a bug")
    return seconds


def measure(largest: int) -> dict[str, Any]:
    """Return everything that is printed."""
    steps, scores = made(EPISODES)
    one = timed(partial(exact, steps, scores), EPISODES * STEPS, 15)
    found = levels(steps, scores)
    curve = frontier(steps, found)
    point_s = grid_point_s(steps, found, curve)
    del steps, scores, found
    sizes = growth(largest)
    rows = [size.rows for size in sizes]
    users = [size.user_s for size in sizes]
    n_log_n = [n * math.log(n) for n in rows]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "numpy": np.__version__,
        "load_average": os.getloadavg()[0],
        "episodes": EPISODES,
        "clock_s": one.clock_s,
        "processor_s": one.processor_s,
        "points": curve.kappa.size,
        "growth": [asdict(size) for size in sizes],
        "exponent": exponent(rows, [size.processor_s for size in sizes]),
        "exponent_user": exponent(rows, users),
        "exponent_of_n_log_n": exponent(rows, n_log_n),
        "user_over_n_log_n": users[-1] / users[0] / (n_log_n[-1] / n_log_n[0]),
        "grid_points_timed": GRID_POINTS_TIMED,
        "grid_point_s": point_s,
        "grid_s_extrapolated": point_s / GRID_STEP,
        "grid_ratio": point_s / GRID_STEP / one.processor_s,
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2,
    }


def show(found: dict[str, Any]) -> None:
    """Print it as text, the goals beside the figures."""

    def goal(met: bool) -> str:
        return "ok" if met else "MISSED"

    ratio, seconds, point_ms = found["grid_ratio"], found["processor_s"], found["grid_point_s"] * 1e3
    print(f"{found['date']}, {found['machine']}, numpy {found['numpy']}, load average {found['load_average']:.1f}")
    print(f"levels, critical values and frontier of {found['episodes']:,} × {STEPS} steps × {CANDIDATES} answers")
    print(f"  {seconds:.3f} processor seconds, {found['clock_s']:.3f} s on the clock, {found['points']:,} points")
    print(f"  goal {GOAL_S} s of one core: {goal(seconds <= GOAL_S)}")
    print("growth (user time is what the algorithm takes; the rest is the kernel handing out memory)")
    for size in found["growth"]:
        unit_ns = size["user_s"] / (size["rows"] * math.log2(size["rows"])) * 1e9
        told = f"{size['processor_s']:8.3f} processor s {size['user_s']:8.3f} user s"
        print(f"  {size['rows']:12,} rows {told} {unit_ns:6.2f} ns × n log2 n")
    print(f"  exponent {found['exponent_user']:.3f} of user time, {found['exponent']:.3f} of processor time;")
    print(f"  that of n log n is {found['exponent_of_n_log_n']:.3f}")
    print(f"  first to last size: user time grew {found['user_over_n_log_n']:.2f} × as much as n log n")
    print(f"  peak memory {found['peak_memory_gb']:.1f} GB")
    print(f"a grid of thresholds {GRID_STEP:g} apart over 0..1, the same levels given, results equal to the frontier's")
    print(f"  {point_ms:.2f} ms a point, the mean of {found['grid_points_timed']} timed")
    print(f"  all {1 / GRID_STEP:,.0f} points: {found['grid_s_extrapolated']:,.0f} s, extrapolated")
    print(f"  {ratio:,.0f} × the frontier; goal {GOAL_RATIO:,.0f} ×: {goal(ratio >= GOAL_RATIO)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="the largest size, in step rows")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    if asked.rows < 400_000:
        parser.error("--rows must be at least 400000: growth is read from two sizes or more")
    found = measure(asked.rows)
    print(json.dumps(found)) if asked.json else show(found)


if __name__ == "__main__":
    main()
