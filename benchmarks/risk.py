"""How near to the mean a bound on it can be promised, what that costs in time, and whether it holds on a real log.

    python benchmarks/risk.py                a minute; --quick for a tenth of the draws
    python benchmarks/risk.py --json

Tightness: the least bound that is certified with delta 0.1, as a multiple of the true mean; medians over draws. Time:
from levels to the threshold, one thread. The real log is the HotpotQA part of the UALA runs, a free-text data set with
two rungs; it is left out where it is not beside the project.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cascade.conformal.arrays import Floats, Levels, ScoreArrays, StepArrays, StepFunctions, levels
from cascade.conformal.binomial import upper_bound
from cascade.conformal.monitor import hoeffding_bentkus_p_value, mean_below_p_value
from cascade.conformal.risk import calibrate_budget, calibrate_risk, cost_levels, loss_levels
from cascade.episodes.quality import qualities
from cascade.evaluation.logs import open_log

DELTA, SIZES, DRAWS, SPLITS = 0.1, (100, 500, 2_000, 100_000), 40, 1_000
_MANY = 10_000  # from so many on, a tenth of the draws shows the same
UALA = Path(__file__).parents[2] / "shared" / "data" / "episodes_uala.parquet"
Draw: TypeAlias = Callable[[np.random.Generator, int], Floats]
PValue: TypeAlias = Callable[[Floats, float], float]


def two_valued(share: float) -> Draw:
    """Return losses of 0 and 1."""
    return lambda rng, n: np.where(rng.random(n) < share, 1.0, 0.0)


def f1_losses(rng: np.random.Generator, n: int) -> Floats:
    """Return losses like 1 − F1: three quarters 0, a tenth 1, the rest between."""
    return np.where(rng.random(n) < 0.75, 0.0, np.where(rng.random(n) < 0.4, 1.0, rng.beta(2, 3, n)))


def costs(step: float) -> Draw:
    """Return costs of up to five steps, a step `step` of the cap on average."""

    def draw(rng: np.random.Generator, n: int) -> Floats:
        return np.minimum(np.minimum(rng.geometric(0.6, n), 5) * step * rng.lognormal(-0.045, 0.3, n), 1.0)

    return draw


SOURCES: dict[str, Draw] = {
    "losses 0 and 1, mean .05": two_valued(0.05),
    "losses 0 and 1, mean .3": two_valued(0.3),
    "1 − F1": f1_losses,
    "costs, a step a fifth of the cap": costs(0.2),
    "costs, a step a twenty-fifth": costs(0.04),
    "costs, .02 or .6 of the cap": lambda rng, n: np.where(rng.random(n) < 0.7, 0.02, 0.6),
}


def betting_with(stakes: int, ratio: float) -> PValue:
    """Return the betting p-value with another grid of stakes: 1, 1/ratio, 1/ratio² and so on."""

    def p_value(values: Floats, bound: float) -> float:
        shares = ratio ** -np.arange(stakes)[:, None]
        with np.errstate(divide="ignore"):
            logs = np.log1p(np.maximum(shares * (bound - values) / (1 - bound), -1)).sum(axis=1)
        return float(min(1.0, np.exp(-np.logaddexp.reduce(logs)) * stakes))

    return p_value


def hoeffding_bentkus(values: Floats, bound: float) -> float:
    """Return the Hoeffding-Bentkus p-value."""
    return hoeffding_bentkus_p_value(float(values.mean()), values.size, bound)


def betting(values: Floats, bound: float) -> float:
    """Return the betting p-value."""
    return mean_below_p_value(values, bound, 1.0)


def either(values: Floats, bound: float) -> float:
    """Return the smaller of the two, corrected for having two."""
    return min(1.0, 2 * min(betting(values, bound), hoeffding_bentkus(values, bound)))


P_VALUES: dict[str, PValue] = {
    "betting": betting,
    "5 stakes": betting_with(5, 2.0),
    "13 stakes": betting_with(13, 2**0.5),
    "Hoeffding-Bentkus": hoeffding_bentkus,
    "either, at δ/2": either,
}


def certified(p_value: PValue, values: Floats) -> float:
    """Return the least bound that is certified, to 10⁻⁵."""
    low, high = float(values.mean()), 1 - 1e-9
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(values, middle) <= DELTA else (middle, high)
    return high


def tightness(draws: int) -> list[dict[str, Any]]:
    """Return, for each source and size, the certified bounds as multiples of the mean."""
    rng, rows = np.random.default_rng(0), []
    for name, draw in SOURCES.items():
        mean = float(draw(rng, 10**6).mean())
        for n in SIZES:
            samples = [draw(rng, n) for _ in range(draws if n < _MANY else max(1, draws // 10))]
            bounds = {
                label: float(np.median([certified(p_value, x) for x in samples])) for label, p_value in P_VALUES.items()
            }
            if set(np.unique(samples)) <= {0.0, 1.0}:
                bounds["exact"] = float(np.median([upper_bound(int(x.sum()), n, DELTA) for x in samples]))
            rows.append({"source": name, "mean": mean, "n": n} | {label: b / mean for label, b in bounds.items()})
    return rows


def made(n: int) -> tuple[StepArrays, Levels, Floats]:
    """Return a random log of four steps with two answers each, its levels, and qualities."""
    rng = np.random.default_rng(0)
    shape = (n, 4, 2)
    answer = rng.integers(0, 4, shape)
    cost = rng.integers(10_000, 1_000_000, shape[:2])
    steps = StepArrays(answer, answer == 0, cost, np.full(n, 4), np.ones(n, dtype=np.bool_))
    return steps, levels(steps, ScoreArrays(rng.random(shape), rng.random(shape[:2]))), rng.random(shape)


def timings(n: int) -> dict[str, float]:
    """Return processor seconds from levels to the threshold, for each promise; the best of three."""
    steps, found, quality = made(n)
    calls: dict[str, Callable[[], object]] = {
        "graded loss": lambda: calibrate_risk(loss_levels(steps, found, quality), 0.4),
        "graded loss, 1 − δ": lambda: calibrate_risk(loss_levels(steps, found, quality), 0.4, delta=DELTA),
        "budget": lambda: calibrate_budget(cost_levels(steps, found), 1_200_000, 4_000_000),
        "budget, 1 − δ": lambda: calibrate_budget(cost_levels(steps, found), 1_200_000, 4_000_000, delta=DELTA),
    }
    seconds = {}
    for name, call in calls.items():
        runs = []
        for _ in range(3):
            started = time.process_time()
            call()
            runs.append(time.process_time() - started)
        seconds[name] = min(runs)
    return seconds


def uala() -> tuple[StepFunctions, StepFunctions]:
    """Return the losses (1 − F1) and costs of the real log, under a threshold on the first answer's entropy."""
    log = open_log(str(UALA))
    graded = zip(log.tables, qualities(log.rows(), log.tables, "hotpotqa"), strict=True)
    table, quality = next(pair for pair in graded if pair[0].dataset.startswith("uala_hotpotqa"))
    arrays = table.arrays
    scores = ScoreArrays(np.full(arrays.answer.shape, np.inf), table.signals["answer_softmax_entropy"])
    found = levels(arrays, scores)
    return loss_levels(arrays, found, quality), cost_levels(arrays, found, cost_known=table.cost_known)


