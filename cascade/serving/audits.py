"""Whether a question was missed: what becomes of an audited answer once the truth about it is known.

A miss here is what calibration counts as one on a log (`conformal.critical`, `conformal.served`), with what stays
unknown on the side of a miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from cascade._deprecated import warn_renamed
from cascade.conformal.audits import audit_missed
from cascade.text import normalize_answer
from cascade.types import Answer

Judge: TypeAlias = Callable[[str], bool | None]
"""Says whether a text is right; None where that cannot be told."""


class Outcome(NamedTuple):
    """What became of the truth about an answer: whether it was missed, whether that was counted, and why not."""

    missed: bool | None
    counted: bool
    reason: str

    @property
    def says(self) -> str:
        """The old name of `reason`."""
        warn_renamed("says", "reason")
        return self.reason


def judge(right: Judge | str | Sequence[str], matcher: str) -> Judge:
    """Return what says whether a text is right, from that itself or from the accepted answers."""
    if callable(right):
        return right
    from cascade.matching import get_matcher

    rule, gold = get_matcher(matcher), (right,) if isinstance(right, str) else tuple(right)
    return lambda text: rule.matches(text, gold).correct


def missed_in_set(answer: Answer, right: Judge, *, complete: bool, only_solvable: bool = False) -> bool | None:
    """Return whether no right answer was kept although one could have been.

    Args:
        answer: an audited answer.
        right: the truth.
        complete: whether all steps were run. Where they were not, or an answer cannot be judged, a right one may have
            been there: a miss.
        only_solvable: whether questions of which no step has a right answer are outside the promise.

    Returns:
        None where the question is outside the promise.
    """
    verdicts = _verdicts(answer, right)
    kept = [
        step.candidates[place].text for step in answer.steps for place in (step.decision.keep if step.decision else ())
    ]
    known = complete and None not in verdicts.values()
    found = True in verdicts.values()
    if only_solvable and known and not found:
        return None
    return audit_missed(kept_right=any(verdicts[text] for text in kept), found_right=found, complete=known)


def served_wrong(answer: Answer, right: Judge) -> bool:
    """Return whether the answer served is wrong or cannot be judged, or none is served without abstaining."""
    return answer.stopped != "abstained" if answer.text is None else right(answer.text) is not True


def critical_of(answer: Answer, right: Judge, *, complete: bool) -> float | None:
    """Return an audited answer's critical value, the highest threshold at which a right answer is kept.

    None where a step was not decided by scores. `conformal.critical` says what +∞ and −∞ mean. Where not all steps were
    run, the last that was is not taken for the last there is: it went on where "next" says so, and nothing is known of
    what would have come.
    """
    import numpy as np

    from cascade.conformal.arrays import ScoreArrays, StepArrays
    from cascade.conformal.critical import critical_kappa
    from cascade.conformal.rollout import levels

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
            found[0, t, place] = numbers.setdefault(normalize_answer(candidate.text), len(numbers))
            correct[0, t, place] = verdicts[candidate.text] is True
            scores[0, t, place] = decision.scores[place]
    many, known = np.array([shape[1]]), np.array([complete and None not in verdicts.values()])
    steps = StepArrays(found, correct, np.zeros(shape[:2], dtype=np.int64), many, np.array([complete]))
    heights = levels(steps, ScoreArrays(scores, onward))
    return float(critical_kappa(replace(steps, complete=known), heights)[0])


def _verdicts(answer: Answer, right: Judge) -> dict[str, bool | None]:
    return {text: right(text) for text in dict.fromkeys(one.text for step in answer.steps for one in step.candidates)}
