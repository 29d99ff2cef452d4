"""`agreement`: the answer served differs from the reference's own output at most alpha of the time, without labels."""

from __future__ import annotations

from cascade.guarantees.base import one_question
from cascade.guarantees.served_answer import BesideReference
from cascade.text import percent
from cascade.types import Certificate


class Agreement(BesideReference):
    """An answer counts against the promise if it differs from the reference's output, the truth of the log (`Truth`).

    If the reference failed or was not asked, its output is unknown: every answer except the reference's own counts.
    """

    name = "agreement"
    event = "the answer served is equal to what the reference gives"
    kept = "the answer served is equal to the reference's"
    worst = "difference"
    compares = True

    def describe(self, certificate: Certificate) -> str:
        """Return the promise, with the reference and the comparator, and that it is no promise of being right."""
        least = percent(certificate.alpha or 0.0, rest=True)
        who, how = certificate.reference or "the reference", certificate.comparator
        same = "equal to what" if how is None else f"the same, by the comparator {how}, as what"
        said = f"With probability at least {least} over {one_question(certificate)}, the answer served is {same}"
        return f"{said} {who} gives. It does not say how often either is right."
