"""The reference of a log: the one model alone that a regret and a saving are held against.

It is the guide asked outright, where the log has that walk, or else a ladder's last model.
"""

from __future__ import annotations

import numpy as np

from cascade.conformal.arrays import Bools
from cascade.episodes.schema import GUIDE_ONLY, LAST_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError

REFERENCES = (GUIDE_ONLY, LAST_ONLY)
"""The walks that a regret is held against, the first that is on record."""
MOSTLY = 0.5
"""A walk that is on record for no more than this share of the questions is no reference for costs."""


def reference_walk(table: EpisodeTable) -> str:
    """Return the name of the walk that is the reference.

    Raises:
        UsageError: none is on record for any question.
    """
    for name in REFERENCES:
        if name in table.walks and table.walks[name].known.any():
            return name
    raise UsageError(
        f"regret is held against the guide alone, and {table.dataset} has no walk {GUIDE_ONLY!r} on record. Collect "
        "one with cascade collect, or ask for error."
    )


def has_reference(table: EpisodeTable) -> bool:
    """Whether a reference is on record for any question."""
    return any(name in table.walks and table.walks[name].known.any() for name in REFERENCES)


def ends_in_reference(table: EpisodeTable) -> bool:
    """Whether the last step of the log is the reference itself, as in a ladder: its answer then has no regret.

    So it is where the reference is called the last model's, and where the guide's own walk cost the same and was right
    on the same questions as the last of several models, each with one answer a step.
    """
    if not has_reference(table):
        return False
    name = reference_walk(table)
    if name == LAST_ONLY:
        return True
    arrays, walk = table.arrays, table.walks[name]
    if arrays.horizon < 2 or arrays.answer.shape[2] != 1:
        return False
    rows = walk.known & (arrays.steps == arrays.horizon)
    same = (walk.right == arrays.correct[:, -1, 0]) & (walk.cost == arrays.cost[:, -1])
    return bool(rows.any() and same[rows].all())


def reference_known(table: EpisodeTable) -> Bools:
    """Return the questions on which it is on record what the reference alone answers: bool (n,).

    Raises:
        UsageError: it is on record of none.
    """
    return np.asarray(table.walks[reference_walk(table)].known, dtype=np.bool_)


def reference_right(table: EpisodeTable) -> Bools:
    """Return whether the reference alone is right, bool (n,); where that is not on record, True: on the safe side.

    Nor is it where the reference kept three answers or more, and which of them are the same is not known.
    """
    walk = table.walks[reference_walk(table)]
    return np.asarray(walk.right | ~walk.known | (~table.texts_known & (walk.leaves > 2)), dtype=np.bool_)


def reference_cost(table: EpisodeTable) -> float | None:
    """Return the reference's mean cost, nano-USD, where it is on record for most questions."""
    held = (table.walks[name] for name in REFERENCES if name in table.walks)
    walk = next((one for one in held if one.known.mean() > MOSTLY), None)
    return None if walk is None or not table.cost_known else float(walk.cost[walk.known].mean())
