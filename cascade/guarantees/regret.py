"""`regret`: the answer served is wrong where the reference alone is right, at most alpha of the time."""

from __future__ import annotations

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.errors import UsageError
from cascade.guarantees.base import Audit
from cascade.guarantees.questions import Questions, everywhere
from cascade.guarantees.reference import ends_in_reference, reference_known, reference_right
from cascade.guarantees.served_answer import ServedAnswer
from cascade.types import Answer


class Regret(ServedAnswer):
    """A wrong answer counts where the reference is right: the guide alone, or a ladder's last model."""

    name = "regret"
    event = "the answer served is not wrong, or the reference alone is wrong too"
    kept = "the answer served is right, or the reference is wrong too"
    unspoken = "do not say what the reference alone answers"
    left_out = (
        "the log lacks what the reference answers there: the promise speaks only of questions that the reference "
        "answers"
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
        """Return the same."""
        return self.counted(table)

    def last_is_safe(self, table: Questions) -> bool:
        """Whether the last step is the reference itself."""
        return ends_in_reference(table)

    def against(self, table: Questions) -> Bools:
        """Return where the reference is right; everywhere if people judged what is lost against it."""
        return reference_right(table) if table.truth is None else everywhere(table.n)

    def broken(
        self, table: Questions, right: Bools | Floats, in_set: Bools | Floats, reference_right: Bools | None
    ) -> Floats | None:
        """Return where the answer served is wrong and the reference right; where people judged, where it loses."""
        if table.truth is not None:
            return super().broken(table, right, in_set, reference_right)
        return None if reference_right is None else np.asarray((1.0 - right) * reference_right)

    def reads_all_steps(self, audit: Audit) -> bool:
        """Whether the audit must find out what the reference would have answered."""
        return audit.reference_right is None and audit.last_step is not None

    def audited(self, answer: Answer, audit: Audit) -> bool | None:
        """Return whether the answer served is wrong and the reference's, as said or as audited, is right."""
        if not super().audited(answer, audit):
            return False
        if self.reads_all_steps(audit):
            last = [step for step in answer.steps if step.number == audit.last_step]
            # Where the cap left the last model unasked it might have been right. Where it gave no answer it was not, as
            # at calibration; where it failed the audit shows nothing.
            return not last or any(audit.right(one.text) is not False for one in last[0].candidates)
        if audit.reference_right is None:
            raise UsageError(
                "The certificate is on regret: say whether the reference alone would have been right, "
                "record_outcome(answer, …, reference_right=…)."
            )
        return audit.reference_right

    def impossible(self, lost: str, reference: str) -> str:
        """Return why no policy can keep it."""
        return f"on {lost} of the questions {reference} is right and no step is"
