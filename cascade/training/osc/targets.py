"""What optimal stopping is fitted to: the loss of stopping after each step, and what each step costs.

Everything here is as if every answer of the steps taken were kept. A record that ends before its question does is
continued as if nothing changed: the same loss, and steps at their mean cost. That is for fitting alone; a certificate
counts such questions on the safe side (`conformal.rollout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cascade.calibration.reference import reference_right
from cascade.calibration.thresholds import spoken_of
from cascade.checks import did_you_mean
from cascade.conformal.arrays import Bools, Floats
from cascade.conformal.guarantee import KINDS
from cascade.conformal.rollout import Levels
from cascade.conformal.single import single
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError

WINSORISED_AT = 0.98
"""A quantile of a step's costs, at which they are cut for fitting: with costs whose standard deviation is 3.6 times the
mean, a handful of questions would set the slopes of all others."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a policy is fitted for.

    Attributes:
        kind: one of `conformal.guarantee.KINDS`.
        alpha: the mean loss that the calibration will allow, of the questions that the kind speaks of; None for
            "budget".
        budget_nano_usd: for "budget", the mean cost of a question that the calibration will allow, nano-USD.
        lambda_set: what one more answer in the set is charged with, in mean steps; 0 keeps every answer. It is without
            effect on "error" and "regret", which speak of the one answer served.

    Raises:
        UsageError: everything that is wrong with it.

    >>> Asked("coverage", 0.1).lambda_set
    0.0
    """

    kind: str
    alpha: float | None = None
    budget_nano_usd: float | None = None
    lambda_set: float = 0.0

    def __post_init__(self) -> None:
        problems = [*self._problems()]
        if problems:
            raise UsageError("; ".join(problems) + ".")

    def _problems(self) -> Iterator[str]:
        if self.kind not in KINDS:
            yield f"there is no guarantee {self.kind!r}{did_you_mean(self.kind, KINDS)}"
        elif self.kind == "budget":
            if self.budget_nano_usd is None or not self.budget_nano_usd > 0:
                yield f"budget_nano_usd is {self.budget_nano_usd}; it is a number above 0"
        elif self.alpha is None or not 0 <= self.alpha <= 1:
            yield f"alpha is {self.alpha}; it lies between 0 and 1"
        if not 0 <= self.lambda_set < np.inf:
            yield f"lambda_set is {self.lambda_set}; it is 0 or more"

    @property
    def single(self) -> bool:
        """Whether it speaks of the one answer served, not of the set."""
        return KINDS[self.kind].speaks_of == "single"

    @property
    def includes(self) -> bool:
        """Whether answers are left out of the set for what they are charged with."""
        return self.lambda_set > 0 and not self.single


class StepCost(NamedTuple):
    """What steps cost, for fitting.

    Attributes:
        values: float64 (n, T), in mean steps, cut at the 98th percentile of the step; 0 beyond the record of a complete
            question, the step's mean beyond that of one that is not.
        unit_nano_usd: what a mean step costs; None where a step counts as 1 because its cost is unknown, or nothing.
    """

    values: Floats
    unit_nano_usd: float | None


def on_record(table: EpisodeTable) -> Bools:
    """Return which steps are on record, bool (n, T)."""
    return np.asarray(np.arange(table.arrays.horizon) < table.arrays.steps[:, None])


def decides(table: EpisodeTable) -> Bools:
    """Return where a policy decides whether to go on, bool (n, T): not after the last step of a complete question."""
    last = np.arange(table.arrays.horizon) == table.arrays.steps[:, None] - 1
    found = on_record(table) & ~(last & table.arrays.complete[:, None])
    found[:, -1] = False
    return np.asarray(found)


def step_cost(table: EpisodeTable) -> StepCost:
    """Return what steps cost. Where any cost is unknown, or all are nothing, each step costs 1.

    Raises:
        UsageError: there is no question.
    """
    if not table.n:
        raise UsageError("There is no question to fit on.")
    held = on_record(table)
    known = table.cost_known and bool(table.arrays.cost[held].any())
    values = np.where(held, table.arrays.cost.astype(np.float64) if known else 1.0, np.nan)
    open_ended = ~table.arrays.complete
    for t in range(values.shape[1]):
        column, there = values[:, t], held[:, t]
        if there.any():
            np.minimum(column, np.quantile(column[there], WINSORISED_AT), out=column)
        beyond = float(column[there].mean()) if there.any() else 0.0
        column[~there] = np.where(open_ended[~there], beyond, 0.0)
    unit = float(values[held].mean()) or 1.0
    return StepCost(values / unit, unit if known else None)


def stop_loss(table: EpisodeTable, kind: str, confidence: Floats | None = None) -> Floats:
    """Return what stopping after each step loses, every answer so far kept: float64 (n, T) in 0..1.

    | kind | loss of stopping after step t, F being the first step with a right answer |
    |---|---|
    | `coverage`, `solvable`, `budget` | 1 where t < F < ∞; of an incomplete question without a right answer always 1 |
    | `f1` | what the best answer so far lacks to the best on record |
    | `error` | 1 where the answer served is wrong |
    | `regret` | the same, and the reference alone is right; 0 where that is not on record |

    Beyond the end of a record it stays what it was.

    Args:
        table: the questions.
        kind: one of `conformal.guarantee.KINDS`.
        confidence: float64 (n, T, m), what ranks the answers for `error` and `regret`; the strategy's own by default.

    Raises:
        UsageError: the log lacks what the kind needs.
    """
    if kind == "f1":
        return _quality_missing(table)
    if KINDS[kind].speaks_of != "single":
        return set_loss(table, np.logical_or.accumulate(table.arrays.correct.any(axis=2), axis=1))
    wrong = ~served_right(table, table.confidence if confidence is None else confidence)
    if kind == "regret":
        wrong &= (reference_right(table) & spoken_of(table, kind))[:, None]
    return wrong.astype(np.float64)


def set_loss(table: EpisodeTable, found: Bools) -> Floats:
    """Return the loss of coverage where `found`, bool (n, T), says by which step a right answer is kept."""
    hopeless = table.arrays.complete & ~table.arrays.solvable
    return np.where(found | hopeless[:, None], 0.0, 1.0)


def served_right(table: EpisodeTable, confidence: Floats) -> Bools:
    """Return whether the one answer served after each step is right, every answer so far kept: bool (n, T).

    The rule is `conformal.single`'s. Beyond the end of a record it stays what it was.
    """
    horizon = table.arrays.horizon
    return np.stack([right_after(table, confidence, step) for step in range(1, horizon + 1)], axis=1)


def right_after(table: EpisodeTable, confidence: Floats, step: int) -> Bools:
    """Return whether the answer served after a step, from 1, is right: bool (n,)."""
    arrays = table.arrays
    kept = arrays.present & (np.arange(arrays.horizon) < step)[None, :, None]
    leaf = np.where(kept, np.inf, -np.inf)
    return single(arrays, Levels(leaf[:, :, 0], leaf, kept), confidence, 0.0).right


def _quality_missing(table: EpisodeTable) -> Floats:
    if table.quality is None:
        raise UsageError(f"f1 needs to know how good each answer is, and {table.dataset} says only which are right.")
    quality = np.where(table.arrays.present, np.nan_to_num(table.quality, nan=0.0), 0.0).max(axis=2)
    so_far = np.maximum.accumulate(quality, axis=1)
    best = np.where(table.arrays.complete, so_far[:, -1], 1.0)
    return np.asarray(best[:, None] - so_far)


def spoken(table: EpisodeTable, kind: str) -> Floats:
    """Return which questions a kind speaks of, as weights of a mean: float64 (n,), 0 or 1.

    The loss of a question that it does not speak of is 0 and does not count; its cost does.
    """
    return np.asarray(spoken_of(table, kind), dtype=np.float64)


def allowed(table: EpisodeTable, asked: Asked) -> float:
    """Return the mean loss over all questions of a table that is asked for; its `alpha` is of those spoken of.

    Raises:
        UsageError: the kind is held against a mean cost, or the log lacks what it needs.
    """
    if asked.alpha is None:
        raise UsageError("A budget allows a cost, not a loss.")
    return asked.alpha * float(spoken(table, asked.kind).mean())
