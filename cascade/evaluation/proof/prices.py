"""What a ladder would save at other prices: a dear model that costs 30 % less or more, and prompt caches.

The decisions stay the same, because they do not depend on today's prices. So only the costs are computed again.
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


class OtherPrices(NamedTuple):
    """One other bill: "cheaper" and "dearer" change the last model's price by 30 %.

    "no cache": nothing is read from a prompt cache. "cold": the last model's calls in the cascade find nothing cached,
    while the last model alone has its cache; the worst that a cascade can do to it.

    Attributes:
        name: which of the four.
        saving: the share of the reference's cost that is saved at these prices, a mean over the splits.
    """

    name: str
    saving: float


@dataclass(frozen=True, slots=True)
class _Bill:
    name: str
    cost: Ints
    reference: Floats


@dataclass(slots=True)
class Bills:
    """The other bills of a ladder's questions, with what each split saves.

    Args:
        table: the questions.
        reference: what savings are measured against.
    """

    table: EpisodeTable
    reference: Baseline
    _bills: tuple[_Bill, ...] = field(init=False)
    _savings: dict[str, list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self._bills = tuple(_bills(self.table, self.reference))
        self._savings = {one.name: [] for one in self._bills}

    def add(self, policy: Policy | None, rows: Ints) -> None:
        """Add a split's test questions; None: the reference answers all of them."""
        for one in self._bills:
            known = self.reference.known[rows]
            paid = float(one.reference[rows][known].sum())
            spent = paid
            if policy is not None:
                some = self.table.take(rows)
                priced = replace(some, arrays=replace(some.arrays, cost=one.cost[rows]))  # `paid`, which decides, stays
                spent = float(play_policy(priced, policy).cost[known].sum())
            self._savings[one.name].append(1 - spent / paid if paid > 0 else np.nan)

    def found(self) -> tuple[OtherPrices, ...]:
        """Return what is saved at each of the other prices, as far as that is known."""
        means = {name: float(np.mean(savings)) for name, savings in self._savings.items() if savings}
        return tuple([OtherPrices(name, mean) for name, mean in means.items() if not np.isnan(mean)])


def _bills(table: EpisodeTable, reference: Baseline) -> Iterator[_Bill]:
    """Yield the other bills that a log of a ladder allows."""
    cost = table.arrays.cost
    if reference.name != LAST_ONLY or not table.cost_known or cost.shape[1] == 1:
        return
    for name, factor in ((CHEAPER, 1 - CHANGE), (DEARER, 1 + CHANGE)):
        changed = cost.copy()
        changed[:, -1] = np.round(cost[:, -1] * factor)
        yield _Bill(name, changed, reference.cost * factor)
    uncached = table.uncached
    if uncached is None or np.isnan(uncached).any() or np.array_equal(uncached, cost):
        return
    saved = uncached - cost
    yield _Bill(UNCACHED, uncached.astype(np.int64), reference.cost + saved[:, -1])
    cold = cost.copy()
    cold[:, -1] = uncached[:, -1].astype(np.int64)
    yield _Bill(COLD, cold, reference.cost)
