"""How long a calibration takes, how that grows, and what a number of questions is worth.

    python benchmarks/calibration.py         half a minute, 1 GB; --questions 100000 for less
    python benchmarks/calibration.py --json

Random scores without ties, 4 steps × 2 answers. Timed in one thread: from a policy's scores to the threshold, from
critical values to the threshold, a thousand groups, and the exact binomial decisions. The tables are arithmetic.
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
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from frontier import CANDIDATES, STEPS, exponent, made, timed

from cascade.conformal import binomial, needed_n
from cascade.conformal.arrays import ScoreArrays, StepArrays, levels
from cascade.conformal.split import Calibration, calibrate, calibrate_segments, critical_kappa, critical_values

ALPHA, DELTA, GROUPS = 0.1, 0.1, 1_000
GOAL_S, GOAL_VALUES_S = 1.0, 0.1
SIZES = (20, 50, 200, 1_000)


def by_levels(steps: StepArrays, scores: ScoreArrays) -> Calibration:
    """Calibrate by way of the levels, which a report needs anyhow."""
    return calibrate(critical_kappa(steps, levels(steps, scores)), ALPHA)


def directly(steps: StepArrays, scores: ScoreArrays) -> Calibration:
    """Calibrate by critical values alone."""
    return calibrate(critical_values(steps, scores), ALPHA)


def growth(largest: int) -> list[dict[str, float]]:
    """Time sizes up to the largest, a factor of 10 apart."""
    found = []
    for questions in (10_000, 100_000, 1_000_000):
        if questions <= largest:
            steps, scores = made(questions)
            runs = max(5, 1_000_000 // questions)
            both, direct = (timed(partial(way, steps, scores), questions, runs) for way in (by_levels, directly))
            if by_levels(steps, scores) != directly(steps, scores):
                raise SystemExit("two ways to the same critical values disagree: a bug")
            found.append({"questions": questions, "by_levels_s": both.processor_s, "directly_s": direct.processor_s})
    return found


def from_values(questions: int) -> dict[str, float]:
    """Time what is given critical values, as an array and as a list, alone and in groups."""
    rng = np.random.default_rng(2)
    values, groups = rng.random(questions), [f"tenant {i}" for i in rng.integers(0, GROUPS, questions).tolist()]
    listed = values.tolist()
    calls: dict[str, Callable[[], object]] = {
        "array": partial(calibrate, values, ALPHA),
        "array, with confidence": partial(calibrate, values, ALPHA, delta=DELTA),
        "list": partial(calibrate, listed, ALPHA),
        f"{GROUPS:,} groups": partial(calibrate_segments, values, groups, ALPHA),
        f"{GROUPS:,} groups, with confidence": partial(calibrate_segments, values, groups, ALPHA, delta=DELTA),
    }
    return {name: timed(call, questions, 5).processor_s for name, call in calls.items()}


def decisions() -> list[dict[str, float]]:
    """Time the exact binomial decisions, nothing remembered from a call before."""
    found = []
    for n in (200, 10_000, 1_000_000, 100_000_000):
        binomial._law.cache_clear()  # noqa: SLF001 - the first call is the one to be timed
        binomial._most.cache_clear()  # noqa: SLF001
        started = time.process_time()
        most = binomial.most_losses(n, ALPHA, DELTA) or 0
        ranked = time.process_time()
        binomial.rejects(most + 1, n, ALPHA, DELTA)
        decided = time.process_time()
        binomial.upper_bound(most, n, DELTA)
        bounded = time.process_time()
        found.append({"n": n, "rank_s": ranked - started, "again_s": decided - ranked, "bound_s": bounded - decided})
    return found


def worth() -> list[dict[str, float | None]]:
    """Return what n questions give at each alpha: ranks, mean coverage and its spread, and the naive rule's."""
    found: list[dict[str, float | None]] = []
    for alpha in (0.05, 0.1, 0.2):
        for n in SIZES:
            plain, sure = (calibrate(np.arange(float(n)), alpha, delta=delta) for delta in (None, DELTA))
            naive = 1 - (math.floor(Fraction(repr(alpha)) * n) + 1) / (n + 1)
            found.append(
                {
                    "alpha": alpha,
                    "n": n,
                    "k": plain.k,
                    "coverage": plain.expected_coverage,
                    "sd": plain.coverage_sd,
                    "k_sure": sure.k,
                    "coverage_sure": sure.expected_coverage,
                    "coverage_naive": naive,
                }
            )
    return found


