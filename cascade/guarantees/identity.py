"""Whether a log says enough about which answers are the same for a promise on the one answer served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import ScoreArrays
from cascade.conformal.identity import hangs_on_identity
from cascade.conformal.rollout import Levels, levels
from cascade.errors import UsageError
from cascade.guarantees.found import Found
from cascade.guarantees.questions import Questions, Scored


def check_identity(sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> None:
    """Refuse a promise on the one answer where it hangs on which answers are the same, and the log does not say it.

    There `EpisodeTable` takes all right answers for one: they would vote for each other, and the wrong ones not.

    Args:
        sample: the questions.
        abstain: whether how sure the cascade is of its answer matters too.
        kappa: the threshold, where only one will be looked at.

    Raises:
        UsageError: so it is of some question.
    """
    table, what, advice = sample.table, "Which one answer is served is decided by votes", ""
    many = untold(sample, kappa=kappa)
    if abstain and not many:
        what, advice = "How sure the cascade is of its answer hangs on those that equal it", "do not abstain, "
        many = untold(sample, abstain=True, kappa=kappa)
    if many:
        raise UsageError(
            f"{what} on {many} of {table.n} questions of {table.dataset}, and which of their answers are the same is "
            "not on record: the texts are not, or a model was told whether it was right. Log the answers' texts "
            f"(traces: content full), {advice}or promise coverage, which needs none."
        )


def untold(sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> int:
    """Return on how many questions the one answer hangs on which answers are the same, and the log does not say it."""
    table = sample.table
    rows = np.flatnonzero(~table.texts_known)
    sure, found = table.sure[rows] if abstain else None, sample.levels.take(rows)
    present = (table.arrays.present & table.arrays.complete[:, None, None])[rows]
    hangs = hangs_on_identity(found, table.confidence[rows], sure=sure, kappa=kappa, present=present)
    return int(np.count_nonzero(hangs))


class _Depths(NamedTuple):
    """Questions under a policy that stops after a number of steps, whatever they bring."""

    table: Questions
    levels: Levels
    is_reference: bool = False


def check_told(found: Sequence[Found], table: Questions) -> None:
    """Refuse a log that ends early and keeps no texts, where nothing can be promised from it: both are to be mended.

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
    """Return questions as they stand after 1, 2, … steps, every answer kept: what looks at nothing comes to these."""
    onward = np.broadcast_to(-np.arange(1.0, table.arrays.horizon + 1), table.arrays.cost.shape)
    scores = ScoreArrays(np.full(table.arrays.answer.shape, np.inf), onward)
    return _Depths(table, levels(table.arrays, scores))
