"""The requests of a log that no certificate of a policy covers: how many, and what their guide costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cascade.calibration.scores import reference_cost
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.certificate import of_segment
from cascade.money import exact_dollars
from cascade.policies.scope import unlike
from cascade.text import counted
from cascade.types import Certificate


def outside(table: EpisodeTable, certificates: Sequence[Certificate]) -> list[int]:
    """Return the questions of a log, by their places, that no certificate covers.

    They are those of a segment without a certificate, and those of a kind that was not calibrated. The orchestrator
    decides the same before it answers (`serving.certified`).
    """
    by_segment = {one.segment: one for one in certificates}
    found = []
    for place, (segment, kind) in enumerate(zip(table.segments, table.kinds, strict=True)):
        certificate = of_segment(by_segment, segment)
        if certificate is None or (kind is not None and any(unlike(kind, certificate.made_for.get("requests")))):
            found.append(place)
    return found


def describe_outside(table: EpisodeTable, certificates: Sequence[Certificate]) -> str | None:
    """Return the share of a log outside all certificates and its cost, as a sentence; None without a certificate."""
    if not certificates:
        return None
    places = outside(table, certificates)
    share = f"{100 * len(places) / max(len(table.ids), 1):.1f} % of the log"
    said = f"{counted(len(places), 'question')} ({share}) lie outside the certificate: the guide answers such requests"
    if not places:
        return said
    mean = reference_cost(table.take(np.array(places)))
    cost = "an unknown amount" if mean is None else exact_dollars(round(mean * len(places)))
    return f"{said}, which costs {cost} for those"
