"""How many requests, USD and days it takes until a promotion is likely, from the rows that may fit alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cascade.conformal.binomial import lower_tail, most_losses
from cascade.conformal.served import PathPoint
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.modes.draws import SAVING_LEVEL, look_level
from cascade.modes.looking import LEAST_FIT, Asked, Rows
from cascade.modes.saving import Bounds, Costs, rows_for_saving
from cascade.modes.state import Counts
from cascade.training.dividing import Divided
from cascade.training.fitting import choice_on, objective_of

CHANCE = 0.8
"""What is called likely."""
_MOST = 100_000
_GROWTH = 1.15
_POINTS = 60
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What it takes until a promotion is likely.

    Attributes:
        look: the look that it is about.
        have: conversations that could certify now.
        needed: conversations that it takes; None where no number does, as far as these rows tell.
        requests: requests until then; None where that is not known.
        usd: what observing them costs beside what is served.
        days: days until then, at the traffic so far.
        labels: labels by people: agreement needs none.
        why: what stands in the way, where something does.
    """

    look: int
    have: int
    needed: int | None
    requests: int | None = None
    usd: float | None = None
    days: float | None = None
    labels: int = 0
    why: str | None = None

    @property
    def is_likely(self) -> bool:
        """Whether a promotion is likely now."""
        return self.needed is not None and self.needed <= self.have

    def describe(self) -> str:
        """Return it in a sentence."""
        if self.needed is None:
            return f"no promotion is likely so far: {self.why}"
        if self.is_likely:
            return f"a promotion is likely now (look {self.look}): cascade promote"
        days = "" if self.days is None else f", {self.days:.2g} days at the traffic so far"
        cost = "" if self.usd is None else f", {self.usd:.2g} USD for the calls beside"
        return (
            f"a promotion is likely ({CHANCE:.0%}) at look {self.look} with {self.needed} certifying conversations; "
            f"there are {self.have}. That takes about {self.requests} more requests{cost}{days}, and no label."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def planned(rows: Rows, asked: Asked, look: int, counts: Counts, rate: float) -> Plan:
    """Return a plan.

    Args:
        rows: those that may fit.
        asked: what is to be promised.
        look: the next look.
        counts: what there is so far.
        rate: the share of requests that becomes a certifying row.
    """
    needed, why = _needed(rows, asked, look, counts)
    if needed is None:
        return Plan(look, counts.conversations, None, why=why)
    left = max(0, needed - counts.conversations)
    requests = math.ceil(left / rate)
    seen_s = (counts.last_s or 0.0) - (counts.first_s or 0.0)
    a_day = counts.requests / seen_s * _DAY_S if seen_s > 0 else None
    cost = counts.row_nano_usd
    drawn = (counts.complete + counts.missing) / counts.requests if counts.requests else rate
    return Plan(
        look,
        counts.conversations,
        needed,
        requests,
        None if cost is None else requests * drawn * cost / 1e9,
        None if a_day is None else requests / a_day,
    )


def _needed(rows: Rows, asked: Asked, look: int, counts: Counts) -> tuple[int | None, str | None]:
    """Return how many certifying conversations make a promotion likely, or why none do."""
    if counts.fit < LEAST_FIT:
        return None, f"{counts.fit} rows may fit, and it takes {LEAST_FIT} to tell"
    table, _ = rows.table()
    known = table.take(np.flatnonzero([name not in rows.missing for name in table.ids]))
    if known.n < LEAST_FIT:
        return None, f"{known.n} rows have an outcome, and it takes {LEAST_FIT} to tell"
    lost = 1 - known.n / table.n
    guarantee = Guarantee("agreement", asked.alpha, look_level(asked.delta, look))
    parts = Divided(known, known, 0)
    try:
        choice = choice_on(known, objective_of(parts, guarantee), seed=asked.seed)
    except UsageError as error:
        return None, str(error)
    served = guarantee.rules.served(choice.sample)  # type: ignore[attr-defined]
    levels = np.unique(choice.sample.levels.reach[np.isfinite(choice.sample.levels.reach)])
    guide = known.arrays.cost[:, -1].astype(np.float64)
    others = known.arrays.cost[:, :-1].sum(axis=1).astype(np.float64)
    best = math.inf
    for kappa in levels[np.unique(np.linspace(0, levels.size - 1, _POINTS).astype(np.int64))] if levels.size else ():
        at = served.at(PathPoint(float(kappa)))
        costs = Costs(guide, others, at.cost.astype(np.float64), np.zeros(known.n, dtype=np.bool_))
        bounds = Bounds.of(costs)
        enough = rows_for_saving(costs.saving(asked.audit, bounds), bounds, look_level(SAVING_LEVEL, look))
        if enough < best:
            rate = lost + (1 - lost) * (float(at.loss.mean()) + 1 / known.n)
            best = min(best, max(enough, _certified_with(rate, asked.alpha, guarantee.delta or asked.delta)))
    if not best < _MOST:
        return None, "at no threshold do these rows agree often enough with the guide and save something"
    return math.ceil(best), None


def _certified_with(rate: float, alpha: float, delta: float) -> float:
    """Return how many conversations are certified with a good chance where each differs at this rate; +∞ where none."""
    if rate >= alpha:
        return math.inf
    count = 10.0
    while count < _MOST:
        most = most_losses(int(count), alpha, delta)
        if most is not None and lower_tail(most, int(count), rate) >= CHANCE:
            return float(int(count))
        count *= _GROWTH
    return math.inf
