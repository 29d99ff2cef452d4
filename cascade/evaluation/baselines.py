"""What stands beside a policy: ways to answer that need none, and what knowing every answer beforehand would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cascade.calibration.realised import play
from cascade.calibration.thresholds import REFERENCES
from cascade.conformal.arrays import Bools, Floats, Ints, ScoreArrays
from cascade.conformal.rollout import hopeless
from cascade.episodes.schema import BASE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.policies.calibrated import EVERYTHING, Threshold

ALL_STEPS = "all steps"
FIRST_STEP = "first step"
GUIDE, ALL = "guide", "all"
_MOST = 0.5


@dataclass(frozen=True, slots=True)
class Alone:
    """One fixed way to answer, question by question: what is paid today, or could be without a policy.

    Attributes:
        name: what it is called.
        known: bool (n,), whether it is on record for the question; the rest means nothing where not.
        right: bool (n,), whether its one answer is right.
        in_set: bool (n,), whether a right answer is among those it keeps.
        cost: float64 (n,), nano-USD.
        length, answers: float64 (n,), steps paid, different answers kept.
    """

    name: str
    known: Bools
    right: Bools
    in_set: Bools
    cost: Floats
    length: Floats
    answers: Floats

    def take(self, rows: Ints | Bools) -> Alone:
        """Return the chosen questions."""
        truths = self.known[rows], self.right[rows], self.in_set[rows]
        return Alone(self.name, *truths, self.cost[rows], self.length[rows], self.answers[rows])


def walked(table: EpisodeTable, name: str) -> Alone | None:
    """Return a walk of the log that is on record for more than half of the questions; None where it is not."""
    walk = table.walks.get(name)
    if walk is None or not walk.known.mean() > _MOST:
        return None
    cost, length, answers = (column.astype(np.float64) for column in (walk.cost, walk.length, walk.distinct))
    return Alone(name, walk.known, walk.right & walk.known, walk.covered & walk.known, cost, length, answers)


def all_steps(table: EpisodeTable) -> Alone:
    """Return what running every step brings: of all the answers kept, the one that would be served."""
    scores = ScoreArrays(np.full(table.arrays.answer.shape, np.inf), np.full(table.arrays.cost.shape, np.inf))
    return _stepped(table, ALL_STEPS, scores, EVERYTHING)


def first_step(table: EpisodeTable) -> Alone:
    """Return what stopping after the first step brings, every answer of it kept."""
    scores = ScoreArrays(np.full(table.arrays.answer.shape, np.inf), np.full(table.arrays.cost.shape, -np.inf))
    return _stepped(table, FIRST_STEP, scores, Threshold(0.0))


def _stepped(table: EpisodeTable, name: str, scores: ScoreArrays, threshold: Threshold) -> Alone:
    played = play(table, scores, threshold)
    known = np.ones(table.n, dtype=np.bool_)
    return Alone(name, known, played.right > 0, played.in_set > 0, played.cost, played.length, played.distinct)


def reference_of(table: EpisodeTable, wanted: str | None = None) -> Alone:
    """Return what savings are held against.

    Args:
        table: the questions.
        wanted: "guide": the guide alone, or a ladder's last model; "all": every step. By default the first where it is
            on record for most questions, else the second.

    Raises:
        UsageError: the guide alone is asked for and is not on record.
    """
    found = None if wanted == ALL else next((one for name in REFERENCES if (one := walked(table, name))), None)
    if found is None and wanted == GUIDE:
        listed = " or ".join(repr(name) for name in REFERENCES)
        raise UsageError(f"{table.dataset} has no walk {listed} on record for most of its questions.")
    return found or all_steps(table)


def simple_ways(table: EpisodeTable, reference: Alone) -> list[Alone]:
    """Return the ways to answer without a policy that stand beside the reference: one model, one step, all steps.

    Where the first step is one model's answer, that model alone and the first step are the same, and stand once.
    """
    base = walked(table, BASE_ONLY)
    first = first_step(table)
    found = [] if base is None else [base]
    if base is None or not (np.array_equal(base.right, first.right) and np.array_equal(base.cost, first.cost)):
        found.append(first)
    return [*found, *([] if reference.name == ALL_STEPS else [all_steps(table)])]


def broken(table: EpisodeTable, kind: str, right: Bools, in_set: Bools, reference_right: Bools | None) -> Floats:
    """Return which questions count against a promise: float64 (n,), 0 or 1, NaN where it does not speak of one.

    Args:
        table: the questions.
        kind: coverage, solvable, error or regret.
        right: bool (n,), whether the one answer served is right.
        in_set: bool (n,), whether a right answer is among those kept.
        reference_right: for regret, bool (n,), whether the reference is right.
    """
    if kind == "error":
        return np.asarray(~right, dtype=np.float64)
    if kind == "regret":
        if reference_right is None:
            raise UsageError("regret is held against a reference, and none is given.")
        return np.asarray(~right & reference_right, dtype=np.float64)
    missed = ~in_set & ~hopeless(table.arrays)
    spoken = table.arrays.solvable | ~table.arrays.complete if kind == "solvable" else np.ones(table.n, dtype=np.bool_)
    return np.where(spoken, missed.astype(np.float64), np.nan)


class Knowing(NamedTuple):
    """What one could do who knows every answer beforehand.

    Attributes:
        cost_nano_usd: the least mean cost at which the promise is kept; None where it cannot be.
        lost: the share of questions that count against the promise whatever is done.
    """

    cost_nano_usd: float | None
    lost: float


def knowing_everything(table: EpisodeTable, kind: str, alpha: float, reference_right: Bools | None) -> Knowing:
    """Return what a promise costs one who knows every answer: no policy over these steps keeps it for less.

    It pays up to the first right step where a miss would count, one step elsewhere, and gives up the dearest questions
    as far as alpha allows.

    Args:
        table: the questions; their costs are known.
        kind: coverage, solvable, error or regret.
        alpha: the share that may be missed.
        reference_right: for regret, bool (n,), whether the reference is right.
    """
    steps = table.arrays
    solvable, lost = steps.solvable, ~steps.solvable
    wanted = solvable if reference_right is None else solvable & reference_right
    if reference_right is not None:
        lost = lost & reference_right
    elif kind != "error":
        lost = lost & ~hopeless(steps)
    counted = int(np.count_nonzero(solvable | lost)) if kind == "solvable" else table.n
    may = math.floor(alpha * counted + 1e-9) - int(np.count_nonzero(lost))
    share = float(np.count_nonzero(lost)) / max(counted, 1)
    if may < 0:
        return Knowing(None, share)
    stop = steps.correct.any(axis=2).argmax(axis=1)
    beyond = np.where(wanted, np.cumsum(steps.cost, axis=1)[np.arange(table.n), stop] - steps.cost[:, 0], 0)
    kept = np.sort(beyond)[: max(0, table.n - may)]
    return Knowing(float(steps.cost[:, 0].mean() + kept.sum() / table.n), share)
