"""Draw the questions to audit (`AuditPlan`), and decide what coverage counts as a miss (`audit_missed`).

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
    """Draws which questions are audited, independently of the questions; the same seed gives the same draw.

    Guarantee: audited questions are exchangeable with the others, and with the calibration questions if the others are,
    since the draw depends only on the seed and the number of the question.

    Args:
        probability: the probability of an audit, 0..1. It is rounded to a multiple of 2^−64.
        seed: any integer.

    Raises:
        UsageError: the probability lies outside 0..1.

    >>> plan = AuditPlan(0.1, seed=7)
    >>> sum(plan.draw(number) for number in range(10_000))
    1022
    """

    probability: float
    seed: int = 0

    def __post_init__(self) -> None:
        for problem in share_problems(ends=True, probability=self.probability):
            raise UsageError(f"Audits: {problem}.")

    def draw(self, number: int) -> bool:
        """Return whether the question of this number is audited; numbers count the questions asked."""
        digest = hashlib.sha256(f"cascade audit {self.seed} {number}".encode()).digest()
        drawn = int.from_bytes(digest[:8], "big")
        return drawn < round(self.probability * _DRAWS)


def audit_missed(*, kept_right: bool, found_right: bool, complete: bool) -> bool:
    """Return whether an audited question counts as missed, in the sense of coverage.

    A question is covered if a right answer was kept, or if all steps were run and none had a right answer. If an audit
    was cut short, its result is unknown and counts as a miss.

    Args:
        kept_right: whether a right answer was kept when the question was served.
        found_right: whether any step that was run had a right answer.
        complete: whether all steps were run and all their answers were judged.

    >>> audit_missed(kept_right=False, found_right=False, complete=False)
    True
    >>> audit_missed(kept_right=False, found_right=False, complete=True)
    False
    """
    return not kept_right and (found_right or not complete)
