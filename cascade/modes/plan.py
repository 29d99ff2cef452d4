"""What the next look takes: conversations that certify, requests until then, and judgements by people."""

from __future__ import annotations

import math
from typing import NamedTuple

from cascade.config.schema import ModesConfig
from cascade.conformal.binomial import most_losses, needed_without_loss
from cascade.modes.state import BY_PEOPLE, CascadeState, Counts, Look

LEAST_FIT = 50
"""The fewest rows that a policy is fitted on."""


class LookPlan(NamedTuple):
    """What the next look takes, as far as counts tell.

    Attributes:
        look: its number.
        have: conversations that could certify now.
        needed: conversations from which half of the promised share may lose.
        fit: rows that could fit now.
        requests: requests until then, at the rate of the draws.
        labels: judgements by people that are missing, at most; agreement needs none.
        most_labels: so many missing judgements, which count as losses, leave room for a certificate.
    """

    look: int
    have: int
    needed: int
    fit: int
    requests: int
    labels: int = 0
    most_labels: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether the look may be taken."""
        return self.have >= self.needed and self.fit >= LEAST_FIT and self.labels <= self.most_labels

    def describe(self) -> str:
        """Describe the plan in a sentence."""
        labels = f", and at most {self.labels} judgements by people are missing" if self.labels else ""
        return (
            f"look {self.look} takes {self.needed} certifying conversations and {LEAST_FIT} rows to fit; there are "
            f"{self.have} and {self.fit}, which takes about {self.requests} more requests{labels}"
        )


def plan_of(state: CascadeState, counts: Counts, modes: ModesConfig, unjudged: float | None = None) -> LookPlan:
    """Return the plan of a cascade's next look.

    It reads no outcome of a row that may certify, so the time of a look does not depend on them.

    Args:
        state: the cascade's state.
        counts: of its drawn rows.
        modes: the settings of the promise.
        unjudged: the share of the rows whose answers differ and that nobody has judged, where people judge; None if
            it is unknown.
    """
    needed = conversations_for(modes.risk, state.next_level(modes.delta))
    if unjudged is None:
        unjudged = float(modes.promise == BY_PEOPLE)
    certify = modes.share * modes.certify * (counts.conversations / counts.certify if counts.certify else 1.0)
    waits = [(needed - counts.conversations, certify), (LEAST_FIT - counts.fit, modes.share * (1 - modes.certify))]
    return LookPlan(
        *(state.looks + 1, counts.conversations, needed, counts.fit),
        max(math.ceil(max(0, missing) / share) for missing, share in waits),
        math.ceil(unjudged * needed),
        math.floor(modes.risk * needed / 2),
    )


def conversations_for(risk: float, level: float) -> int:
    """Return about how many conversations certify though half of the promised share of them loses.

    >>> conversations_for(0.1, 0.05)
    116
    """
    count = needed_without_loss(risk, level)
    while (most_losses(count, risk, level) or 0) < risk * count / 2:
        count += max(1, count // 20)
    return count


def too_few(risk: float, look: Look, counts: Counts) -> str | None:
    """Return why a look cannot succeed, judged by the counts; None if it may succeed."""
    needed = needed_without_loss(risk, look.level)
    if counts.conversations < needed:
        return (
            f"look {look.look} needs at least {needed} certifying conversations, none of them different from the "
            f"guide's; there are {counts.conversations}"
        )
    return f"a fit needs at least {LEAST_FIT} rows, and there are {counts.fit}" if counts.fit < LEAST_FIT else None
