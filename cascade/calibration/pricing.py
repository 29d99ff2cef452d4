"""Say of how many questions of a log a cost is unknown, and what the reference costs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cascade.episodes.table import EpisodeTable
from cascade.guarantees.reference import MOSTLY, REFERENCES
from cascade.text import counted


def unpriced(table: EpisodeTable) -> int:
    """Return of how many questions some cost is unknown."""
    return int(np.count_nonzero(~table.priced))


def unpriced_said(table: EpisodeTable) -> Iterator[str]:
    """Yield how many questions `EpisodeTable.costed` leaves out because the log lacks a cost of theirs."""
    many = unpriced(table)
    if many and table.shows_cost:
        yield f"{_lack(many)}: left out of all figures here, which are of the other {table.n - many:,}."


def priced_said(table: EpisodeTable) -> Iterator[str]:
    """Yield that figures in money are of some questions only, where the log lacks costs of the others."""
    many = unpriced(table)
    if many and table.shows_cost:
        yield f"{_lack(many)}: every figure in money is a mean over the other {table.n - many:,}"
    elif many:
        yield f"{_lack(many)}, of {table.n:,}: no figure in money is shown. It takes the costs of more than half"


def _lack(many: int) -> str:
    return f"{counted(many, 'question')} {'lacks' if many == 1 else 'lack'} a cost in the log"


def reference_cost(table: EpisodeTable) -> float | None:
    """Return the reference's mean cost, nano-USD, over the questions whose costs are known.

    None unless the log has the reference for most questions, and the costs of most.
    """
    held = (table.walks[name] for name in REFERENCES if name in table.walks)
    walk = next((one for one in held if one.known.mean() > MOSTLY), None)
    if walk is None or not table.shows_cost:
        return None
    rows = walk.known & table.priced
    return float(walk.cost[rows].mean()) if rows.any() else None
