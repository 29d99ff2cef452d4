"""Promises on the one answer served: it is not lost, as each kind defines a loss. Calibrated by Learn then Test.

The error of the answer served is not monotone in the threshold. So points are tested in an order that was fixed
without the calibration questions, until the first failed test (`conformal.ltt`).

The kinds are at the end of the file: `error`, `regret` (wrong, and the reference alone is right), `agreement` (differs
from the reference's own output; without labels) and `preference` (people prefer the reference's output). No kind
depends on another.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Levels, StepFunctions
from cascade.conformal.ltt import Forecast, chance_said, forecast, learn_then_test, order_path
from cascade.conformal.served import PathPoint, Served, served, served_right
from cascade.errors import UsageError
from cascade.guarantees.base import Audit, Guarantee, Kind, one_question
from cascade.guarantees.questions import (
    Found,
    Misses,
    Path,
    Questions,
    Scored,
    check_identity,
    ends_in_reference,
    everywhere,
    reference_known,
    reference_right,
)
from cascade.text import counted, percent
from cascade.types import Answer, Certificate

_EARLY = "their record ends before the last step, so that the later answers are unknown"


class ServedAnswer(Kind):
    """A question is lost if a wrong answer is served and `against` says that a wrong answer counts there."""

    speaks_of = "single"
    needs_delta = True
    tests_a_path = True

    @abstractmethod
    def against(self, table: Questions) -> Bools:
        """Return the questions on which a wrong answer counts: bool (n,), True if unknown.

        Raises:
            UsageError: the log lacks the columns that decide it.
        """

    def loss(self, table: Questions, confidence: Floats | None = None) -> Floats:
        """Return 1 for a wrong answer that counts, and 0 otherwise.

        An answer without a judgement counts as the average of the judged ones.
        """
        ranked = table.confidence if confidence is None else confidence
        wrong = ~served_right(table.arrays, ranked)
        lost = (wrong & (self.against(table) & self.counted(table))[:, None]).astype(np.float64)
        if table.labels is None:
            return lost
        unjudged = served_right(replace(table.arrays, correct=table.labels.unjudged), ranked)
        return np.where(unjudged, lost * table.labels.expected_loss(table.arrays.correct), lost)

    def losses(self, sample: Scored) -> StepFunctions:
        """Return the loss at every threshold; unlike for other kinds, it may rise as the threshold falls."""
        return self.served(sample).losses()

    def broken(
        self, table: Questions, right: Bools | Floats, in_set: Bools | Floats, reference_right: Bools | None
    ) -> Floats | None:
        """Return 1 for a wrong answer that counts, otherwise 0; NaN for a question that was not drawn for review."""
        del in_set, reference_right
        known = self.counted(table) if table.labels is None else self.counted(table) & table.labels.drawn
        return np.where(known, (1.0 - right) * self.against(table), np.nan)

    # --- calibration ---

    def calibrate(self, sample: Scored, guarantee: Guarantee, path: Path | None) -> list[Found]:
        """Return the last point of the path that is certified: it and all points before it pass the test."""
        level = guarantee.level
        assert level is not None  # noqa: S101 - `Guarantee` has checked it
        answered, n = drawn_alone(self.served(sample, abstain=guarantee.abstain), sample.table), sample.table.n
        if sample.is_reference and self.reference_keeps_it:
            # The reference is served, so no test and no questions are needed.
            return [Found(None, everywhere(n), n, -math.inf, misses=0)]
        if path is None and not self.strict_first(sample.table, guarantee):
            raise UsageError(f"{guarantee.kind} needs a path of thresholds that was ordered on other questions.")
        path = every_threshold(sample.levels) if path is None else path
        result = learn_then_test(
            answered.along(path),
            alpha=tested_alpha(guarantee, sample.table),
            delta=level,
        )
        if result.point is None or result.silent:
            ahead = result.forecast or Forecast(None, 0.0)
            said = f"{result.losses} of {n} calibration questions are lost at the safest of {len(path)} points"
            if ahead.questions is None:
                unsure = answered.at(path[0])
                said += _hopeless(result.losses, int(np.count_nonzero(unsure.loss & unsure.cut)), n, guarantee)
            silent = "only answering nothing keeps the promise" if result.silent else f"no point passes: {said}"
            chance = None if ahead.questions is None else ahead.chance
            return [Found(None, everywhere(n), n, math.nan, needed_n=ahead.questions, chance=chance, refused=silent)]
        below = result.point.abstain_below if guarantee.abstain else None
        return [Found(None, everywhere(n), n, result.point.kappa, misses=result.losses, abstain_below=below)]

    def strict_first(self, table: Questions, guarantee: Guarantee) -> bool:
        """Whether all thresholds are tested, from the strictest to the most lenient.

        This is so for a promise without abstention, in a ladder whose last answer is safe and is served if
        the last model is asked: at the strictest threshold nothing is lost. The order depends on no outcome.
        """
        return not guarantee.abstain and self.last_is_safe(table) and _last_is_served(table)

    def order(self, sample: Scored, guarantee: Guarantee) -> Path:
        """Return a path ordered on the selection questions."""
        return order_path(
            self.served(sample, abstain=guarantee.abstain),
            alpha=guarantee.alpha or 0.0,
            abstain=guarantee.abstain,
        )

    def misses(self, certificate: Certificate, sample: Scored) -> Misses:
        """Return the questions that are lost at the threshold."""
        below = -math.inf if certificate.abstain_below is None else certificate.abstain_below
        found = self.served(sample, abstain=certificate.abstain_below is not None, kappa=certificate.kappa)
        at = found.at(PathPoint(certificate.kappa, below))
        counted, labels = self.counted(sample.table), sample.table.labels
        if labels is None:
            return Misses(at.loss, at.loss & ~at.cut, counted)
        return Misses(at.loss, at.loss & ~at.cut & ~labels.unsaid, counted & labels.drawn)

    def served(self, sample: Scored, *, abstain: bool = False, kappa: float | None = None) -> Served:
        """Return the single answers at every threshold, and which of them break the promise.

        Args:
            sample: the questions.
            abstain: whether the confidence of an answer matters too.
            kappa: the threshold, if only one will be used.

        Raises:
            UsageError: votes decide what is served, and the log does not show which answers are equal
                (`check_identity`).
        """
        table = sample.table
        check_identity(sample, abstain=abstain, kappa=kappa)
        # The reference never differs from itself, even if its answer is not logged.
        own = sample.is_reference and self.reference_keeps_it
        counts = np.zeros(table.n, dtype=np.bool_) if own else self.against(table)
        return served(table.arrays, sample.levels, table.confidence, sure=table.sure, reference_right=counts)

    # --- audits ---

    def audited(self, answer: Answer, audit: Audit) -> bool | None:
        """Return whether the answer served is wrong or cannot be judged, or none is served without abstention."""
        return answer.stopped != "abstained" if answer.text is None else audit.right(answer.text) is not True


class BesideReference(ServedAnswer):
    """A question is lost if the answer served is worse than the reference's own output, which is never lost."""

    assumptions = ("The reference is the guide asked outright, or a ladder’s last model, as logged.",)
    needs_reference = True
    reference_keeps_it = True

    def last_is_safe(self, table: Questions) -> bool:
        """Whether the last step is the reference itself."""
        return ends_in_reference(table)

    def against(self, table: Questions) -> Bools:
        """Return all questions."""
        return everywhere(table.n)

    def reads_all_steps(self, audit: Audit) -> bool:  # noqa: ARG002 - names are the interface
        """Return False: the answer served decides, and a question with an unknown reference counts as lost."""
        return False

    def impossible(self, lost: str, reference: str) -> str:
        """Return why no policy can keep the promise."""
        return f"{reference} has no recorded output on {lost} of the questions"


