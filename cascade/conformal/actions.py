"""Turn a policy's scores into actions at a threshold kappa, one step at a time.

The set of actions at step t is C(o_t) = {a : score(a) ≥ kappa} and {argmax}, with "next" impossible at the last step.
The argmax is always in the set (ties: the lowest index, candidates before "next"), so that the set is never empty, an
answer always comes, and the sets grow as kappa falls. Any other fallback would break that nesting, and with it the
guarantee. Reference: `design/decisions.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

INFINITY = float("inf")


class Actions(NamedTuple):
    """The set of actions at one step: the kept candidates' indices, and whether "next" is among them."""

    keep: tuple[int, ...]
    proceed: bool


def actions(scores: Sequence[float], next_score: float, kappa: float, *, last: bool) -> Actions:
    """Return the set of actions at threshold kappa.

    Args:
        scores: one score a candidate, higher = include; +inf always, −inf only as the last resort.
        next_score: the score of going on.
        kappa: the threshold.
        last: whether this is step T, where going on is impossible.

    A score that is not a number is no reason to stop: it excludes a candidate and includes "next".

    >>> actions([0.7, 0.2], 0.1, kappa=0.15, last=False)
    Actions(keep=(0, 1), proceed=False)
    >>> actions([0.1, 0.2], 0.7, kappa=0.9, last=False)
    Actions(keep=(), proceed=True)
    """
    best = _argmax(scores)
    if best is None:
        return Actions((), proceed=not last)
    onward = INFINITY if next_score != next_score else next_score  # noqa: PLR0124 - NaN
    argmax_is_next = not last and not onward <= scores[best]
    keep = tuple(
        [
            index
            for index, score in enumerate(scores)
            if (score >= kappa and score > -INFINITY) or (index == best and not argmax_is_next)
        ]
    )
    return Actions(keep, proceed=not last and (argmax_is_next or (onward >= kappa and onward > -INFINITY)))


def _argmax(scores: Sequence[float]) -> int | None:
    """Return the index of the highest score, the lowest of several, NaN counting as −inf; None if there is none."""
    best, highest = None, -INFINITY
    for index, score in enumerate(scores):
        if best is None or score > highest:
            best, highest = index, score if score == score else -INFINITY  # noqa: PLR0124 - NaN
    return best
