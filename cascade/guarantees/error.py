"""`error`: the one answer served is wrong, or missing, at most alpha of the time; abstaining is no error."""

from __future__ import annotations

from cascade.conformal.arrays import Bools
from cascade.guarantees.questions import Questions, everywhere
from cascade.guarantees.served_answer import ServedAnswer


class Error(ServedAnswer):
    """Every wrong answer counts."""

    name = "error"
    event = "the answer served is not wrong"
    kept = "the answer served is right"
    counts_unanswered = True

    def against(self, table: Questions) -> Bools:
        """Return all questions."""
        return everywhere(table.n)

    def impossible(self, lost: str, reference: str) -> str:
        """Return why no policy can keep it."""
        del reference
        return f"no step answers {lost} of the questions rightly"
