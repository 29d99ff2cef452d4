"""The one answer that is served: error, regret, and with abstention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, Levels, StepArrays
from cascade.conformal.binomial import lower_tail, most_losses
from cascade.conformal.ltt import learn_then_test, order_path
from cascade.conformal.served import PathPoint, Served, ServedPath, served
from cascade.conformal.split import allowed_misses
from known_risk.cells import ALPHAS, DELTA, Cell, samples, violation_cell
from known_risk.populations import Population

HARDEST = "error, every point just above α"
PATHS = 4
"""Paths a cell, each from selection questions of its own; the calibrations are shared out among them."""
SELECTION = 300
LONGEST = 40


class Path(NamedTuple):
    """A path, and its true risks and mean costs: float64 (P,)."""

    points: tuple[PathPoint, ...]
    risk: Floats
    cost_nano_usd: Floats


def error(source: Population, n: int, count: int) -> list[Cell]:
    """The served answer is wrong."""
    return _certified("error", _whole(source), source, n, count, seed=6)


def error_or_abstain(source: Population, n: int, count: int) -> list[Cell]:
    """The served answer is wrong, on a path that begins in silence."""
    return _certified("error, abstaining", _whole(source), source, n, count, seed=7, abstain=True)


def regret(source: Population, n: int, count: int) -> list[Cell]:
    """The served answer is wrong, and the last model alone is right."""
    return _certified("regret", _whole(source, regret=True), source, n, count, seed=8)


def hardest(source: Population, n: int, count: int) -> list[Cell]:
    """An error that no point of the path changes and that is barely above what is promised.

    One question in N is wrong beyond alpha·N, so that the law is exact.
    """
    cells, path = [], [PathPoint(kappa) for kappa in (0.1, 0.2, 0.3)]
    for alpha in ALPHAS:
        bad = np.random.default_rng(14).permutation(source.size) <= round(alpha * source.size)
        wrong, broken = _constant(wrong=bad, cost=bad * 0), np.zeros(count)
        for row, chosen in enumerate(samples(source, n, count, seed=10)):
            broken[row] = learn_then_test(wrong.take(chosen).along(path), alpha=alpha, delta=DELTA).certified > 0
        most = most_losses(n, alpha, DELTA)
        law = 0.0 if most is None else lower_tail(most, n, float(bad.mean()))
        cells.append(violation_cell(HARDEST, source, n, alpha, broken, law, float(broken.mean())))
    return cells


def _certified(
    name: str, whole: Served, source: Population, n: int, count: int, *, seed: int, abstain: bool = False
) -> list[Cell]:
    """Return how often a certified point breaks its promise, and how often the naive choice does."""
    paths = [_path(whole, max(ALPHAS), number, abstain=abstain) for number in range(PATHS)]
    broken, naive, certified = np.zeros((3, len(ALPHAS), count))
    for row, (path, seen) in enumerate(_calibrations(whole, paths, source, n, count, seed)):
        for at, alpha in enumerate(ALPHAS):
            front = learn_then_test(seen, alpha=alpha, delta=DELTA).certified
            broken[at, row], certified[at, row] = (path.risk[:front] > alpha).any(), front > 0
            good = np.flatnonzero(seen.losses <= allowed_misses(n, alpha))
            naive[at, row] = good.size > 0 and path.risk[good[-1]] > alpha
    cells = []
    for at, alpha in enumerate(ALPHAS):
        cells.append(violation_cell(name, source, n, alpha, broken[at], certified=certified[at].mean()))
        cells.append(violation_cell(f"naive: {name} as seen", source, n, alpha, naive[at]))
    return cells


def _calibrations(
    whole: Served, paths: list[Path], source: Population, n: int, count: int, seed: int
) -> Iterator[tuple[Path, ServedPath]]:
    """Yield what each calibration set brings along one of the paths."""
    for row, chosen in enumerate(samples(source, n, count, seed)):
        path = paths[row % PATHS]
        yield path, whole.take(chosen).along(path.points)


def _whole(source: Population, *, regret: bool = False) -> Served:
    """Return the single answers of the population."""
    reference = source.steps.correct[:, -1, -1] if regret else None
    return served(source.steps, source.levels, source.confidence, reference_right=reference)


def _path(whole: Served, alpha: float, number: int, *, abstain: bool = False) -> Path:
    """Return a path from selection questions of the population, with what is true of it."""
    chosen = np.random.default_rng([13, number]).integers(whole.n, size=SELECTION)
    points = order_path(whole.take(chosen), alpha=alpha, abstain=abstain, most_points=LONGEST)
    found = whole.along(points)
    return Path(points, found.losses / whole.n, found.cost_nano_usd / whole.n)


def _constant(wrong: Bools, cost: Ints) -> Served:
    """Return questions of one answer each, always kept."""
    shape = (wrong.size, 1, 1)
    steps = StepArrays(
        answer=np.zeros(shape, dtype=np.int64),
        correct=~wrong.reshape(shape),
        cost=cost.reshape(shape[:2]),
        steps=np.ones(wrong.size, dtype=np.int64),
        complete=np.ones(wrong.size, dtype=np.bool_),
    )
    always = Levels(np.full(shape[:2], np.inf), np.full(shape, np.inf), np.ones(shape, dtype=np.bool_))
    return served(steps, always, np.full(shape, 0.5))
