"""Scores at a threshold: who is kept, whether another step is paid."""

from __future__ import annotations

import math

from cases import each

from cascade.engine import actions

INF, NAN = math.inf, math.nan


@each(
    "scores, onward, kappa, last, keep, proceed",
    [
        ([0.7, 0.2], 0.1, 0.15, False, (0, 1), False),  # the set is what reaches kappa
        ([0.7, 0.2], 0.2, 0.2, False, (0, 1), True),  # reaching is enough
        ([0.7, 0.2], 0.1, 0.9, False, (0,), False),  # nothing reaches: the argmax
        ([0.1, 0.2], 0.7, 0.9, False, (), True),  # the argmax is next
        ([0.5, 0.5], 0.5, 0.9, False, (0,), False),  # a tie: the lowest index, candidates before next
        ([0.5], 0.6, 0.9, True, (0,), False),  # no next at the last step
        ([0.5], 0.6, 0.1, True, (0,), False),
        ([], 0.0, 0.5, False, (), True),  # no candidate: on, while that is possible
        ([], 0.0, 0.5, True, (), False),
        ([], -INF, 0.5, False, (), True),
        ([-INF, -INF], -INF, -INF, False, (0,), False),  # never, but as the last resort
        ([-INF, 0.1], -INF, -INF, False, (1,), False),
        ([INF, INF], INF, INF, False, (0, 1), True),  # always
        ([NAN, 0.1], 0.0, -1.0, False, (1,), True),  # no number: a candidate out
        ([0.1], NAN, 5.0, False, (), True),  # no number: next in
        ([NAN], NAN, 0.0, False, (), True),
        ([NAN, NAN], 0.0, 0.5, True, (0,), False),
        ([INF], NAN, 0.0, False, (0,), True),
    ],
)
def test_the_set_of_actions(
    scores: list[float], onward: float, kappa: float, last: bool, keep: tuple[int, ...], proceed: bool
) -> None:
    assert actions(scores, onward, kappa, last=last) == (keep, proceed)