def tested_alpha(guarantee: Guarantee, table: Questions) -> float:
    """Return the rate against which calibration losses are tested: alpha, times the share drawn if people judge."""
    alpha = guarantee.alpha or 0.0
    if table.truth is None:
        return alpha
    return float(Fraction(repr(float(alpha))) * Fraction(repr(table.truth.rate)))


def drawn_alone(answered: Served, table: Questions) -> Served:
    """Return the single answers, with losses only on the questions that were drawn for review."""
    if table.labels is None or table.labels.drawn.all():
        return answered
    return replace(answered, loss=answered.loss & table.labels.drawn[:, None])


def every_threshold(found: Levels) -> Path:
    """Return every threshold at which a decision changes, the strictest first, without any selection."""
    levels = np.unique(found.reach[np.isfinite(found.reach)])
    return tuple([PathPoint(kappa) for kappa in (-np.inf, *levels.tolist(), np.inf)])


def _last_is_served(table: Questions) -> bool:
    """Whether the last step's answer is always served if it exists: its confidence is the highest, or T ≤ 2.

    Of two answers that differ, with one vote each and no known confidence, the later is served (`conformal.served`).
    """
    sure = table.confidence
    if table.arrays.horizon == 1 or (table.arrays.horizon == 2 and np.isnan(sure).all()):
        return True
    last, before = sure[:, -1].max(axis=1), np.fmax.reduce(sure[:, :-1], axis=(1, 2), initial=-np.inf)
    present = table.arrays.present[:, -1].any(axis=1)
    return bool((last[present] > before[present]).all())


def _hopeless(losses: int, unsure: int, n: int, guarantee: Guarantee) -> str:
    """Return advice for the case that hardly any number of questions would certify the safest threshold.

    `unsure` of the losses there are questions whose record ends before a step that the policy may ask for.
    """
    level = guarantee.level
    assert level is not None  # noqa: S101 - `Guarantee` has checked it
    said = ""
    if unsure:
        said = f", {unsure} of them because {_EARLY}: log each question to its last step (cascade collect)"
    ahead = forecast(losses - unsure, n, guarantee.alpha or 0.0, level)
    if ahead.questions is not None:
        return said
    instead = "" if guarantee.abstain else ", or let it abstain"
    lost = f"{losses - unsure:,} of {counted(n, 'question')} {'is' if losses - unsure == 1 else 'are'} lost"
    chance = _with_chance(ahead.chance)
    few = f"if other questions are lost as often, a log of any size leads to a certificate with a probability {chance}"
    return f"{said}. More questions hardly help: {lost} at the safest threshold; {few}. Ask for a higher alpha{instead}"


