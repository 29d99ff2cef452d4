"""Which way to calibrate on groups of several questions keeps its promise, and which wastes least?

    python benchmarks/clusters.py                    2,000 calibrations a row: some minutes of one core
    python benchmarks/clusters.py --calibrations 200 --markdown

A question's critical value is √icc·(its group's normal number) + √(1 − icc)·(its own), so that a threshold kappa misses
Φ(kappa) of the questions of fresh groups, whatever icc is. Without delta the promise is on the mean of that over
calibrations; with delta it is on the share of calibrations at which it is above alpha. Among the ways that keep the
promise the better one misses more: a higher threshold costs less.

| way | rule |
|---|---|
| rows | every question counts, as before 0.6 |
| one | one question drawn at random per group, then as without groups |
| means | a group’s share of misses is one bounded loss: (Σ shares + 1)/(n + 1) ≤ alpha; with delta a p-value ≤ delta |

"means" without delta is hierarchical conformal prediction (Lee, Barber & Willett 2023; Dunn, Wasserman & Ramdas 2023)
written as conformal risk control. With delta its p-values are the betting and the Hoeffding-Bentkus ones.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from cascade.conformal.arrays import Floats
from cascade.conformal.monitor import hoeffding_bentkus_p_value, mean_below_p_value
from cascade.conformal.split import pac_rank, split_rank

GRID = np.linspace(-3.6, 0.5, 165)
"""Thresholds that the bounds for clusters are tried at, from strict to lax."""


class World(NamedTuple):
    """So many groups of so many questions, of which the same group's have this correlation."""

    groups: int
    each: int
    icc: float


WORLDS = (
    World(12, 20, 0.8),
    World(60, 4, 0.8),
    World(60, 4, 0.2),
    World(100, 20, 0.5),
    World(100, 20, 0.1),
    World(300, 3, 0.3),
    World(300, 1, 0.0),
    World(1000, 10, 0.3),
)
Way = Callable[[Floats, float, "float | None", np.random.Generator], float]


def ranked(values: Floats, alpha: float, delta: float | None) -> float:
    """Return the threshold of questions that count as unrelated."""
    k = split_rank(values.size, alpha) if delta is None else pac_rank(values.size, alpha, delta)
    return float(np.partition(values, k - 1)[k - 1]) if k else -np.inf


def by_rows(critical: Floats, alpha: float, delta: float | None, _: np.random.Generator) -> float:
    """Every question counts."""
    return ranked(critical.ravel(), alpha, delta)


def by_one(critical: Floats, alpha: float, delta: float | None, rng: np.random.Generator) -> float:
    """Draw one question of each group."""
    return ranked(critical[np.arange(len(critical)), rng.integers(critical.shape[1], size=len(critical))], alpha, delta)


def by_means(p_value: Callable[[Floats, float], float] | None) -> Way:
    """Take each group's share of misses as one loss."""

    def way(critical: Floats, alpha: float, delta: float | None, _: np.random.Generator) -> float:
        found = -np.inf
        for kappa in GRID:
            shares = (critical < kappa).mean(axis=1)
            if delta is None or p_value is None:
                good = (shares.sum() + 1) / (len(shares) + 1) <= alpha
            else:
                good = p_value(shares, alpha) <= delta
            if not good:
                break
            found = float(kappa)
        return found

    return way


def betting(shares: Floats, alpha: float) -> float:
    """Return the betting p-value."""
    return mean_below_p_value(shares, alpha, 1.0)


def bentkus(shares: Floats, alpha: float) -> float:
    """Return the Hoeffding-Bentkus p-value."""
    return hoeffding_bentkus_p_value(float(shares.mean()), len(shares), alpha)


WAYS: Mapping[bool, Mapping[str, Way]] = {
    False: {"rows": by_rows, "one": by_one, "means": by_means(None)},
    True: {"rows": by_rows, "one": by_one, "means, betting": by_means(betting), "means, HB": by_means(bentkus)},
}


def risks(world: World, way: Way, alpha: float, delta: float | None, calibrations: int, seed: int = 0) -> Floats:
    """Return what the calibrated threshold misses of fresh groups' questions, one number a calibration."""
    found = np.empty(calibrations)
    for number in range(calibrations):
        rng = np.random.default_rng([seed, number])
        shared, own = rng.standard_normal((world.groups, 1)), rng.standard_normal((world.groups, world.each))
        critical = np.sqrt(world.icc) * shared + np.sqrt(1 - world.icc) * own
        found[number] = norm.cdf(way(critical, alpha, delta, rng))
    return found


def main() -> None:
    """Print a table a promise."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--calibrations", type=int, default=2_000)
    arguments.add_argument("--alpha", type=float, default=0.1)
    arguments.add_argument("--delta", type=float, default=0.1)
    asked = arguments.parse_args()
    for delta in (None, asked.delta):
        ways = WAYS[delta is not None]
        head = "missed, mean" if delta is None else "missed, mean (share of calibrations above alpha)"
        print(f"\nalpha {asked.alpha:g}, delta {delta}: {head}\n")
        print(f"| groups × each, icc | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}")
        for world in WORLDS:
            cells = []
            for way in ways.values():
                found = risks(world, way, asked.alpha, delta, asked.calibrations)
                broken = "" if delta is None else f" ({(found > asked.alpha).mean():.3f})"
                cells.append(f"{found.mean():.4f}{broken}")
            print(f"| {world.groups} × {world.each}, {world.icc:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
