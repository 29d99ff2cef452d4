"""Which of a log's questions certify, and which make the policy: whole groups, drawn before anything is looked at.

The questions that certify may have been used for nothing else. So they are set aside by a hash of their groups' names,
and what remains is divided further for the choice alone (`folds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cascade.calibration.calibrating import looked_at
from cascade.calibration.samples import among, clusters, joined, once, selected
from cascade.conformal.arrays import Bools
from cascade.conformal.binomial import most_losses, needed_n
from cascade.conformal.guarantee import Guarantee
from cascade.conformal.split import pac_rank, split_rank
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError

SHARE = 0.3
"""Of the questions that certify (`design/portfolio.md`)."""

_SPARE = 1.25
"""A group that has so many times the questions that its own threshold needs gets one: a fifth is left to learn from."""


class Divided(NamedTuple):
    """A log in two parts that share no question and no group.

    Attributes:
        training: what the policy is made and chosen with, a row a question, in an order that the log's does not change.
        calibration: what certifies it.
        repeated: episodes left out because their question is there already.
    """

    training: EpisodeTable
    calibration: EpisodeTable
    repeated: int

    def of(self, change: Callable[[EpisodeTable], EpisodeTable]) -> Divided:
        """Return both parts with a change that is made to each question by itself."""
        return self._replace(training=change(self.training), calibration=change(self.calibration))

    @property
    def questions(self) -> int:
        """Questions in both parts."""
        return self.training.n + self.calibration.n


def divided(
    tables: Sequence[EpisodeTable],
    guarantee: Guarantee,
    *,
    share: float = SHARE,
    seed: int = 0,
    seen: frozenset[str] = frozenset(),
) -> Divided:
    """Divide a log.

    Groups fall into one part whole; with a promise for each group every group is divided, and questions stay whole.
    The calibration part has at least as many questions as the guarantee needs, if the log has them, and none that hangs
    together with one that an earlier policy has seen.

    Args:
        tables: the log.
        guarantee: what will be promised.
        share: of the questions that are to certify.
        seed: draws them.
        seen: questions that went into the policy that this one starts from.

    Raises:
        UsageError: there is no question, the tables are of different cascades, or the share lies outside (0, 1).
    """
    if not 0 < share < 1:
        raise UsageError(f"The share of questions that certify lies between 0 and 1, not {share:g}.")
    table, repeated = questions_of(tables, guarantee)
    bound = bonds(table, guarantee)
    named = clusters(bound)
    barred = {name for name, was in zip(named, among(table, seen).tolist(), strict=True) if was}
    free = np.flatnonzero([name not in barred for name in named])
    aside = np.zeros(table.n, dtype=np.bool_)
    if guarantee.by_group:
        aside[free] = _of_each_group(table.take(free), share, seed, needed_of(guarantee))
    else:
        wanted = max(round(share * table.n), needed_of(guarantee))
        aside[free] = _some(bound.take(free), wanted, seed)
    return Divided(table.take(~aside), table.take(aside), repeated)


class Questions(NamedTuple):
    """The questions of a log, a row each, in an order that the log's does not change; the episodes left out for it."""

    table: EpisodeTable
    repeated: int


def questions_of(tables: Sequence[EpisodeTable], guarantee: Guarantee) -> Questions:
    """Return the questions of a log that a promise could speak of.

    Raises:
        UsageError: there is none, or the tables are of different cascades.
    """
    table = looked_at(joined(tables), guarantee.kind)
    rows = once(table, by_group=guarantee.by_group)
    if not rows.size:
        raise UsageError("There is no question in this log that the promise could speak of.")
    return Questions(_in_order(table.take(rows)), table.n - rows.size)


def _in_order(table: EpisodeTable) -> EpisodeTable:
    """Return the rows by question and group: sums over them then come out the same for any order of the log."""
    order = sorted(range(table.n), key=lambda row: (table.questions[row], table.groups[row]))
    return table.take(np.array(order, dtype=np.int64))


def _some(table: EpisodeTable, wanted: int, seed: int) -> Bools:
    """Return at least about so many rows, whole clusters; all where there are no more."""
    if wanted >= table.n or len(set(clusters(table))) < 2:
        return np.ones(table.n, dtype=np.bool_)
    return selected(table, wanted / table.n, seed)


def _of_each_group(table: EpisodeTable, share: float, seed: int, needed: int) -> Bools:
    """Return a share of the questions of each group, at least as many as are needed; a question with all its rows."""
    groups = np.array(table.groups, dtype=object)
    bare = replace(table, groups=table.questions)
    chosen: set[str] = set()
    for name in sorted(set(table.groups)):
        own = bare.take(np.flatnonzero(groups == name))
        wanted = max(round(share * own.n), needed if own.n >= _SPARE * needed else 0)
        chosen |= {own.questions[row] for row in np.flatnonzero(_some(own, wanted, seed))}
    return among(table, chosen)


def needed_of(guarantee: Guarantee) -> int:
    """Return how many questions are needed at the least for a threshold to be certified; 1 where none is known."""
    return 1 if guarantee.alpha is None else needed_n(guarantee.alpha, guarantee.delta)


def allowed_loss(guarantee: Guarantee, n: int) -> float | None:
    """Return the mean loss that n calibration questions will allow: alpha, less what being sure of it takes.

    None where the promise is on a cost.
    """
    alpha, delta = guarantee.alpha, guarantee.delta
    if alpha is None:
        return None
    if guarantee.single or guarantee.kind == "f1":
        losses = most_losses(n, alpha, 0.5 if delta is None else delta)
        return alpha if not losses else losses / n
    rank = split_rank(n, alpha) if delta is None else pac_rank(n, alpha, delta)
    return rank / (n + 1) if rank else alpha


def allowed_budget(guarantee: Guarantee, n: int) -> Guarantee:
    """Return the promise with the budget that n calibration questions will allow to be spent.

    A fresh question counts as one that costs the most; where that leaves nothing, the budget itself.
    """
    budget, most = guarantee.budget_nano_usd, guarantee.most_nano_usd
    if guarantee.kind != "budget" or budget is None or most is None:
        return guarantee
    left = math.floor((budget * (n + 1) - most) / max(n, 1))
    return replace(guarantee, budget_nano_usd=left if left > 0 else budget)


def bonds(table: EpisodeTable, guarantee: Guarantee) -> EpisodeTable:
    """Return a table whose groups are what no fold may cut: with a promise for each group, its questions."""
    return replace(table, groups=table.questions) if guarantee.by_group else table
