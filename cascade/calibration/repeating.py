"""Repeat a calibration on many parts of one log, and count how often its promise is broken.

The log is taken for the whole world: each calibration draws some of its questions, and the log says what the threshold
would miss. That is how a guarantee of one's own is tested (docs/write-a-guarantee.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.samples import joined, once
from cascade.calibration.scores import sample_of
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee, get
from cascade.policies.base import Policy
from cascade.section import Section

_SIGMAS = 3.0
"""Standard errors that chance may add before a promise counts as broken too often."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The outcomes of repeated calibrations.

    Attributes:
        alpha: the share of questions that may be missed.
        delta: the share of calibrations that may break the promise; None where it holds on average over them.
        repeats: calibrations.
        risks: of each calibration that certified something, the share of questions that its threshold misses.
    """

    alpha: float
    delta: float | None
    repeats: int
    risks: tuple[float, ...]

    @property
    def broken(self) -> int:
        """The number of calibrations whose share of misses is above alpha."""
        return sum(risk > self.alpha for risk in self.risks)

    @property
    def holds(self) -> bool:
        """Whether the promise is kept, up to three standard errors.

        With delta, at most a share delta of all calibrations may be above alpha. Without, the mean share of misses may
        not be above alpha. A calibration that certifies nothing breaks no promise.
        """
        if not self.risks:
            return True
        if self.delta is None:
            error = float(np.std(self.risks)) / math.sqrt(len(self.risks))
            return float(np.mean(self.risks)) <= self.alpha + _SIGMAS * error
        return self.broken / self.repeats <= self.delta + _SIGMAS * math.sqrt(
            self.delta * (1 - self.delta) / self.repeats
        )


def repeat_calibration(
    tables: Sequence[EpisodeTable],
    policy: Policy,
    section: Section | Mapping[str, Any],
    guarantee: Guarantee,
    *,
    questions: int,
    repeats: int = 500,
    seed: int = 0,
) -> Repeated:
    """Calibrate many times, each time on other questions of a log.

    With delta, misses are counted over the whole log, whose share is what each calibration estimates. Without, they are
    counted over the questions that a calibration did not draw: the promise is about a fresh question.

    Args:
        tables: the log, with several times as many questions as a calibration draws; `simulated:` logs have any number.
        policy: what scores.
        section: the settings that `policy` was made from.
        guarantee: what is promised.
        questions: questions of one calibration.
        repeats: calibrations. With 500 of them a promise at delta = .1 may be broken in 14 %.
        seed: draws the questions.

    Raises:
        UsageError: the log cannot calibrate this policy, or the promise is about no share of questions.

    >>> from cascade import Guarantee, open_log
    >>> from cascade.factory import policy_of
    >>> from cascade.config import policy_section
    >>> section = policy_section({"kind": "threshold", "threshold": 0.3, "keep": "both"})
    >>> log = open_log("simulated:mmlu/llama-2-7b,600")
    >>> wanted = Guarantee("coverage", 0.2)
    >>> repeat_calibration(log.tables, policy_of(section), section, wanted, questions=100, repeats=20).holds
    True
    """
    if guarantee.alpha is None:
        raise UsageError(
            f"A promise of {guarantee.kind} is not about a share of questions: name a guarantee with alpha."
        )
    whole = joined(tables)
    table = whole.take(once(whole))
    sample, rng, risks = sample_of(table, policy), np.random.default_rng(seed), list[float]()
    for repeat in range(repeats):
        drawn = np.sort(rng.choice(table.n, size=questions, replace=False))
        try:
            done = calibrate_policy([table.take(drawn)], policy, section, guarantee, seed=repeat)
        except NotCertifiedError:
            continue
        (certificate,) = done.artifact.certificates
        looked = np.ones(table.n, dtype=np.bool_)
        if guarantee.delta is None:
            looked[drawn] = False
        found = get(certificate.kind).misses(certificate, sample)
        counted = found.counted & looked
        risks.append(float(np.mean(found.missed[counted])) if counted.any() else 0.0)
    return Repeated(guarantee.alpha, guarantee.delta, repeats, tuple(risks))
