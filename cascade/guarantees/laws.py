"""Test a certificate on questions that neither the certificate nor its policy has seen.

A promise is refuted if a result at least as bad as the observed one has a probability of at most 5 % under the promise.
The test for each promise:

| promise | law |
|---|---|
| a share of questions, on average over calibrations | Beta-binomial, which includes the luck of the calibration |
| a share of questions, with delta | binomial at alpha |

Missing records do not count against a promise: a question counts as lost only if that is certain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import (
    Levels,
    Outcomes,
    ScoreArrays,
    as_written,
    levels,
    rollout,
)
from cascade.conformal.binomial import lower_bound, lower_tail, misses_p_value, upper_bound
from cascade.guarantees.questions import Misses, Scored
from cascade.types import Certificate

LEVEL = 0.05
"""A promise is refuted if its p-value is at most this."""


class Told(NamedTuple):
    """Whether a promise passed its test, and the figures in words."""

    ok: bool
    said: str


def on_share(one: Certificate, seen: Misses) -> Told:
    """Test a promise about a share of questions.

    A question that may be lost, because the log lacks a call or a judgement there, counts for the promise in one test
    and against it in another: if the two differ, the log decides nothing, and the check fails.
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
    assert one.alpha is not None  # noqa: S101 - it promises a share
    least, worst = (_share_p_value(one, one.alpha, count, m) for count in (losses, most))
    promised = f"alpha {one.alpha:g}"
    return _decided(said, promised, _verdict(said, promised, least), _verdict(said, promised, worst))


def _share_p_value(one: Certificate, alpha: float, losses: int, m: int) -> float:
    if one.k is not None and one.delta is None:
        return misses_p_value(losses, m, one.n, one.k)
    rest = float(1 - as_written(alpha))  # 0.82 for 0.18; in floats, 1 − 0.18 is not 0.82
    return lower_tail(m - losses, m, rest)


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


def _verdict(said: str, promised: str, p: float) -> Told:
    word = "refuted" if p <= LEVEL else "not refuted"
    return Told(p > LEVEL, f"{said}; {promised} is {word} (p = {p:.3g})")


def whom(one: Certificate) -> str:
    """Return the start of a sentence that names a certificate's segment; "" if it has none."""
    return "" if one.segment is None else f"segment {one.segment}: "
