"""Repeat a calibration on many parts of a log, and count how often its promise is broken.

The log is treated as the whole population: each calibration draws some of its questions, and the log shows what the
threshold would miss. Use it to test a guarantee of your own (docs/write-a-guarantee.md).
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
"""A promise counts as broken if the excess is larger than this many standard errors."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The outcomes of repeated calibrations.

    Attributes:
        alpha: the share of questions that may be missed.
        delta: the share of calibrations that may break the promise; None if it holds on average over them.
        repeats: the number of calibrations.
        risks: for each calibration that certified a threshold, the share of questions that it misses.
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

        With delta, the share of misses may be above alpha in at most a share delta of all calibrations. Without delta,
        the mean share of misses may not be above alpha. A calibration that certifies nothing breaks no promise.
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

    With delta, misses are counted over the whole log, which is the population that the promise is about. Without delta,
    they are counted over the questions that a calibration did not draw, since the promise is about a fresh question.

    Args:
        tables: the log, with several times as many questions as a calibration draws; `simulated:` logs have any number.
        policy: the policy, which gives the scores.
        section: the settings that `policy` was made from.
        guarantee: what is promised.
        questions: the number of questions in a calibration.
        repeats: the number of calibrations. With 500 of them and delta = 0.1, up to 14 % may break the promise.
        seed: the seed of the draws.

    Raises:
        UsageError: the log cannot calibrate this policy, or the promise is not about a share of questions.

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
