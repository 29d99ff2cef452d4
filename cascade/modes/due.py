"""When the next look is due: how many certifying conversations and how many rows to fit it needs."""

from __future__ import annotations

import math
from typing import NamedTuple

from cascade.config.schema import ModesConfig
from cascade.conformal.binomial import most_losses
from cascade.modes.state import CascadeState, Counts

LEAST_FIT = 50
"""The fewest rows that a policy is fitted on."""


class NextLook(NamedTuple):
    """What the next look needs, and the counts so far.

    Attributes:
        look: its number.
        needed: how many certifying conversations it needs (`conversations_for`).
        wait: about how many more conversations have to be served until it is due, at the rate of the draws.
        counts: the counts so far.
    """

    look: int
    needed: int
    wait: int
    counts: Counts

    @property
    def is_ready(self) -> bool:
        """Whether the look is due."""
        return self.wait == 0

    def describe(self) -> str:
        """Describe the look in a sentence."""
        lack = "" if self.is_ready else f", so about {self.wait} more conversations have to be served"
        return (
            f"look {self.look} needs {self.needed} certifying conversations and {LEAST_FIT} rows to fit; there are "
            f"{self.counts.conversations} and {self.counts.fit}{lack}"
        )


def next_look(state: CascadeState, counts: Counts, modes: ModesConfig) -> NextLook:
    """Return what a cascade's next look needs.

    No outcome of a row that may certify is read, so the time of a look does not depend on these outcomes.
    """
    needed = conversations_for(modes.risk, state.next_level(modes.delta))
    certify, fit = modes.share * modes.certify, modes.share * (1 - modes.certify)
    waits = (needed - counts.conversations) / certify, (LEAST_FIT - counts.fit) / fit
    return NextLook(state.looks + 1, needed, max(0, *map(math.ceil, waits)), counts)


def conversations_for(risk: float, level: float) -> int:
    """Return about how many conversations suffice to certify if half of the promised share of them is lost.

    >>> conversations_for(0.1, 0.05)
    116
    """
    count = math.ceil(math.log(level) / math.log1p(-risk))  # enough if none is lost
    while (most_losses(count, risk, level) or 0) < risk * count / 2:
        count += max(1, count // 20)
    return count
