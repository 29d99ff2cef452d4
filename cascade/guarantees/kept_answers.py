"""Promises on the set of answers kept: a right one is among them, by split conformal prediction.

Each calibration question has a critical value, the highest threshold at which one of its right answers is kept. The
threshold is the k-th lowest critical value. The kind is at the end of the file: `coverage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from cascade.conformal.arrays import Bools, Floats, StepFunctions, hopeless
from cascade.conformal.split import Calibration, calibrate, calibrate_segments, critical_kappa, pac_rank, split_rank
from cascade.guarantees.base import Guarantee, Kind
from cascade.guarantees.questions import Found, Misses, Path, Questions, Scored
from cascade.types import Answer, Certificate

if TYPE_CHECKING:
    from cascade.guarantees.base import Audit


class KeptAnswers(Kind):
    """A question is missed if no right answer is kept although a step had one, or may have had one."""

    speaks_of: ClassVar[Literal["set", "single"]] = "set"
    kept = "a right answer is kept, or no step has one"
    by_segment = True

    def loss(self, table: Questions, confidence: Floats | None = None) -> Floats:
        """Return 1 before the first step with a right answer and 0 from it on; 1 if an incomplete record has none."""
        del confidence
        return missing(table, np.logical_or.accumulate(table.arrays.correct.any(axis=2), axis=1))

    def losses(self, sample: Scored) -> StepFunctions:
        """Return 1 above a question's critical value."""
        one = np.ones(sample.table.n, dtype=np.int64)
        return StepFunctions(one, _critical(sample)[:, None], -one[:, None])

    def broken(
        self, table: Questions, right: Bools | Floats, in_set: Bools | Floats, reference_right: Bools | None
    ) -> Floats | None:
        """Return the questions without a right answer among those kept."""
        del right, reference_right
        return np.where(hopeless(table.arrays), 0.0, 1.0 - in_set)

    def calibrate(self, sample: Scored, guarantee: Guarantee, path: Path | None) -> list[Found]:
        """Return the k-th lowest critical value, for each named segment if the promises are by segment.

        A question whose record ends early without a right answer may be solvable. It counts as missed at every
        threshold. This never raises the threshold: with j such questions among n, the rank rises by at most j,
        ⌊alpha·(n + 1)⌋ ≤ ⌊alpha·(n − j + 1)⌋ + j, and the j values of −∞ come first.
        """
        del path
        critical, alpha, counted = _critical(sample), guarantee.alpha or 0.0, self.counted(sample.table)
        if not guarantee.by_segment:
            return [_found(calibrate(critical[counted], alpha, delta=guarantee.delta), None, counted)]
        names = np.array(sample.table.segments, dtype=object)
        each = calibrate_segments(critical[counted], list(names[counted]), alpha, delta=guarantee.delta)
        return [_found(one, name, counted & (names == name)) for name, one in each.items()]

    def certain_loss(self, n: int, alpha: float, delta: float | None) -> float:
        """Return the share of n critical values that may lie below the threshold."""
        rank = split_rank(n, alpha) if delta is None else pac_rank(n, alpha, delta)
        return rank / (n + 1)

    def misses(self, certificate: Certificate, sample: Scored) -> Misses:
        """Return the questions without a right answer kept at the threshold."""
        from cascade.guarantees.laws import played_at

        steps, played = sample.table.arrays, played_at(certificate, sample)
        # A right answer may exist after the end of a record, or at an earlier step that the walk did not reach.
        known = steps.complete | (steps.solvable & (played.length < steps.steps))
        missed = ~played.covered
        return Misses(missed, missed & known, self.counted(sample.table))

    def audited(self, answer: Answer, audit: Audit) -> bool | None:
        """Return whether no right answer was kept although one could have been kept.

        If not all steps were run, or if an answer cannot be judged, a right answer may exist: that counts as a miss.
        """
        texts = dict.fromkeys(one.text for step in answer.steps for one in step.candidates)
        verdicts = {text: audit.right(text) for text in texts}
        kept = [
            step.candidates[place].text
            for step in answer.steps
            for place in (step.decision.keep if step.decision else ())
        ]
        known = audit.complete and None not in verdicts.values()
        found = True in verdicts.values()
        from cascade.conformal.audits import audit_missed

        return audit_missed(kept_right=any(verdicts[text] for text in kept), found_right=found, complete=known)


def _critical(sample: Scored) -> Floats:
    return critical_kappa(sample.table.arrays, sample.levels)


def missing(table: Questions, found: Bools) -> Floats:
    """Return the loss after each step, float64 (n, T); `found`, bool (n, T): whether a right answer is kept by then."""
    return np.where(found | hopeless(table.arrays)[:, None], 0.0, 1.0)


def _found(calibration: Calibration, segment: str | None, rows: Bools) -> Found:
    return Found(
        segment=segment,
        rows=rows,
        n=calibration.n,
        kappa=calibration.kappa,
        k=calibration.k,
        misses=calibration.misses,
        keeps_everything=calibration.keeps_everything,
        needed_n=calibration.needed_n if calibration.keeps_everything else None,
        refused=_vacuous(calibration) if calibration.vacuous else None,
    )


def _vacuous(calibration: Calibration) -> str:
    return (
        f"{calibration.misses} of {calibration.n} calibration questions are missed at every threshold, but at most "
        f"{calibration.k - 1} may be: the policy gives their right answers, or steps before them, the score −∞, or "
        "their records end early"
    )


# --- the kind ---


class Coverage(KeptAnswers):
    """At most alpha of all questions are missed."""

    name = "coverage"
    event = "a right answer is among those kept, or no step would have given one"
    assumptions = ("A question that no step answers rightly counts as covered.",)
