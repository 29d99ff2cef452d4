"""Holding a certificate to account on questions that neither it nor its policy has seen.

A promise is refuted where what is seen has a probability of at most 5 % if it is kept:

| promise | law |
|---|---|
| a share of questions, on average over calibrations | Beta-binomial: the luck of the calibration is in it |
| a share of questions, with delta | binomial at alpha |
| the same by cross-calibration | binomial at its alpha, twice that asked for; its calibration's luck has no known law |
| a mean, with delta | betting (`conformal.betting`) |
| a mean, on average over calibrations | betting at alpha + (0.74 + √(ln(1/p)/2))/√n, p = 2.5 %: luck of a calibration |

Reference: the last law is Massart, The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality (1990), over the
levels of a monotone loss, with McDiarmid (1989); the proof is in `design/certificates.md`.

What a record does not show is not held against a promise: a question counts as lost only where it surely is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cascade.calibration.realised import Played, play
from cascade.calibration.samples import places
from cascade.calibration.thresholds import Sample
from cascade.conformal.arrays import Bools, Floats
from cascade.conformal.beta_binomial import misses_p_value
from cascade.conformal.betting import mean_below_p_value
from cascade.conformal.binomial import as_written, lower_bound, lower_tail, upper_bound
from cascade.conformal.certificate import dollars
from cascade.conformal.guarantee import KINDS
from cascade.conformal.risk import loss_levels
from cascade.conformal.served import PathPoint
from cascade.policies.calibrated import Threshold
from cascade.types import Certificate

LEVEL = 0.05
"""A promise is refuted where what is seen has at most this probability under it."""
_LUCK = 0.025
"""The part of it that is granted to the luck of a calibration which has no exact law."""
_SUPREMUM = 0.74  # √(ln 2 / 2) + √(π/8)·erfc(√(ln 2)) = 0.739


class Told(NamedTuple):
    """Whether a promise stands, and what was seen."""

    ok: bool
    said: str


def on_fresh(certificates: Sequence[Certificate], sample: Sample) -> Iterator[Told]:
    """Yield what fresh questions say of each promise that they can speak of.

    Args:
        certificates: of one calibration.
        sample: questions that neither the policy nor the calibration has seen, one of each group.

    Guarantee: if the fresh questions are like the calibration's, a promise that is kept is refuted with probability at
    most 5 %, one with delta with at most delta more; for each promise by itself.

    A pool of small segments is reported and not tested: it speaks of one fresh question beside the calibration's, and
    many fresh ones mix the segments in other shares.
    """
    place = places([one.name for one in certificates], sample.table)
    for number, one in enumerate(certificates):
        rows = place == number
        if not rows.any():
            continue
        if KINDS[one.kind].monitored:
            yield _share(one, sample, rows)
        elif one.alpha is not None:
            yield _graded(one, sample, rows)
        if one.budget_nano_usd is not None:
            yield _cost(one, sample, rows)


def _share(one: Certificate, sample: Sample, rows: Bools) -> Told:
    """Hold a promise about a share of questions to account."""
    lost, counted = _losses(one, sample, rows)
    m, losses = int(np.count_nonzero(counted)), int(np.count_nonzero(lost & counted))
    if not m:
        return Told(ok=True, said=f"{_whom(one)}no fresh question counts")
    low, high = lower_bound(losses, m, LEVEL), upper_bound(losses, m, LEVEL)
    said = (
        f"{_whom(one)}{losses} of {m} fresh questions lost: a rate above {low:.4f} and below {high:.4f}, each at 95 %"
    )
    if one.pool:
        return Told(ok=True, said=f"{said}; small segments together, reported only")
    assert one.alpha is not None  # noqa: S101 - it promises a share
    if one.k is not None and one.delta is None:
        return _verdict(said, f"alpha {one.alpha:g}", misses_p_value(losses, m, one.n, one.k))
    rest = float(1 - as_written(one.alpha))  # of 0.18 it is 0.82, where 1 − 0.18 in floats is not
    return _verdict(said, f"alpha {one.alpha:g}", lower_tail(m - losses, m, rest))


def _losses(one: Certificate, sample: Sample, rows: Bools) -> tuple[Bools, Bools]:
    """Return which questions are surely lost, and which count."""
    steps = sample.table.arrays
    if KINDS[one.kind].speaks_of == "single":
        below = -math.inf if one.abstain_below is None else one.abstain_below
        found = sample.served(one.kind, abstain=one.abstain_below is not None, kappa=one.kappa)
        at = found.at(PathPoint(one.kappa, below))
        return at.loss & ~at.cut, rows
    played = _played(one, sample)
    # Off the end of a record there may be a right answer; before it there may be one that the walk did not come to.
    known = steps.complete | (steps.solvable & (played.length < steps.steps))
    lost = (played.covered == 0) & known
    return lost, rows & steps.solvable if one.kind == "solvable" else rows


def _played(one: Certificate, sample: Sample) -> Played:
    return play(sample.table, sample.scores, Threshold(one.kappa, one.keeps_everything))


def _graded(one: Certificate, sample: Sample, rows: Bools) -> Told:
    """Hold a promise about a graded loss to account."""
    table = sample.table
    if table.quality is None:
        return Told(ok=True, said=f"{_whom(one)}the log does not say how good answers are: not tested")
    losses = loss_levels(table.arrays, sample.levels, table.quality, relative=True)
    known = table.arrays.complete & ~(table.arrays.present & np.isnan(table.quality)).any(axis=(1, 2))
    kept = known & (not one.keeps_everything)
    found = np.where(kept, losses.at(one.kappa) / losses.units, 0.0)[rows]
    assert one.alpha is not None  # noqa: S101 - it promises a mean
    said = f"{_whom(one)}{found.size} fresh questions lack {found.mean():.4f} of the best F1 on average"
    return _on_mean(said, f"alpha {one.alpha:g}", found, one, one.alpha, 1.0)


def _cost(one: Certificate, sample: Sample, rows: Bools) -> Told:
    """Hold a promise about a mean cost to account, and the cap that it rests on."""
    budget, most = one.budget_nano_usd, one.made_for.get("most_nano_usd")
    if not sample.table.cost_known or budget is None or most is None:
        return Told(ok=True, said=f"{_whom(one)}some costs are unknown: the budget is not tested")
    found = _played(one, sample).cost[rows]
    said = f"{_whom(one)}{found.size} fresh questions cost {found.mean() / 1e9:.6g} USD on average"
    above = int(np.count_nonzero(found > most))
    if above:
        cap = f"the cap of {dollars(most)} that the promise rests on"
        return Told(ok=False, said=f"{said}, {above} of them more than {cap}")
    return _on_mean(said, f"a budget of {dollars(budget)}", found, one, float(budget), float(most))


def _mean_p_value(values: Floats, one: Certificate, bound: float, upper: float) -> float:
    """Return a p-value for "the promise that the mean is at most `bound` is kept"."""
    bound += _allowance(one, upper)
    spent = _LUCK if one.delta is None else 0.0
    if bound >= upper:
        return 1.0
    return min(1.0, spent + mean_below_p_value(upper - values, upper - bound, upper))


def _allowance(one: Certificate, upper: float) -> float:
    """Return what is granted to the luck of a calibration, in the unit of `upper`; nothing with delta."""
    if one.delta is not None:
        return 0.0
    return upper * (_SUPREMUM + math.sqrt(math.log(1 / _LUCK) / 2)) / math.sqrt(max(one.n, 1))


def _on_mean(said: str, promised: str, values: Floats, one: Certificate, bound: float, upper: float) -> Told:
    """Return the verdict on a mean; not that it stands where luck alone may explain more than is promised and seen."""
    p, allowance = _mean_p_value(values, one, bound, upper), _allowance(one, upper)
    if p > LEVEL and allowance > max(bound, float(values.mean())):
        return Told(ok=True, said=f"{said}; too few calibration questions to tell whether {promised} is kept")
    return _verdict(said, promised, p)


def _verdict(said: str, promised: str, p: float) -> Told:
    word = "refuted" if p <= LEVEL else "not refuted"
    return Told(p > LEVEL, f"{said}; {promised} is {word} (p = {p:.3g})")


def _whom(one: Certificate) -> str:
    return "" if one.name is None else f"segment {one.name}: "
