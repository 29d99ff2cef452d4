"""What matchers and comparators are, and what they say.

A matcher says whether an answer is one of the accepted ones; a comparator whether two outputs of a request are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from cascade.chat import ChatRequest


class Verdict(NamedTuple):
    """What a matcher or a comparator found.

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


@runtime_checkable
class Comparator(Protocol):
    """Decides whether two outputs of one request are the same (`correct`), and how alike they are (`score`)."""

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> Verdict:
        """Return whether two outputs, as `chat.output_text` gives them, are the same answer to the request."""
        ...


@runtime_checkable
class KeyedComparator(Comparator, Protocol):
    """A comparator by which outputs are the same exactly if their keys are equal, so that sameness is transitive."""

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return what is equal for outputs that are the same."""
        ...


@dataclass(frozen=True, slots=True)
class ByMatching:
    """A matcher as a comparator: the other output is the accepted answer, and equal texts are the same."""

    matcher: Matcher

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> Verdict:
        """Return whether the matcher takes one output where the other is accepted."""
        if one.strip() == other.strip():
            return Verdict(correct=True, score=1.0)
        if request is not None and isinstance(self.matcher, QuestionMatcher):
            return self.matcher.matches_question(request.asked_text, one, (other,))
        return self.matcher.matches(one, (other,))


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


def by_keys(one: str, other: str, score: float | None = None) -> Verdict:
    """Return the verdict on two keys; `score` is how alike outputs of different keys are, 0 by default."""
    same = one == other
    return Verdict(same, 1.0 if same else score or 0.0)
