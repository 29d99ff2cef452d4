"""Whether a log says enough about which answers are the same for a promise on the one answer served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import ScoreArrays
from cascade.conformal.rollout import Levels, levels
from cascade.conformal.served import votes_decide
from cascade.errors import UsageError
from cascade.guarantees.questions import Found, Questions, Scored


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
