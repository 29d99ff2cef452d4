"""What a matcher is, and what it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Verdict(NamedTuple):
    """What a matcher found.

    `correct` is None where the answer cannot be judged: no accepted answer is known or readable, a judge's reply is
    unreadable, an expression took too long. An answer that cannot be read where the accepted one can is wrong: False.
    `score` in [0, 1] is a graded agreement, such as an F1, where the rule has one.
    """

    correct: bool | None
    score: float | None = None


UNKNOWN = Verdict(None)
RIGHT = Verdict(correct=True)
WRONG = Verdict(correct=False)


class Matcher(Protocol):
    """Decides whether an answer is one of the accepted ones."""

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether `answer` agrees with any of `gold`."""
        ...


@runtime_checkable
class QuestionMatcher(Matcher, Protocol):
    """A matcher that decides better if it knows what was asked; `judge_rows` tells it."""

    def matches_question(self, question: str, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether `answer` to `question` agrees with any of `gold`."""
        ...


def accepted(gold: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted answers. A text is one accepted answer, not as many as it has letters.

    >>> accepted("Vienna"), accepted(["Vienna", "Wien"])
    (('Vienna',), ('Vienna', 'Wien'))
    """
    return (gold,) if isinstance(gold, str) else tuple(gold)


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several accepted answers: right if one is met, unknown if one could be.

    >>> any_of([WRONG, UNKNOWN]), any_of([UNKNOWN, RIGHT]), any_of([])
    (Verdict(correct=None, score=None), Verdict(correct=True, score=None), Verdict(correct=None, score=None))
    """
    found = tuple(verdicts)
    scores = [one.score for one in found if one.score is not None]
    said = {one.correct for one in found}
    correct = True if True in said else None if None in said or not said else False
    return Verdict(correct, max(scores, default=None))
