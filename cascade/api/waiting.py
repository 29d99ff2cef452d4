"""The waiting time of a fitted policy when a second has a price, and hedging: starting the reference's call early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cascade.api.fit_levels import LevelsFit
from cascade.api.fit_report import PolicyFit
from cascade.api.output import Tell, per_thousand
from cascade.calibration.samples import FOLDS, among, folds, joined
from cascade.calibration.scores import play, sample_of
from cascade.conformal.arrays import Bools, Floats
from cascade.episodes.seconds import clocked, seconds_of
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.logs import Log
from cascade.guarantees.questions import ends_in_reference, reference_walk
from cascade.policies.artifact import HEDGE_FILE, Threshold
from cascade.training.fitting import Fitted
from cascade.training.hedging import HeldOut, Walks, fit_hedge, held_out, walks_of, ways

_NANO = 1_000_000_000
_LEAST_QUESTIONS = 100
"""Minimum number of questions for fitting a hedge."""


def timed(fit: Any, log: Log, tables: Sequence[EpisodeTable], usd_a_second: float, seed: int, tell: Tell) -> Any:
    """Return a fit whose policies have a hedge where that pays; report to `tell` how long callers wait.

    Args:
        fit: the result of a fit; only a policy with a certificate, or one for each level, is looked at.
        log: what it was fitted on.
        tables: its questions, with costs that count this price a second.
        usd_a_second: the price.
        seed: draws the folds.
        tell: is called with each sentence.
    """
    if isinstance(fit, LevelsFit):
        levels = fit.fits.items()
        made = {name: _timed(one, log, tables, usd_a_second, seed, tell, f"level {name}: ") for name, one in levels}
        return replace(fit, fits=made)
    return _timed(fit, log, tables, usd_a_second, seed, tell, "") if isinstance(fit, PolicyFit) else fit


def _timed(
    fit: PolicyFit, log: Log, tables: Sequence[EpisodeTable], price: float, seed: int, tell: Tell, of: str
) -> PolicyFit:
    tell(f"{of}{waits(fit.fitted, tables, price)}")
    walks = _walks(fit.fitted, log, tables)
    if walks is None:
        return fit
    found, shown = walks
    if not shown.any():
        return fit
    fold = folds(joined(tables), FOLDS, seed)[found.rows]
    brings = held_out(found, fold, price, shown)
    pays = brings.hedged.priced(price) < brings.sequential.priced(price)
    for said in _said(brings, price, pays=pays):
        tell(f"{of}{said}")
    if not pays:
        return fit
    document = {"questions": brings.questions, "begun": brings.begun, "unused": brings.unused}
    made = replace(fit_hedge(found, price), held_out=document | {name: way._asdict() for name, way in ways(brings)})
    artifact = fit.fitted.artifact
    held = replace(artifact, files={**artifact.files, HEDGE_FILE: made.dumps()})
    return replace(fit, fitted=replace(fit.fitted, artifact=held))


def _walks(fitted: Fitted, log: Log, tables: Sequence[EpisodeTable]) -> tuple[Walks, Bools] | None:
    """Return the fitted policy's path on each question, and a mask of the questions that certify it."""
    if fitted.policy.asks:
        return None  # the log is without the embeddings that it reads
    table = joined(tables)
    money = replace(table, arrays=replace(table.arrays, cost=np.nan_to_num(table.paid).astype(np.int64)))
    segments = {one.segment: -np.inf if one.keeps_everything else one.kappa for one in fitted.artifact.certificates}
    found = walks_of(money, clocked(table, seconds_of(log.rows())), fitted.policy, segments)
    if found is None or found.n < _LEAST_QUESTIONS or len(set(table.groups)) < FOLDS:
        return None
    return found, among(table, {*fitted.artifact.questions})[found.rows]


def _said(brings: HeldOut, price: float, *, pays: bool) -> Iterator[str]:
    """Yield sentences about what hedging saves and costs."""
    listed = "; ".join(
        f"{name} {per_thousand(way.cost_usd)}, {way.seconds:.2f} s (95 % within {way.p95_s:.2f} s)"
        for name, way in ways(brings)
    )
    yield (
        f"A hedge begins the reference's call early. On {brings.questions:,} questions that it was not fitted on, in "
        f"USD per 1,000 questions and seconds a question: {listed}."
    )
    if pays:
        yield (
            f"The hedge is kept in the policy directory: it begins {brings.begun:.0%} of the references early, and "
            f"{brings.unused:.0%} for nothing. It changes no answer. policy.hedge: false turns it off."
        )
    else:
        yield f"At {price:g} USD a second a hedge costs more than it saves, so none is kept."


def waits(fitted: Fitted, tables: Sequence[EpisodeTable], usd_a_second: float) -> str:
    """Return a sentence with the seconds that the policy and the reference alone take, from costs that count seconds.

    Args:
        fitted: the policy, at the threshold of its first certificate.
        tables: the log, with costs that count this price a second.
        usd_a_second: the price.
    """
    spent, alone, questions = 0.0, 0.0, 0
    for table in tables:
        sample, at = sample_of(table, fitted.policy), Threshold(fitted.artifact.certificates[0].kappa)
        money = np.nan_to_num(sample.table.paid).astype(np.int64)
        bare = replace(sample.table, arrays=replace(sample.table.arrays, cost=money))
        both = play(sample.table, sample.scores, at).cost - play(bare, sample.scores, at).cost
        spent += float(both.sum())
        alone += _alone(table)
        questions += table.n
    price = usd_a_second * _NANO * max(questions, 1)
    beside = f"; the reference alone takes {alone / price:.2f} s" if alone else ""
    return (
        f"A second counts as {usd_a_second:g} USD, and costs are both together. The policy takes {spent / price:.2f} s "
        f"a question on the whole log{beside}. Logs do not say when the first byte came."
    )


def _alone(table: EpisodeTable) -> float:
    """Return the price of the seconds of the reference alone; 0 if the log's last step is not the reference."""
    if not ends_in_reference(table):
        return 0.0
    walk = table.walks[reference_walk(table)]
    seconds: Floats = np.where(walk.known, walk.cost, 0) - np.nan_to_num(table.paid[:, -1])
    return max(0.0, float(seconds.sum()))
