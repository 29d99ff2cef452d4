"""The reference of a log: the model alone against which regret and savings are measured.

It is the guide asked outright, if the log has that walk, or else a ladder's last model.
"""

from __future__ import annotations

import numpy as np

from cascade.conformal.arrays import Bools
from cascade.errors import UsageError
from cascade.guarantees.questions import Questions
from cascade.types import GUIDE_ONLY, LAST_ONLY

REFERENCES = (GUIDE_ONLY, LAST_ONLY)
"""The walks that can be the reference; the first one that a log has is taken."""
MOSTLY = 0.5
"""A walk gives the reference's cost only if the log has it for more than this share of the questions."""


def reference_walk(table: Questions) -> str:
    """Return the name of the walk that is the reference.

    Raises:
        UsageError: the log has no reference for any question.
    """
    for name in REFERENCES:
        if name in table.walks and table.walks[name].known.any():
            return name
    raise UsageError(
        f"regret compares with the guide alone, but {table.dataset} has no walk {GUIDE_ONLY!r} on record. Collect "
        "one with cascade collect, or ask for error."
    )


def has_reference(table: Questions) -> bool:
    """Return whether the log has a reference for any question."""
    return any(name in table.walks and table.walks[name].known.any() for name in REFERENCES)


def ends_in_reference(table: Questions) -> bool:
    """Return whether the last step of the log is the reference itself, as in a ladder: its answer then has no regret.

    This is so if the reference is the walk of the last model. It is also so if each of several models gives one answer
    a step, and the guide's own walk cost the same and was right on the same questions as the last step.
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


def reference_known(table: Questions) -> Bools:
    """Return for which questions the log has the reference's answer: bool (n,).

    Raises:
        UsageError: it has none for any question.
    """
    return np.asarray(table.walks[reference_walk(table)].known, dtype=np.bool_)


def reference_right(table: Questions) -> Bools:
    """Return whether the reference alone is right, bool (n,); True where that is unknown, which is the safe side.

    It is also unknown where the reference kept three answers or more and the log does not say which of them are equal.
    """
    walk = table.walks[reference_walk(table)]
    return np.asarray(walk.right | ~walk.known | (~table.texts_known & (walk.leaves > 2)), dtype=np.bool_)
