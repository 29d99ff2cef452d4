"""Which questions are audited, and what an audit found.

An audited question is run to its last step and judged, whatever it was served with. Only so does it show whether a
right answer was missed. Three things keep audits a fair sample: they are drawn without looking at the question, what
stays unknown counts as a miss, and neither whether nor when one is judged may depend on what it found.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cascade.checks import share_problems
from cascade.errors import UsageError

_DRAWS = 1 << 64


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """Draws which questions are audited: independent of the questions, the same again for the same seed.

    Guarantee: audited questions are exchangeable with the others, and with the calibration questions if those are, for
    the draw depends on nothing but the seed and the number of the question.

    Args:
        probability: of an audit, 0..1. It is rounded to a multiple of 2^−64.
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

    A question is covered where a right answer was kept, or where all steps were run and none had a right answer. What
    an audit that was cut short would have found is unknown, and counts against the threshold.

    Args:
        kept_right: whether a right answer is among those that were served.
        found_right: whether any step that was run, served or audited, had a right answer.
        complete: whether all steps were run and all answers judged.

    >>> audit_missed(kept_right=False, found_right=False, complete=False)
    True
    >>> audit_missed(kept_right=False, found_right=False, complete=True)
    False
    """
    return not kept_right and (found_right or not complete)
