"""The reference of a log, and whether the log says enough about which answers are the same.

The reference is the model alone against which regret and savings are measured: the guide asked outright, if the log has
that walk, or else a ladder's last model. A promise on the one answer served also needs to know which answers are the
same (`check_identity`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Levels, ScoreArrays, levels
from cascade.conformal.served import votes_decide
from cascade.errors import UsageError
from cascade.guarantees.questions import Found, Questions, Scored
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


def check_identity(sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> None:
    """Raise UsageError if the single answer depends on which answers are equal, and the log does not record this.

    In such a log `EpisodeTable` counts all right answers as one answer: they would vote for each other, wrong ones not.

    Args:
        sample: the questions.
        abstain: whether how sure the cascade is of its answer matters too.
        kappa: the threshold, where only one will be looked at.

    Raises:
        UsageError: for some question the answer depends on it.
    """
    table, what, advice = sample.table, "Which one answer is served is decided by votes", ""
    many = untold(sample, kappa=kappa)
    if abstain and not many:
        what, advice = "How sure the cascade is of its answer depends on which answers equal it", "do not abstain, "
        many = untold(sample, abstain=True, kappa=kappa)
    if many:
        raise UsageError(
            f"{what} on {many} of {table.n} questions of {table.dataset}, and which of their answers are the same is "
            "not on record: the texts are not, or a model was told whether it was right. Log the answers' texts "
            f"(traces: content full), {advice}or promise coverage, which needs none."
        )


def untold(sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> int:
    """Return for how many questions the single answer depends on unrecorded equality of answers."""
    table = sample.table
    rows = np.flatnonzero(~table.texts_known)
    sure, found = table.sure[rows] if abstain else None, sample.levels.take(rows)
    present = (table.arrays.present & table.arrays.complete[:, None, None])[rows]
    voted = votes_decide(found, table.confidence[rows], sure=sure, kappa=kappa, present=present)
    return int(np.count_nonzero(voted))


class _Depths(NamedTuple):
    """Questions under a policy that stops after a fixed number of steps."""

    table: Questions
    levels: Levels
    is_reference: bool = False


def check_told(found: Sequence[Found], table: Questions) -> None:
    """Raise UsageError if nothing can be promised because records end early and texts are missing: both need repair.

    Args:
        found: the thresholds for a promise on the single answer.
        table: the calibration questions, as logged.

    Raises:
        UsageError: as `check_identity` does, of the answers after 1, 2, … steps.
    """
    if table.arrays.complete.all() or not any(one.refused is not None and one.needed_n is None for one in found):
        return
    try:
        check_identity(at_every_depth(table))
    except UsageError as error:
        early = int(np.count_nonzero(~table.arrays.complete))
        raise UsageError(f"{error} Of {early} questions the record ends early: log each to its last step.") from None


def at_every_depth(table: Questions) -> Scored:
    """Return the questions after 1, 2, … steps, every answer kept: the outcomes of policies that look at no signal."""
    onward = np.broadcast_to(-np.arange(1.0, table.arrays.horizon + 1), table.arrays.cost.shape)
    scores = ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)
    return _Depths(table, levels(table.arrays, scores))
