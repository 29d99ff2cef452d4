"""`preference`: people prefer the reference's output to what is served at most alpha of the time."""

from __future__ import annotations

from cascade.conformal.arrays import Bools
from cascade.guarantees.audit import Audit
from cascade.guarantees.found import everywhere
from cascade.guarantees.questions import Questions
from cascade.guarantees.reference import ends_in_reference
from cascade.guarantees.served_answer import ServedAnswer


class Preference(ServedAnswer):
    """An output counts that a reviewer found worse than the reference's (`cascade review`); equal or both bad does not.

    In audits "right" is what was found no worse than the reference's.
    """

    name = "preference"
    event = "no reviewer prefers the reference's answer to the one served"
    kept = "the answer served is no worse than the reference's"
    worst = "loss"
    assumptions = ("The reference is the guide asked outright, or a ladder’s last model, as logged.",)
    needs_reference = True
    reference_keeps_it = True
    reviewed = True
    labelled = False

    def last_is_safe(self, table: Questions) -> bool:
        """Whether the last step is the reference itself."""
        return ends_in_reference(table)

    def against(self, table: Questions) -> Bools:
        """Return all questions."""
        return everywhere(table.n)

    def reads_all_steps(self, audit: Audit) -> bool:  # noqa: ARG002 - names are the interface
        """Return False: what the reviewer said of the answer served is enough."""
        return False

    def impossible(self, lost: str, reference: str) -> str:
        """Return why no policy can keep it."""
        return f"on {lost} of the questions {reference} has no output on record"
