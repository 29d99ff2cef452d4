"""The saving of a ladder at other prices: a model that costs 30 % less or more, and without prompt caches.

The decisions stay the same, because they do not depend on today's prices. So only the costs are computed again. A
call's cost is proportional to its model's price, so a changed price needs no token counts; the saving of a prompt
cache is computed from the logged tokens (`EpisodeTable.uncached`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats, Ints
from cascade.episodes.schema import LAST_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import Baseline
from cascade.evaluation.evaluate import play_policy
from cascade.policies.base import Policy

CHANGE = 0.3
"""How much a price is changed by, up and down."""
CHEAPER, DEARER, UNCACHED, COLD = "cheaper", "dearer", "no cache", "cold"
BASE_CHEAPER, BASE_DEARER = "base cheaper", "base dearer"


class OtherPrices(NamedTuple):
    """The saving at one set of other prices.

    "cheaper" and "dearer" change the last model's price by 30 %, "base …" the price of all other models. "no cache":
    nothing is read from a prompt cache. "cold": the last model's calls in the cascade find nothing cached, while the
    last model alone uses its cache; this is a cascade's worst effect on the cache.

    Attributes:
        name: one of the six.
        saving: the share of the reference's cost that is saved at these prices, a mean over the splits.
    """

    name: str
    saving: float


class Bill(NamedTuple):
    """The costs of a ladder's questions at other prices.

    Attributes:
        name: the name of these prices, as in `OtherPrices`.
        cost: int64 (n, T), the cost of each step, nano-USD.
        alone: float64 (n,), the cost of the last model alone, nano-USD.
    """

    name: str
    cost: Ints
    alone: Floats

    def of(self, table: EpisodeTable, rows: Ints) -> EpisodeTable:
        """Return these questions, `rows` of the log, at the other prices; `paid`, which policies read, stays."""
        return replace(table, arrays=replace(table.arrays, cost=self.cost[rows]))


@dataclass(slots=True)
class Bills:
    """The other bills of a ladder's questions, with the saving of each split."""

    table: EpisodeTable
    reference: Baseline
    _bills: tuple[Bill, ...] = field(init=False)
    _savings: dict[str, list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self._bills = bills(self.table) if self.reference.name == LAST_ONLY else ()
        self._savings = {one.name: [] for one in self._bills}

    def add(self, policy: Policy | None, rows: Ints) -> None:
        """Add a split's test questions; None: the reference answers all of them."""
        for one in self._bills:
            known = self.reference.known[rows]
            paid = float(one.alone[rows][known].sum())
            spent = paid
            if policy is not None:
                spent = float(play_policy(one.of(self.table.take(rows), rows), policy).cost[known].sum())
            self._savings[one.name].append(1 - spent / paid if paid > 0 else np.nan)

    def found(self) -> tuple[OtherPrices, ...]:
        """Return the saving at each of the other prices for which it is known."""
        means = {name: float(np.mean(savings)) for name, savings in self._savings.items() if savings}
        return tuple([OtherPrices(name, mean) for name, mean in means.items() if not np.isnan(mean)])


def bills(table: EpisodeTable) -> tuple[Bill, ...]:
    """Return the other bills that a ladder's log allows; none for another log, or if a cost is unknown."""
    if table.arrays.horizon == 1 or LAST_ONLY not in table.walks or not table.cost_known:
        return ()
    return tuple(_bills(table))


def _bills(table: EpisodeTable) -> Iterator[Bill]:
    cost, uncached = table.arrays.cost, table.uncached
    alone = cost[:, -1].astype(np.float64)
    last = np.arange(cost.shape[1]) == cost.shape[1] - 1
    for names, steps in (((CHEAPER, DEARER), last), ((BASE_CHEAPER, BASE_DEARER), ~last)):
        for name, factor in zip(names, (1 - CHANGE, 1 + CHANGE), strict=True):
            changed = np.where(steps, np.round(cost * factor), cost).astype(np.int64)
            yield Bill(name, changed, alone * (factor if steps[-1] else 1.0))
    if uncached is None or np.isnan(uncached).any() or np.array_equal(uncached, cost):
        return
    yield Bill(UNCACHED, uncached.astype(np.int64), uncached[:, -1])
    yield Bill(COLD, np.where(last, uncached, cost).astype(np.int64), alone)
