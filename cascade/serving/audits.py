"""Decides whether an audited question was missed, once it is known which answers are right.

Misses are defined as in calibration on a log (`conformal.split`, `conformal.served`). Unknown results count as misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cascade.guarantees.base import Judge
from cascade.matching.same import answer_key
from cascade.types import Answer


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
    return lambda text: rule.matches(text, gold).correct


def critical_of(answer: Answer, right: Judge, *, complete: bool) -> float | None:
    """Return an audited answer's critical value, the highest threshold at which a right answer is kept.

    None if a step was not decided by scores. `conformal.split` defines +∞ and −∞. If not all steps were run, the last
    one that was run is not treated as the final step: "next" is possible after it, and its result is unknown.
    """
    import numpy as np

    from cascade.conformal.arrays import ScoreArrays, StepArrays, levels
    from cascade.conformal.split import critical_kappa

    verdicts = _verdicts(answer, right)
    numbers: dict[str, int] = {}
    shape = 1, len(answer.steps) + (not complete), max((len(step.candidates) for step in answer.steps), default=0) or 1
    found, correct = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    scores, onward = np.full(shape, -np.inf), np.full(shape[:2], -np.inf)
    for t, step in enumerate(answer.steps):
        decision = step.decision
        if decision is None or len(decision.scores) != len(step.candidates):
            return None
        onward[0, t] = decision.next_score
        for place, candidate in enumerate(step.candidates):
            found[0, t, place] = numbers.setdefault(answer_key(candidate.text, answer.question.chat), len(numbers))
            correct[0, t, place] = verdicts[candidate.text] is True
            scores[0, t, place] = decision.scores[place]
    many, known = np.array([shape[1]]), np.array([complete and None not in verdicts.values()])
    steps = StepArrays(found, correct, np.zeros(shape[:2], dtype=np.int64), many, np.array([complete]))
    heights = levels(steps, ScoreArrays(scores, onward))
    return float(critical_kappa(replace(steps, complete=known), heights)[0])


def _verdicts(answer: Answer, right: Judge) -> dict[str, bool | None]:
    return {text: right(text) for text in dict.fromkeys(one.text for step in answer.steps for one in step.candidates)}
