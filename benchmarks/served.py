"""What certifying a single answer takes: seconds, and what the tests cost beyond knowing the truth.

    python benchmarks/served.py              about two minutes
    python benchmarks/served.py --quick      a tenth of the repetitions
    python benchmarks/served.py --json

The first part times 100,000 questions × 4 steps × 2 answers without ties, 8 states a question, the worst case, and a
path of 200 points; processor seconds, one thread. The second draws rows from a made-up population of 40,000 questions
whose risks and costs at every threshold are known, splits them into selection and calibration rows, and certifies an
error of at most 10 % with delta = 10 %: how often something is certified, how often wrongly, and what it costs beside
the cheapest threshold that truly keeps the bound. "No lead" begins at the fewest selection losses; "Bonferroni" tests
the same path with delta divided by its length; "looks good" takes the cheapest point whose calibration error is at most
10 %, which promises nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from cascade.conformal.arrays import Floats, ScoreArrays, StepArrays, levels
from cascade.conformal.binomial import most_losses
from cascade.conformal.ltt import learn_then_test, order_path
from cascade.conformal.served import PathPoint, Served, ServedPath, served

QUESTIONS, STEPS, CANDIDATES, POINTS = 100_000, 4, 2, 200
GOAL_S = 5.0
ALPHA, DELTA = 0.1, 0.1
POPULATION, REPETITIONS = 40_000, 400
ROWS, SHARES = (200, 1_000, 5_000), (0.1, 0.3, 0.5)
CENT = 10_000_000


def worst(questions: int, seed: int = 0) -> tuple[StepArrays, ScoreArrays, Floats]:
    """Return a random log, four answers a question, and scores and confidences no two alike."""
    rng = np.random.default_rng(seed)
    shape = (questions, STEPS, CANDIDATES)
    answer = rng.integers(0, 4, shape)
    steps = StepArrays(
        answer=answer,
        correct=answer == rng.integers(0, 6, questions)[:, None, None],
        cost=rng.integers(10_000, 1_000_000, shape[:2]),
        steps=np.full(questions, STEPS),
        complete=np.ones(questions, dtype=np.bool_),
    )
    return steps, ScoreArrays(rng.random(shape), rng.random(shape[:2])), rng.random(shape)


def population(seed: int = 7) -> Served:
    """Return the single answers of a ladder of three models that stops where it is sure, all answers kept.

    A question is hard to a degree; a dearer model is right more often. Confidence follows the chance to be right with
    noise, so that a later wrong answer now and then displaces an earlier right one. Everything asked, 7 % are wrong.
    """
    rng = np.random.default_rng(seed)
    hard = rng.random(POPULATION)[:, None] + rng.normal(0, 0.15, (POPULATION, 3))
    chance = 1 / (1 + np.exp(8 * (hard - np.array([0.62, 0.85, 1.05]))))
    right = rng.random((POPULATION, 3)) < chance
    wrong_answer = 1 + rng.integers(0, 2, (POPULATION, 3))
    sure = np.clip(0.85 * chance + 0.15 * right + rng.normal(0, 0.08, chance.shape), 0.01, 0.99)
    cost = np.array([CENT // 10, CENT, 8 * CENT]) * rng.uniform(0.5, 1.5, (POPULATION, 3))
    steps = StepArrays(
        answer=np.where(right, 0, wrong_answer)[:, :, None],
        correct=right[:, :, None],
        cost=cost.astype(np.int64),
        steps=np.full(POPULATION, 3),
        complete=np.ones(POPULATION, dtype=np.bool_),
    )
    scores = ScoreArrays(np.full((POPULATION, 3, 1), np.inf), 1 - sure)
    return served(steps, levels(steps, scores), sure[:, :, None])


def seconds(call: Callable[[], object], runs: int = 5) -> float:
    """Return the best processor time of several runs, after one to warm up."""
    call()
    found = []
    for _ in range(runs):
        started = time.process_time()
        call()
        found.append(time.process_time() - started)
    return min(found)


def times(questions: int) -> dict[str, float]:
    """Time each part."""
    steps, scores, confidence = worst(questions)
    found = levels(steps, scores)
    everything = served(steps, found, confidence)
    kappas, bars = np.linspace(0, 1, POINTS // 2), np.linspace(1, 0, POINTS // 2)
    path = [PathPoint(0.0, bar) for bar in bars.tolist()] + [PathPoint(kappa) for kappa in kappas.tolist()]
    along = everything.along(path)
    return {
        "served": seconds(lambda: served(steps, found, confidence)),
        f"along {POINTS} points": seconds(lambda: everything.along(path)),
        "order a path": seconds(lambda: order_path(everything, alpha=ALPHA, abstain=True)),
        "test a path": seconds(lambda: learn_then_test(along, alpha=0.999, delta=DELTA)),
    }


@dataclass(frozen=True, slots=True)
class Power:
    """What one way brought over the repetitions: shares of them, and cost beside the cheapest that is truly good."""

    rows: int
    selection: float
    way: str
    certified: float
    broken: float
    cost_ratio: float
    answered: float


class Truth:
    """Risks and costs of the whole population."""

    def __init__(self, everyone: Served) -> None:
        self.everyone = everyone
        kappas = np.concatenate([np.quantile(everyone.level[np.isfinite(everyone.level)], np.linspace(0, 1, 4_000))])
        along = everyone.along([PathPoint(kappa) for kappa in np.unique(kappas).tolist()])
        good = along.losses <= ALPHA * everyone.n
        self.least = int(along.cost_nano_usd[good].min()) / everyone.n
        self.error_of_all = int(along.losses[0]) / everyone.n

    def at(self, point: PathPoint) -> tuple[float, float, float]:
        """Return risk, cost over the least that is good, and share answered."""
        found = self.everyone.along([point])
        n = self.everyone.n
        return int(found.losses[0]) / n, int(found.cost_nano_usd[0]) / n / self.least, 1 - int(found.abstained[0]) / n


def bonferroni(along: ServedPath) -> PathPoint | None:
    """Return the last point of the path that passes at delta over its length."""
    most = most_losses(along.n, ALPHA, DELTA / len(along.path))
    passing = np.flatnonzero(along.losses <= (-1 if most is None else most))
    return along.path[passing[-1]] if passing.size else None


def looks_good(along: ServedPath) -> PathPoint | None:
    """Return the last point of the path whose calibration error is at most alpha."""
    passing = np.flatnonzero(along.losses <= ALPHA * along.n)
    return along.path[passing[-1]] if passing.size else None


def chosen(everyone: Served, rows: int, share: float, seed: int) -> dict[str, PathPoint | None]:
    """Draw rows, split them, and choose a point in each way."""
    drawn = everyone.take(np.random.default_rng(seed).integers(0, everyone.n, rows))
    cut = round(rows * share)
    selection, calibration = drawn.take(np.arange(cut)), drawn.take(np.arange(cut, rows))
    path = order_path(selection, alpha=ALPHA)
    along = calibration.along(path)
    lost = selection.along(path).losses
    fewest = calibration.along(path[int(np.flatnonzero(lost == lost.min())[-1]) :])
    silent = calibration.along(order_path(selection, alpha=ALPHA, abstain=True))
    return {
        "fixed sequence": learn_then_test(along, alpha=ALPHA, delta=DELTA).point,
        "fixed sequence, abstaining": learn_then_test(silent, alpha=ALPHA, delta=DELTA).point,
        "fixed sequence, no lead": learn_then_test(fewest, alpha=ALPHA, delta=DELTA).point,
        "Bonferroni": bonferroni(along),
        "looks good": looks_good(along),
    }


def power(truth: Truth, rows: int, share: float, repetitions: int) -> list[Power]:
    """Repeat, and average each way: broken over all repetitions, cost and answers over those certified."""
    found: dict[str, list[tuple[float, float, float] | None]] = {}
    for seed in range(repetitions):
        for way, point in chosen(truth.everyone, rows, share, seed).items():
            found.setdefault(way, []).append(None if point is None else truth.at(point))
    table = []
    for way, results in found.items():
        certified = [one for one in results if one is not None]
        broken = sum(one[0] > ALPHA for one in certified) / repetitions
        means = [math.fsum(one[k] for one in certified) / max(1, len(certified)) for k in (1, 2)]
        table.append(Power(rows, share, way, len(certified) / repetitions, broken, *means))
    return table


def measure(repetitions: int) -> dict[str, Any]:
    """Return everything that is printed."""
    truth = Truth(population())
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "numpy": np.__version__,
        "load_average": os.getloadavg()[0],
        "seconds": {questions: times(questions) for questions in (QUESTIONS // 10, QUESTIONS)},
        "repetitions": repetitions,
        "error_of_all": truth.error_of_all,
        "power": [asdict(one) for rows in ROWS for share in SHARES for one in power(truth, rows, share, repetitions)],
    }


def show(found: dict[str, Any]) -> None:
    """Print it as text."""
    print(f"{found['date']}, {found['machine']}, numpy {found['numpy']}, load average {found['load_average']:.1f}")
    small, large = found["seconds"].values()
    print(
        f"processor seconds for {QUESTIONS // 10:,} and {QUESTIONS:,} questions × {STEPS} steps × {CANDIDATES} answers"
    )
    for part, value in large.items():
        print(f"  {part:30} {small[part]:8.3f} {value:8.3f}")
    together = large["served"] + large[f"along {POINTS} points"]
    met = "ok" if together <= GOAL_S else "MISSED"
    print(f"  from levels to {POINTS} points: {together:.2f} s, goal {GOAL_S:g}: {met}")
    print(f"error ≤ {ALPHA:g} with delta {DELTA:g}, {found['repetitions']} draws; asking everything errs", end=" ")
    print(f"{found['error_of_all']:.3f}")
    print("  rows  selection  way                         certified  broken  cost  answered")
    for one in found["power"]:
        shares = f"{one['certified']:9.2f} {one['broken']:7.3f} {one['cost_ratio']:5.2f} {one['answered']:9.2f}"
        print(f"  {one['rows']:5,} {one['selection']:9.1f}  {one['way']:27} {shares}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    found = measure(REPETITIONS // 10 if asked.quick else REPETITIONS)
    print(json.dumps(found)) if asked.json else show(found)


if __name__ == "__main__":
    main()
