"""The plan of a promotion: what is still needed until it is likely. `modes.planning` computes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cascade.modes.state import CascadeState

CHANCE = 0.8
"""The probability from which a promotion counts as likely."""
LEAST_FIT = 50
"""The fewest rows that a policy is fitted on, and that a plan is made from."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The conversations, requests, money, days and labels needed until a promotion is likely.

    Attributes:
        look: the look that it is about.
        have: conversations that could certify now.
        needed: conversations that it takes; None if no number is enough, as far as these rows tell.
        requests: requests until then; None if unknown.
        usd: the cost of the extra calls to observe them.
        days: days until then, at the traffic so far.
        labels: judgements of certifying requests, at most; agreement needs none; None if unknown.
        why: why no promotion is likely, if so.
        era: of the rows that it was made from.
    """

    look: int
    have: int
    needed: int | None
    requests: int | None = None
    usd: float | None = None
    days: float | None = None
    labels: int | None = 0
    why: str | None = None
    era: int = 0

    @property
    def is_likely(self) -> bool:
        """Whether a promotion is likely now."""
        return self.needed is not None and self.needed <= self.have

    def is_about(self, state: CascadeState) -> bool:
        """Whether a cascade in this state would take the look that the plan is about."""
        return (self.look, self.era) == (state.looks + 1, state.era)

    def describe(self) -> str:
        """Describe the plan in a sentence."""
        if self.needed is None:
            return f"no promotion is likely so far: {self.why}"
        if self.is_likely:
            return f"a promotion is likely now (look {self.look}): cascade promote"
        requests = "an unknown number of" if self.requests is None else f"about {self.requests}"
        cost = "an unknown number of USD" if self.usd is None else f"{self.usd:.2g} USD"
        days = "an unknown number of days" if self.days is None else f"{self.days:.2g} days at the traffic so far"
        labels = (
            "an unknown number of judgements" if self.labels is None else f"at most {self.labels} judgements by people"
        )
        labels = labels if self.labels != 0 else "no judgements"
        return (
            f"a promotion is likely ({CHANCE:.0%}) at look {self.look} with {self.needed} certifying conversations; "
            f"there are {self.have}. That takes {requests} more requests, {cost} for extra calls, {days}, and "
            f"{labels}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)
