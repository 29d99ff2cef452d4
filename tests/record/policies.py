"""What fixed policies are certified for on a kept log (`logs`), as `outcomes` says it of a world.

The policies: going on while a signal is high, or low; UALA; one threshold on each rung, tuned on another half of the
questions; and, without a certificate, every fixed depth and every recorded walk (LLM-exit, LLM as policy, the guide).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cascade.calibration.samples import rung_doubt
from cascade.calibration.scores import scored
from cascade.conformal.arrays import ScoreArrays
from cascade.conformal.served import last_resort, served_right
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import Truth, has_reference
from cascade.policies.threshold import ThresholdPolicy
from cascade.training.simple import threshold_per_rung
from cascade.training.stages import FitTarget
from record.outcomes import Case, outcome_of
from record.worlds import DELTA

ALPHAS = {0.05: 0.3, 0.02: 0.2}
"""The rates that promises allow; beside each the rate where no last answer is safe, and less can be promised."""


def outcomes(table: EpisodeTable) -> dict[str, Any]:
    """Return what each policy comes to on a log."""
    found: dict[str, Any] = {"depths": list(_depths(table)), "walks": _walks(table)}
    for name, scores, told in _policies(table):
        for alpha in ALPHAS:
            for promise, guarantee, path in _promises(table, alpha):
                read = _compared(table) if promise == "agreement" else table
                found[f"{name}, {promise} {guarantee.alpha:g}"] = _told(Case(name, guarantee, read, scores, path), told)
    return found


def _told(case: Case, kappa: bool) -> Any:
    """Return a case's outcome; without the threshold where that comes out of a logarithm."""
    try:
        found = outcome_of(case, 0)
    except UsageError as error:
        return type(error).__name__
    if not kappa:
        found["found"] = [[each for each in one if not _is_hex(each)] for one in found["found"]]
        found.pop("path", None)
    return found


def _is_hex(value: object) -> bool:
    return isinstance(value, str) and ("0x" in value or value.endswith("inf"))


def _promises(table: EpisodeTable, alpha: float) -> Iterator[tuple[str, Guarantee, str | None]]:
    yield "coverage", Guarantee("coverage", alpha), None
    yield "coverage delta", Guarantee("coverage", alpha, DELTA), None
    yield "error", Guarantee("error", ALPHAS[alpha], DELTA), "ordered"
    if len(set(table.segments)) > 1:
        yield "coverage segments", Guarantee("coverage", alpha, by_segment=True), None
    if not has_reference(table):
        return
    regret = Guarantee("regret", alpha, DELTA)
    strict = regret.rules.strict_first(table, regret)
    if not strict:
        yield "regret", Guarantee("regret", ALPHAS[alpha], DELTA), "ordered"
        return
    yield "regret", regret, None
    if bool(table.texts_known.all()):
        yield "agreement", Guarantee("agreement", alpha, DELTA), None


def _policies(table: EpisodeTable) -> Iterator[tuple[str, ScoreArrays, bool]]:
    """Yield the scores of each policy, and whether its thresholds are exact."""
    everything = np.full(table.arrays.answer.shape, np.inf)
    for signal, values in sorted(table.signals.items()):
        if not np.isnan(values).all():
            yield f"{signal} high", ScoreArrays(everything, values), True
            yield f"{signal} low", ScoreArrays(everything, -values), True
    if "p_yes" in table.signals:
        yield "uala", scored(ThresholdPolicy(keep="both"), table)[1], False
    doubt = rung_doubt(table)
    if doubt is not None:
        half = np.arange(0, table.n, 2)
        policy = threshold_per_rung(table.take(half), doubt, FitTarget("coverage", min(ALPHAS)))
        yield "per rung", scored(policy, table)[1], True


def _compared(table: EpisodeTable) -> EpisodeTable:
    """Return the table in which "right" is "equal to the last model's"."""
    arrays = table.arrays
    last = arrays.answer[:, -1:, :1]
    (name,) = (name for name in ("guide only", "last model only") if name in table.walks)
    same = (arrays.answer == last) & (last >= 0) & table.walks[name].known[:, None, None]
    walk = replace(table.walks[name], right=table.walks[name].known)
    truth = table.truth or Truth("large", "exact")
    return replace(table, arrays=replace(arrays, correct=same), truth=truth, walks={name: walk})


def _depths(table: EpisodeTable) -> Iterator[list[int]]:
    """Yield of each fixed depth: the cost, the questions with a right answer kept, and those served rightly."""
    arrays = table.arrays
    kept = np.logical_or.accumulate(arrays.correct.any(axis=2), axis=1)
    right = served_right(arrays, table.confidence)
    for step in range(arrays.horizon):
        cost = int(arrays.cost[:, : step + 1].sum())
        yield [cost, int(kept[:, step].sum()), int(right[:, step].sum())]
    yield [int(last_resort(arrays, table.confidence).sum()), int(table.cost_known), table.n]


def _walks(table: EpisodeTable) -> dict[str, list[int]]:
    """Return of each recorded walk: how often it is known, covers and is right, its cost, steps and answers."""
    return {
        name: [int(walk.known.sum())]
        + [int(values[walk.known].sum()) for values in (walk.covered, walk.right, walk.cost, walk.length, walk.leaves)]
        for name, walk in sorted(table.walks.items())
    }
