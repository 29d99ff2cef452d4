"""Coverage: on average, with confidence, of the questions that can be answered, of each group."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.conformal.binomial import lower_tail
from cascade.conformal.split import allowed_misses, calibrate, calibrate_segments, pac_rank, split_rank
from known_risk.cells import ALPHAS, DELTA, STANDARD_ERRORS, Cell, mean_cell, samples, violation_cell
from known_risk.populations import GROUPS, Population, missed

COVERAGE, CONFIDENT, NAIVE = "coverage", "coverage, 1 − δ", "naive: ⌊αn⌋ misses"
_WORST = "groups: the worst of all"
_FEW = 100  # calibrations with a threshold for a group, below which its mean is no evidence


def naive_kappa(values: Floats, alpha: float) -> float:
    """Return the highest threshold that misses at most ⌊alpha·n⌋ of the calibration questions."""
    return float(np.partition(values, allowed_misses(values.size, alpha))[allowed_misses(values.size, alpha)])


def rank_law(source: Population, n: int, rank: int) -> float | None:
    """Return the expected risk of the `rank`-th smallest of n critical values: rank/(n + 1), exactly less with ties.

    The r-th smallest is at most v where at least r of the n are: Pr[Bin(n, F(v)) ≥ r]. None with critical values of −∞:
    what is promised then depends on their number.
    """
    if rank == 0 or source.critical.min() == -np.inf:
        return None if rank else 0.0
    if not source.ties:
        return rank / (n + 1)
    values, counts = np.unique(source.critical, return_counts=True)
    below = np.concatenate([[0.0], np.cumsum(counts) / source.size])
    above = [lower_tail(rank - 1, n, min(1.0, share)) for share in below]  # Pr[the r-th smallest lies above]
    return float(sum(below[i] * (above[i] - above[i + 1]) for i in range(values.size)))


def violation_law(source: Population, n: int, rank: int, alpha: float) -> float | None:
    """Return the probability that the risk of the `rank`-th smallest critical value exceeds alpha.

    It does where fewer than `rank` questions fall below the lowest threshold of such a risk.
    """
    if rank == 0 or source.critical.min() == -np.inf:
        return None if rank else 0.0
    ordered = np.sort(source.critical)
    first = ordered[int(alpha * source.size) :]  # a threshold above the first of these misses more than alpha
    too_high = int(np.searchsorted(ordered, first[0], side="right"))
    return lower_tail(rank - 1, n, too_high / source.size)


def coverage(source: Population, n: int, count: int) -> list[Cell]:
    """Coverage on average, with confidence, and by the naive rule."""
    kappas = np.empty((3, len(ALPHAS), count))
    for row, chosen in enumerate(samples(source, n, count, seed=1)):
        values = source.critical[chosen]
        for at, alpha in enumerate(ALPHAS):
            plain, sure = calibrate(values, alpha), calibrate(values, alpha, delta=DELTA)
            kappas[:, at, row] = plain.kappa, sure.kappa, naive_kappa(values, alpha)
    return [cell for at, alpha in enumerate(ALPHAS) for cell in _coverage_cells(source, n, alpha, kappas[:, at])]


def _coverage_cells(source: Population, n: int, alpha: float, kappas: Floats) -> list[Cell]:
    """Return the cells of one alpha. A threshold of −∞ is no certificate (`calibrate`): nothing can be broken."""
    promised = kappas > -np.inf
    average, confident, naive = np.where(promised, missed(source.critical, kappas), 0.0)
    certified = promised.mean(axis=1)
    rank, sure_rank, naive_rank = split_rank(n, alpha), pac_rank(n, alpha, DELTA), allowed_misses(n, alpha) + 1
    law, tail = rank_law(source, n, rank), violation_law(source, n, sure_rank, alpha)
    return [
        mean_cell(COVERAGE, source, n, alpha, rank / (n + 1), average, law=law, certified=certified[0]),
        violation_cell(CONFIDENT, source, n, alpha, confident > alpha, tail, certified[1]),
        mean_cell(NAIVE, source, n, alpha, alpha, naive, law=rank_law(source, n, naive_rank)),
    ]


def groups(source: Population, n: int, count: int) -> list[Cell]:
    """Coverage of each group by its own questions, and by one threshold for all."""
    names = np.array([f"tenant {number}" for number in range(GROUPS)])
    kappa, promised, own = (np.empty((len(ALPHAS), GROUPS, count)) for _ in range(3))
    shared, nothing = np.empty((len(ALPHAS), count)), calibrate([], ALPHAS[0])
    for row, chosen in enumerate(samples(source, n, count, seed=3)):
        values, labels = source.critical[chosen], names[source.groups[chosen]].tolist()
        for at, alpha in enumerate(ALPHAS):
            found = calibrate_segments(values, labels, alpha)
            each = [found.get(name, nothing) for name in names.tolist()]
            kappa[at, :, row] = [one.kappa for one in each]
            promised[at, :, row] = [one.k / (one.n + 1) for one in each]
            own[at, :, row] = [not one.keeps_everything for one in each]
            shared[at, row] = calibrate(values, alpha).kappa
    cells = []
    for at, alpha in enumerate(ALPHAS):
        cells += _group_cells(source, n, alpha, Groups(_by_group(source, kappa[at]), promised[at], own[at]))
        naive = _by_group(source, np.tile(shared[at], (GROUPS, 1)))
        worst = naive[naive.mean(axis=1).argmax()]
        cells.append(mean_cell("naive: one threshold for all groups", source, n, alpha, alpha, worst))
    return cells


class Groups(NamedTuple):
    """A fresh question's risk, what is promised to it, and whether its group has a threshold.

    All float64 (groups, calibrations).
    """

    risk: Floats
    promised: Floats
    weight: Floats


def _by_group(source: Population, kappa: Floats) -> Floats:
    """Return the risk of each group's questions at its threshold."""
    return np.array([missed(source.critical[source.groups == g], kappa[g]) for g in range(GROUPS)])


def _group_cells(source: Population, n: int, alpha: float, found: Groups) -> list[Cell]:
    """Return the cells of the largest group and of the worst one, over the calibrations that give them a threshold."""
    each = [Groups(*(part[[g]] for part in found)) for g in range(GROUPS) if found.weight[g].sum() >= _FEW]
    # A rare group has some hundred questions in the population, and so ties: only the largest one has the exact law.
    largest = [_group_cell("groups: the largest", source, n, alpha, one) for one in each[:1]]
    bounds = [replace(_group_cell(_WORST, source, n, alpha, one), law=None) for one in each]
    worst = sorted(bounds, key=lambda cell: cell.excess)[-1:]
    limit = NormalDist().inv_cdf(1 - (1 - NormalDist().cdf(STANDARD_ERRORS)) / max(1, len(each)))
    return [*largest, *(replace(cell, limit=limit) for cell in worst)]


def _group_cell(name: str, source: Population, n: int, alpha: float, found: Groups) -> Cell:
    """Return the cell of one group; what is promised differs between calibrations, so the differences count."""
    weight = found.weight.sum(axis=0)
    risk, promised = ((found.weight * part).sum(axis=0) for part in (found.risk, found.promised))
    measured, due = risk.sum() / weight.sum(), promised.sum() / weight.sum()
    spread = (risk - promised - (measured - due) * weight).std(ddof=1) / weight.mean() / weight.size**0.5
    law = None if source.ties else due
    return Cell(name, source.name, n, alpha, due, law, float(measured), float(spread))