def _with_chance(chance: float) -> str:
    said = chance_said(chance)
    return f"of {said}" if said.startswith("about") else said


# --- the kinds ---


class Error(ServedAnswer):
    """The answer served is wrong."""

    name = "error"
    event = "the answer served is not wrong"
    kept = "the answer served is right"
    counts_unanswered = True

    def against(self, table: Questions) -> Bools:
        """Return all questions."""
        return everywhere(table.n)

    def impossible(self, lost: str, reference: str) -> str:
        """Return why no policy can keep the promise."""
        del reference
        return f"no step answers {lost} of the questions rightly"


class Regret(ServedAnswer):
    """The answer served is wrong, and the reference is right: the guide alone, or a ladder's last model."""

    name = "regret"
    event = "the answer served is not wrong, or the reference alone is wrong too"
    kept = "the answer served is right, or the reference is wrong too"
    unspoken = "do not say what the reference alone answers"
    left_out = (
        "the log lacks the reference's answer there: the promise covers only questions that the reference answers"
    )
    assumptions = ("The reference is the guide alone, or a ladder’s last model, as logged.",)
    needs_reference = True
    reference_keeps_it = True
    reviewed = True

    def counted(self, table: Questions) -> Bools:
        """Return the questions for which the log records the reference's answer; all questions if people judged.

        If people judged and the reference's answer is unknown, every answer except the reference's own counts.
        """
        return reference_known(table) if table.truth is None else everywhere(table.n)

    def looked_at(self, table: Questions) -> Bools:
        """Return the questions for which the reference's answer is known, as `counted`."""
        return self.counted(table)

    def last_is_safe(self, table: Questions) -> bool:
        """Whether the last step is the reference itself."""
        return ends_in_reference(table)

    def against(self, table: Questions) -> Bools:
        """Return the questions on which the reference is right; all questions if people judged."""
        return reference_right(table) if table.truth is None else everywhere(table.n)

    def broken(
        self, table: Questions, right: Bools | Floats, in_set: Bools | Floats, reference_right: Bools | None
    ) -> Floats | None:
        """Return 1 if the answer served is wrong and the reference right; if people judged, 1 for a loss."""
        if table.truth is not None:
            return super().broken(table, right, in_set, reference_right)
        return None if reference_right is None else np.asarray((1.0 - right) * reference_right)

    def reads_all_steps(self, audit: Audit) -> bool:
        """Whether the audit must ask the reference."""
        return audit.reference_right is None and audit.last_step is not None

    def audited(self, answer: Answer, audit: Audit) -> bool | None:
        """Return whether the answer served is wrong and the reference right, as given by the caller or as audited."""
        if not super().audited(answer, audit):
            return False
        if self.reads_all_steps(audit):
            last = [step for step in answer.steps if step.number == audit.last_step]
            # If a cap prevented the call of the last model, the model might have been right. If the model gave no
            # answer, it was wrong, as at calibration. If its call failed, the audit has no result.
            return not last or any(audit.right(one.text) is not False for one in last[0].candidates)
        if audit.reference_right is None:
            raise UsageError(
                "The certificate is on regret: say whether the reference alone would have been right, "
                "record_outcome(answer, …, reference_right=…)."
            )
        return audit.reference_right

    def impossible(self, lost: str, reference: str) -> str:
        """Return why no policy can keep the promise."""
        return f"on {lost} of the questions {reference} is right and no step is"


class Agreement(BesideReference):
    """An answer is lost if it differs from the reference's output, which is what "right" means in the log (`Truth`).

    If the reference failed or was not asked, its output is unknown: every answer except the reference's own counts.
    """

    name = "agreement"
    event = "the answer served is equal to what the reference gives"
    kept = "the answer served is equal to the reference's"
    worst = "difference"
    compares = True

    def describe(self, certificate: Certificate) -> str:
        """Return the promise with the reference and the comparator, and say that it promises no right answer."""
        least = percent(certificate.alpha or 0.0, rest=True)
        who, how = certificate.reference or "the reference", certificate.comparator
        same = "equal to what" if how is None else f"the same, by the comparator {how}, as what"
        said = f"With probability at least {least} over {one_question(certificate)}, the answer served is {same}"
        return f"{said} {who} gives. It does not say how often either is right."


class Preference(BesideReference):
    """An answer is lost if a reviewer preferred the reference's output (`cascade review`); a tie loses nothing.

    In audits an output is "right" if the reviewer found it no worse than the reference's.
    """

    name = "preference"
    event = "no reviewer prefers the reference's answer to the one served"
    kept = "the answer served is no worse than the reference's"
    worst = "loss"
    reviewed = True
    labelled = False
