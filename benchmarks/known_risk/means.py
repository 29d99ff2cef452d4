"""Means: a graded loss like 1 − F1, and the cost of a question."""

from __future__ import annotations

import numpy as np

from cascade.conformal.arrays import Curve, Floats
from cascade.conformal.risk import calibrate_budget, calibrate_risk, cost_levels, loss_levels
from known_risk.cells import ALPHAS, DELTA, Cell, mean_cell, samples, violation_cell
from known_risk.populations import DEAREST_NANO_USD, Population

BUDGETS = (0.3, 0.5, 0.7)
"""As shares of what keeping everything costs."""
SURE_BUDGETS = (0.5,)
"""Those that are also promised with confidence: a search of p-values takes a millisecond."""


def graded_loss(source: Population, n: int, count: int) -> list[Cell]:
    """A mean loss at most alpha: on average, with confidence, and by the naive rule."""
    whole = loss_levels(source.steps, source.levels, source.quality)
    kappa, certified = np.empty((3, len(ALPHAS), count)), np.ones((3, len(ALPHAS), count))
    for row, chosen in enumerate(samples(source, n, count, seed=4)):
        losses = whole.take(chosen)
        curve = losses.curve()
        for at, alpha in enumerate(ALPHAS):
            found = calibrate_risk(losses, alpha), calibrate_risk(losses, alpha, delta=DELTA)
            kappa[:, at, row] = *(one.kappa for one in found), _naive_risk(curve, alpha)
            certified[:2, at, row] = [one.certified for one in found]
    truth = means_at(whole.curve(), kappa) * certified
    cells = []
    for at, alpha in enumerate(ALPHAS):
        share = certified[:, at].mean(axis=1)
        cells += [
            mean_cell("graded loss", source, n, alpha, alpha, truth[0, at], certified=share[0]),
            violation_cell("graded loss, 1 − δ", source, n, alpha, truth[1, at] > alpha, certified=share[1]),
            mean_cell("naive: mean loss ≤ α", source, n, alpha, alpha, truth[2, at]),
        ]
    return cells


def budget(source: Population, n: int, count: int) -> list[Cell]:
    """A mean cost at most a budget, as a share of it: on average, with confidence, and by the naive rule."""
    whole = cost_levels(source.steps, source.levels)
    budgets = [round(share * float(whole.at(-np.inf).mean())) for share in BUDGETS]
    kappa, certified = np.full((3, len(BUDGETS), count), np.inf), np.ones((3, len(BUDGETS), count))
    for row, chosen in enumerate(samples(source, n, count, seed=5)):
        costs = whole.take(chosen)
        curve = costs.curve()
        for at, most in enumerate(budgets):
            deltas = (None, DELTA) if BUDGETS[at] in SURE_BUDGETS else (None,)
            for form, delta in enumerate(deltas):
                found = calibrate_budget(costs, most, DEAREST_NANO_USD, delta=delta)
                kappa[form, at, row], certified[form, at, row] = found.kappa, found.certified
            kappa[2, at, row] = _naive_budget(curve, most)
    truth = means_at(whole.curve(), kappa) / np.array(budgets)[:, None] * certified
    cells = []
    for at, share in enumerate(BUDGETS):
        given = certified[:, at].mean(axis=1)
        cells.append(mean_cell("budget", source, n, share, 1.0, truth[0, at], certified=given[0]))
        if share in SURE_BUDGETS:
            cells.append(violation_cell("budget, 1 − δ", source, n, share, truth[1, at] > 1, certified=given[1]))
        cells.append(violation_cell("naive: mean cost ≤ budget", source, n, share, truth[2, at] > 1))
    return cells


def means_at(curve: Curve, kappa: Floats) -> Floats:
    """Return the population's mean at each of many thresholds, exactly but for one rounding."""
    return np.asarray(curve.total[curve.index(kappa)] / curve.units / curve.n)


def _naive_risk(curve: Curve, alpha: float) -> float:
    """Return the highest threshold at which the mean loss of the calibration questions is at most alpha."""
    good = np.flatnonzero(curve.total <= alpha * curve.n * curve.units)
    return float(curve.kappa[good[0]]) if good.size else -np.inf


def _naive_budget(curve: Curve, most: int) -> float:
    """Return the lowest level at which the mean cost of the calibration questions is at most the budget."""
    good = np.flatnonzero(curve.total <= most * curve.n)
    return float(curve.kappa[good[-1]]) if good.size else np.inf
