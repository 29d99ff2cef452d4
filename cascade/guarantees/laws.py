"""Test a certificate on questions that neither the certificate nor its policy has seen.

A promise is refuted if a result at least as bad as the observed one has a probability of at most 5 % under the promise.
The test for each promise:

| promise | law |
|---|---|
| a share of questions, on average over calibrations | Beta-binomial, which includes the luck of the calibration |
| a share of questions, with delta | binomial at alpha |
| a mean, with delta | betting (`conformal.monitor`) |
| a mean, on average over calibrations | betting at alpha + (0.74 + √(ln(1/p)/2))/√n, p = 2.5 %: luck of a calibration |

Reference: the last law is Massart, The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality (1990), over the
levels of a monotone loss, with McDiarmid (1989); the proof is in `design/certificates.md`.

Missing records do not count against a promise: a question counts as lost only if that is certain.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import (
    Floats,
    Levels,
    Outcomes,
    ScoreArrays,
    as_written,
    levels,
    open_end,
    passed,
    rollout,
)
from cascade.conformal.binomial import lower_bound, lower_tail, misses_p_value, upper_bound
from cascade.conformal.monitor import mean_below_p_value
from cascade.guarantees.questions import Misses, Scored
from cascade.money import dollars
from cascade.types import Certificate

LEVEL = 0.05
"""A promise is refuted if its p-value is at most this."""
_LUCK = 0.025
"""The part of `LEVEL` for an unlucky calibration, if the exact distribution of its luck is unknown."""
_SUPREMUM = 0.74  # √(ln 2 / 2) + √(π/8)·erfc(√(ln 2)) = 0.739


class Told(NamedTuple):
    """Whether a promise passed its test, and the figures in words."""

    ok: bool
    said: str


def on_share(one: Certificate, seen: Misses) -> Told:
    """Test a promise about a share of questions.

    A question that may be lost, because the log lacks a call or a judgement there, counts for the promise in one test
    and against it in another: if the two differ, the log decides nothing, and the check fails.

    A pool of small segments is reported but not tested: its promise is about one fresh question, and the segments'
    shares may differ between many fresh questions and the calibration questions.
    """
    m, losses = int(np.count_nonzero(seen.counted)), int(np.count_nonzero(seen.surely & seen.counted))
    most = int(np.count_nonzero((seen.missed | seen.surely) & seen.counted))
    if not m:
        return Told(ok=True, said=f"{whom(one)}the promise covers no fresh question")
    low, high = lower_bound(losses, m, LEVEL), upper_bound(most, m, LEVEL)
    said = f"{whom(one)}{losses} of {m} fresh questions lost"
    if most > losses:
        said += f", and of {most - losses} more it is unknown, since the log lacks a call or a judgement there"
    said += f": a rate above {low:.4f} and below {high:.4f}, each at 95 %"
    if one.pool:
        return Told(ok=True, said=f"{said}; small segments together, reported only")
    assert one.alpha is not None  # noqa: S101 - it promises a share
    least, worst = (_share_p_value(one, one.alpha, count, m) for count in (losses, most))
    promised = f"alpha {one.alpha:g}"
    return _decided(said, promised, _verdict(said, promised, least), _verdict(said, promised, worst))


def _share_p_value(one: Certificate, alpha: float, losses: int, m: int) -> float:
    if one.k is not None and one.delta is None:
        return misses_p_value(losses, m, one.n, one.k)
    rest = float(1 - as_written(alpha))  # 0.82 for 0.18; in floats, 1 − 0.18 is not 0.82
    return lower_tail(m - losses, m, rest)


def on_losses(one: Certificate, losses: Floats, most: Floats, what: str) -> Told:
    """Test a promise about a mean of losses on the questions that the promise covers.

    Args:
        one: the promise.
        losses: float64 (m,), each in 0..1, with 0 where the log does not say it.
        most: the same, with the loss that counts in a calibration where the log does not say it.
        what: the sentence on the mean, with a place for it.
    """
    assert one.alpha is not None  # noqa: S101 - it promises a mean
    said = f"{whom(one)}{losses.size} fresh questions {_from_to(what, losses, most)}"
    promised = f"alpha {one.alpha:g}"
    best, worst = (_on_mean(said, promised, values, one, one.alpha, 1.0) for values in (losses, most))
    return _decided(said, promised, best, worst)


def on_cost(one: Certificate, sample: Scored) -> Told:
    """Test a promise about a mean cost, and check the cap that it assumes.

    A question where the log lacks a call that the policy makes costs at least its logged calls, and at most the cap.
    """
    budget, cap = one.budget_nano_usd, one.made_for.get("most_nano_usd")
    if not sample.table.cost_known or budget is None or cap is None:
        return Told(ok=True, said=f"{whom(one)}some costs are unknown: the budget is not tested")
    found = played_at(one, sample).cost.astype(np.float64)
    ends = (passed(_levels_of(one, sample).reach, one.kappa) & open_end(sample.table.arrays)).any(axis=1)
    most = np.where(ends, np.maximum(found, float(cap)), found)
    said = f"{whom(one)}{found.size} fresh questions cost {_from_to('{:.6g} USD on average', found / 1e9, most / 1e9)}"
    above = int(np.count_nonzero(found > cap))
    if above:
        return Told(
            ok=False, said=f"{said}, {above} of them more than the cap of {dollars(cap)} that the promise assumes"
        )
    promised = f"a budget of {dollars(budget)}"
    best, worst = (_on_mean(said, promised, values, one, float(budget), float(cap)) for values in (found, most))
    return _decided(said, promised, best, worst)


def _from_to(what: str, least: Floats, most: Floats) -> str:
    """Return a sentence on a mean; with both bounds if the log does not say the mean."""
    said = what.format(least.mean())
    return said if np.array_equal(least, most) else f"{said} as logged, and at most {most.mean():.6g}"


def _decided(said: str, promised: str, best: Told, worst: Told) -> Told:
    """Return the result of a test if what the log does not say changes nothing about it; otherwise a failed check."""
    if not best.ok or worst.ok:
        return best
    undecided = f"{promised} is refuted if what is unknown counts against it, and is not if nothing unknown does"
    return Told(ok=False, said=f"{said}; {undecided}: log every call that the policy makes (cascade collect)")


def played_at(one: Certificate, sample: Scored) -> Outcomes:
    """Return the outcome of each question at a certificate's threshold."""
    return rollout(sample.table.arrays, _levels_of(one, sample), one.kappa)


