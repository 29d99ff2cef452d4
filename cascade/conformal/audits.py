"""Draw the requests to audit (`AuditPlan`), and decide what coverage counts as a miss (`audit_missed`).

`serving.monitors` decides whether an audited question was missed; it asks the kind of promise.

An audited question is run to its last step and judged, whatever answer was served. Only a complete run shows whether a
right answer was missed. Three rules keep audits a fair sample: the draw does not depend on the question; an unknown
result counts as a miss; whether and when an audit is judged must not depend on its result.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cascade.checks import share_problems
from cascade.errors import UsageError

_DRAWS = 1 << 64


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """Draws which groups of requests are audited, by a hash of their names; the same seed gives the same draw.

    Of a drawn group the first request is audited. So a group's chance does not depend on how many requests it has, and
    no content decides. A request without a group is one by itself.

    Guarantee: audited groups are exchangeable with the others, and with the calibration groups if the others are, since
    the draw depends only on the seed and the name. Counting their first requests assumes that these are like the rest.

    Args:
        probability: the probability that a group is drawn, 0..1. It is rounded to a multiple of 2^−64.
        seed: any integer.

    Raises:
        UsageError: the probability lies outside 0..1.

    >>> plan = AuditPlan(0.1, seed=7)
    >>> sum(plan.draw(f"user {number}") for number in range(10_000))
    1002
    """

    probability: float
    seed: int = 0

    def __post_init__(self) -> None:
        for problem in share_problems(ends=True, probability=self.probability):
            raise UsageError(f"Audits: {problem}.")

    def draw(self, group: str) -> bool:
        """Return whether the group of this name is audited."""
        digest = hashlib.sha256(f"cascade audit {self.seed} {group}".encode("utf-8", "replace")).digest()
        drawn = int.from_bytes(digest[:8], "big")
        return drawn < round(self.probability * _DRAWS)
