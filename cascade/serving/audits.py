"""Decides whether an audited question was missed, once it is known which answers are right.

Misses are defined as in calibration on a log (`conformal.split`, `conformal.served`). Unknown results count as misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cascade.guarantees.base import Judge


class Outcome(NamedTuple):
    """The result of recording the truth about an answer: whether it was missed, and whether or why not it counted."""

    missed: bool | None
    counted: bool
    reason: str


def judge(right: Judge | str | Sequence[str], matcher: str) -> Judge:
    """Return a function that decides whether a text is right, from a truth value or from the accepted answers."""
    if callable(right):
        return right
    from cascade.matching import get_matcher

    rule, gold = get_matcher(matcher), (right,) if isinstance(right, str) else tuple(right)
    return lambda text: rule.matches(text, gold)