def _levels_of(one: Certificate, sample: Scored) -> Levels:
    steps = sample.table.arrays
    if not one.keeps_everything:
        return sample.levels
    return levels(steps, ScoreArrays(np.full(steps.answer.shape, np.inf), np.full(steps.cost.shape, np.inf)))


def _allowance(one: Certificate, upper: float) -> float:
    """Return the excess allowed for an unlucky calibration, in the unit of `upper`; 0 with delta."""
    if one.delta is not None:
        return 0.0
    return upper * (_SUPREMUM + math.sqrt(math.log(1 / _LUCK) / 2)) / math.sqrt(max(one.n, 1))


def _on_mean(said: str, promised: str, values: Floats, one: Certificate, bound: float, upper: float) -> Told:
    """Return the result for a mean; undecided if the allowance for luck exceeds the bound and the observed mean."""
    allowance, p = _allowance(one, upper), 1.0
    if bound + allowance < upper:
        spent = _LUCK if one.delta is None else 0.0
        p = min(1.0, spent + mean_below_p_value(upper - values, upper - (bound + allowance), upper))
    if p > LEVEL and allowance > max(bound, float(values.mean())):
        return Told(ok=True, said=f"{said}; too few calibration questions to tell whether {promised} is kept")
    return _verdict(said, promised, p)


def _verdict(said: str, promised: str, p: float) -> Told:
    word = "refuted" if p <= LEVEL else "not refuted"
    return Told(p > LEVEL, f"{said}; {promised} is {word} (p = {p:.3g})")


def whom(one: Certificate) -> str:
    """Return the start of a sentence that names a certificate's segment; "" if it has none."""
    return "" if one.segment is None else f"segment {one.segment}: "