def real(splits: int) -> list[dict[str, Any]]:
    """Return what one half of the log promises and what the other half brings, over random splits."""
    losses, spent = uala()
    rng, half = np.random.default_rng(0), losses.n // 2
    most = int(spent.at(-np.inf).max())
    halves = [np.split(rng.permutation(losses.n), [half]) for _ in range(splits)]
    lowest, dearest = losses.at(-np.inf).mean() / losses.units, spent.at(-np.inf).mean()
    rows = []
    for share in (1.05, 1.2, 1.4):
        alpha = round(float(lowest) * share, 3)
        for delta in (None, DELTA):
            got = [calibrate_risk(losses.take(one), alpha, delta=delta) for one, _ in halves]
            held = [
                float(losses.take(rest).at(one.kappa).mean() / losses.units)
                for one, (_, rest) in zip(got, halves, strict=True)
            ]
            rows.append(_row("1 − F1", alpha, delta, [one.certified for one in got], held))
    for share in (0.35, 0.5, 0.8):
        budget = int(dearest * share)
        for delta in (None, DELTA):
            paid = [calibrate_budget(spent.take(one), budget, most, delta=delta) for one, _ in halves]
            held = [float(spent.take(rest).at(one.kappa).mean()) for one, (_, rest) in zip(paid, halves, strict=True)]
            rows.append(_row("cost, nano-USD", budget, delta, [one.certified for one in paid], held))
    return rows


def _row(promise: str, bound: float, delta: float | None, given: list[bool], held: list[float]) -> dict[str, Any]:
    served = np.where(given, held, 0.0)
    return {
        "promise": promise,
        "bound": bound,
        "delta": delta,
        "certified": float(np.mean(given)),
        "mean": float(served.mean()),
        "mean_if_certified": float(served.sum() / max(1, sum(given))),
        "above": float(np.mean(served > bound)),
    }


def show(found: dict[str, Any]) -> None:
    """Print it as text."""
    print(f"{found['date']}, {found['machine']}, load average {found['load_average']:.1f}")
    print(f"least bound certified with delta {DELTA}, as a multiple of the mean, medians of {found['draws']}")
    print(f"{'':34}{'n':>6}" + "".join(f"{label:>19}" for label in [*P_VALUES, "exact"]))
    for row in found["tightness"]:
        told = "".join(f"{row[label]:19.3f}" if label in row else f"{'':19}" for label in [*P_VALUES, "exact"])
        print(f"{row['source']:34}{row['n']:6}{told}")
    print("processor seconds from levels to the threshold")
    for n, seconds in found["timings"].items():
        print(f"  {int(n):>9,} questions  " + "  ".join(f"{name} {value:.3f}" for name, value in seconds.items()))
    for row in found["real"]:
        sure = "on average" if row["delta"] is None else f"1 − δ = {1 - row['delta']:g}"
        print(
            f"  {row['promise']:15} ≤ {row['bound']:<12g} {sure:13} certified {row['certified']:6.1%}"
            f"  mean {row['mean']:.6g} ({row['mean_if_certified']:.6g} where certified)  above {row['above']:.1%}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the draws and splits")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    part = 10 if asked.quick else 1
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0],
        "draws": DRAWS // part,
        "tightness": tightness(DRAWS // part),
        "timings": {str(n): timings(n) for n in (10_000, 100_000, 1_000_000 // part)},
        "real": real(SPLITS // part) if UALA.exists() else [],
    }
    print(json.dumps(found)) if asked.json else show(found)


if __name__ == "__main__":
    main()
