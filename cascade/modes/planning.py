"""Estimates how many requests, USD and days a promotion still takes, only from the fitting rows."""

from __future__ import annotations

import math

import numpy as np

from cascade.conformal.binomial import lower_tail, most_losses
from cascade.conformal.served import PathPoint
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.modes.draws import SAVING_LEVEL, look_level
from cascade.modes.look import Asked, Rows
from cascade.modes.plan import CHANCE, LEAST_FIT, Plan
from cascade.modes.saving import Bounds, Costs, rows_for_saving
from cascade.modes.state import Counts
from cascade.training.dividing import Divided
from cascade.training.fitting import choice_on, objective_of

_MOST = 100_000
_GROWTH = 1.15
_POINTS = 60
_DAY_S = 86_400.0


def planned(rows: Rows, asked: Asked, look: int, counts: Counts, rate: float) -> Plan:
    """Return a plan.

    Args:
        rows: the fitting rows.
        asked: the promise to make.
        look: the next look.
        counts: the counts so far.
        rate: the share of requests that becomes a certifying row.
    """
    needed, why = _needed(rows, asked, look, counts)
    if needed is None:
        return Plan(look, counts.conversations, None, labels=None, why=why)
    left = max(0, needed - counts.conversations)
    new = rate * (counts.conversations / counts.certify if counts.certify else 1.0)  # later turns certify nothing
    requests = 0 if not left else math.ceil(left / new) if new > 0 else None
    seen_s = (counts.last_s or 0.0) - (counts.first_s or 0.0)
    a_day = counts.requests / seen_s * _DAY_S if seen_s > 0 else None
    cost, differ = counts.row_nano_usd, rows.share_judged()
    drawn = (counts.complete + counts.missing) / counts.requests if counts.requests else rate
    return Plan(
        look,
        counts.conversations,
        needed,
        requests,
        None if cost is None or requests is None else requests * drawn * cost / 1e9,
        None if a_day is None or requests is None else requests / a_day,
        0 if differ is None else math.ceil(needed * differ),
    )


def _needed(rows: Rows, asked: Asked, look: int, counts: Counts) -> tuple[int | None, str | None]:
    """Return how many certifying conversations make a promotion likely, or why none do."""
    if counts.fit < LEAST_FIT:
        return None, f"an estimate needs {LEAST_FIT} fitting rows, and there are {counts.fit}"
    table, _ = rows.table()
    whole = table.take(np.flatnonzero([name not in rows.missing for name in table.ids]))
    if whole.n < LEAST_FIT:
        return (
            None,
            f"an estimate needs {LEAST_FIT} drawn requests with an outcome, and {whole.n} of {table.n} have one",
        )
    try:
        best = _least(whole.costed(), table.n - whole.n, asked, look)
    except UsageError as error:
        return None, str(error)
    if math.isfinite(best):
        return math.ceil(best), None
    said = "no threshold both agrees often enough with the guide and saves money on these rows"
    if whole.n < table.n:
        enough = math.isfinite(_least(whole.costed(), 0, asked, look))
        said = (
            "if they had one, a promotion would be likely with more rows" if enough else f"{said}, even if they had one"
        )
        said = f"{table.n - whole.n} of {table.n} drawn requests have no outcome, and each counts as a loss; {said}"
    return None, said


def _least(known: EpisodeTable, missing: int, asked: Asked, look: int) -> float:
    """Return how many conversations like these make a promotion likely; +∞ if no number does.

    Args:
        known: drawn requests with an outcome.
        missing: how many others have none: each counts as a loss and at the highest possible cost.
        asked: the promise to make.
        look: the next look.

    Raises:
        UsageError: no policy can be fitted on these.
    """
    guarantee, unknown = asked.promise(look), np.zeros(known.n, dtype=np.bool_)
    choice = choice_on(known, objective_of(Divided(known, known, 0), guarantee), seed=asked.seed)
    served = guarantee.rules.served(choice.sample)  # type: ignore[attr-defined]
    levels = np.unique(choice.sample.levels.reach[np.isfinite(choice.sample.levels.reach)])
    guide = known.arrays.cost[:, -1].astype(np.float64)
    others = known.arrays.cost[:, :-1].sum(axis=1).astype(np.float64)
    lost, best = missing / (known.n + missing), math.inf
    some = levels[np.unique(np.linspace(0, levels.size - 1, _POINTS).astype(np.int64))] if levels.size else levels
    for kappa in (*some, math.inf):  # at infinity no request goes on to the guide
        at = served.at(PathPoint(float(kappa)))
        costs = Costs(guide, others, at.cost.astype(np.float64), unknown, at.asks_last)
        bounds = Bounds.of(costs)
        savings = np.append(costs.saving(asked.audit, bounds), np.full(missing, -bounds.others))
        enough = rows_for_saving(savings, bounds, look_level(SAVING_LEVEL, look))
        if enough < best:
            rate = lost + (1 - lost) * (float(at.loss.mean()) + 1 / known.n)
            best = min(best, max(enough, _certified_with(rate, asked.alpha, guarantee.delta or asked.delta)))
    return best if best < _MOST else math.inf


def _certified_with(rate: float, alpha: float, delta: float) -> float:
    """Return how many conversations are likely to certify if each differs at this rate; +∞ if no number is."""
    if rate >= alpha:
        return math.inf
    count = 10.0
    while count < _MOST:
        most = most_losses(int(count), alpha, delta)
        if most is not None and lower_tail(most, int(count), rate) >= CHANCE:
            return float(int(count))
        count *= _GROWTH
    return math.inf
