"""`agreement`: the answer served differs from the reference's own output at most alpha of the time, without labels."""

from __future__ import annotations

from cascade.conformal.arrays import Bools
from cascade.guarantees.audit import Audit
from cascade.guarantees.found import everywhere
from cascade.guarantees.questions import Questions
from cascade.guarantees.reference import ends_in_reference
from cascade.guarantees.served_answer import ServedAnswer
from cascade.guarantees.words import one_question, percent
from cascade.types import Certificate


class Agreement(ServedAnswer):
    """Every answer counts that is not the reference's, on a log whose truth is the reference's output (`Truth`).

    A reference that failed or was not asked is unknown: every answer counts there, but for the reference's own.
    """

    name = "agreement"
    event = "the answer served is equal to what the reference gives"
    kept = "the answer served is equal to the reference's"
    good = "answered as the reference does"
    worst = "difference"
    assumptions = ("The reference is the guide asked outright, or a ladder’s last model, as logged.",)
    needs_reference = True
    reference_keeps_it = True
    compares = True

    def last_is_safe(self, table: Questions) -> bool:
        """Whether the last step is the reference itself."""
        return ends_in_reference(table)

    def against(self, table: Questions) -> Bools:
        """Return all questions."""
        return everywhere(table.n)

    def reads_all_steps(self, audit: Audit) -> bool:  # noqa: ARG002 - names are the interface
        """Return False: a reference that is not known counts as a difference, so that every audit tells."""
        return False

    def describe(self, certificate: Certificate) -> str:
        """Return the promise, with the reference and the comparator, and that it is no promise of being right."""
        least = percent(certificate.alpha or 0.0, rest=True)
        who, how = certificate.reference or "the reference", certificate.comparator
        same = "equal to what" if how is None else f"the same, by the comparator {how}, as what"
        said = f"With probability at least {least} over {one_question(certificate)}, the answer served is {same}"
        return f"{said} {who} gives. It does not say how often either is right."

    def impossible(self, lost: str, reference: str) -> str:
        """Return why no policy can keep it."""
        return f"on {lost} of the questions {reference} has no output on record"