def measure(questions: int) -> dict[str, Any]:
    """Return everything that is printed."""
    sizes = growth(questions)
    many = [size["questions"] for size in sizes]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "numpy": np.__version__,
        "load_average": os.getloadavg()[0],
        "growth": sizes,
        "exponent_by_levels": exponent([int(n) for n in many], [size["by_levels_s"] for size in sizes]),
        "exponent_directly": exponent([int(n) for n in many], [size["directly_s"] for size in sizes]),
        "from_values": from_values(questions),
        "decisions": decisions(),
        "worth": worth(),
        "needed": {
            str(alpha): [needed_n(alpha), *(needed_n(alpha, delta) for delta in (0.1, 0.05, 0.01))]
            for alpha in (0.01, 0.02, 0.05, 0.1, 0.2)
        },
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2,
    }


def show(found: dict[str, Any]) -> None:
    """Print it as text, the goals beside the figures."""

    def goal(met: bool) -> str:
        return "ok" if met else "MISSED"

    print(f"{found['date']}, {found['machine']}, numpy {found['numpy']}, load average {found['load_average']:.1f}")
    print(f"scores of {STEPS} steps × {CANDIDATES} answers to a threshold, processor seconds, best of several")
    for size in found["growth"]:
        by, direct = size["by_levels_s"], size["directly_s"]
        print(f"  {size['questions']:10,} questions {by:8.4f} s by the levels {direct:8.4f} s by critical values alone")
    worst = found["growth"][-1]["by_levels_s"]
    print(f"  goal {GOAL_S} s of one core: {goal(worst <= GOAL_S)}")
    print(f"  exponents {found['exponent_by_levels']:.3f} and {found['exponent_directly']:.3f}")
    print(f"critical values of {found['growth'][-1]['questions']:,} questions to thresholds")
    for name, seconds in found["from_values"].items():
        print(f"  {seconds * 1e3:8.1f} ms  {name}")
    print(f"  goal {GOAL_VALUES_S} s for an array: {goal(found['from_values']['array'] <= GOAL_VALUES_S)}")
    print(f"exact binomial decisions at alpha {ALPHA:g}, delta {DELTA:g}: the rank, one more decision, a bound")
    for row in found["decisions"]:
        rank_ms, again_us, bound_ms = row["rank_s"] * 1e3, row["again_s"] * 1e6, row["bound_s"] * 1e3
        print(f"  {row['n']:12,} {rank_ms:8.2f} ms {again_us:8.0f} µs {bound_ms:8.1f} ms")
    print(f"what n questions are worth (sure: with delta {DELTA:g}; naive: ⌊alpha·n⌋ misses allowed)")
    print("  alpha     n    k coverage     sd  k sure  coverage sure  coverage naive")
    for row in found["worth"]:
        told = f"{row['k']:4d} {row['coverage']:8.4f} {row['sd']:6.4f} {row['k_sure']:7d} {row['coverage_sure']:14.4f}"
        print(f"  {row['alpha']:5.2f} {row['n']:5d} {told} {row['coverage_naive']:15.4f}")
    print("questions needed: on average, and with delta 0.1, 0.05, 0.01")
    for alpha, needed in found["needed"].items():
        print(f"  {alpha:>5}", *(f"{n:6,}" for n in needed))
    print(f"peak memory {found['peak_memory_gb']:.1f} GB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1_000_000, help="the largest size")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    if asked.questions < 100_000:
        parser.error("--questions must be at least 100000: growth is read from two sizes or more")
    found = measure(asked.questions)
    print(json.dumps(found)) if asked.json else show(found)


if __name__ == "__main__":
    main()
