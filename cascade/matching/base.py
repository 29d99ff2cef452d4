"""The Protocols of matchers and comparators, and their verdict.

A matcher says whether an answer is one of the accepted ones; a comparator whether two outputs of a request are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from cascade.chat import ChatRequest


class Verdict(NamedTuple):
    """The result of a matcher or a comparator.

    `correct` is None if the answer cannot be judged: no accepted answer is known or readable, a judge's reply is
    unreadable, an expression took too long. If only the answer cannot be read, it is wrong: False.
    `score` in [0, 1] is a graded agreement, such as an F1, if the rule has one.
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
    """A matcher that also uses the question; `judge_rows` passes it."""

    def matches_question(self, question: str, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether `answer` to `question` agrees with any of `gold`."""
        ...


@runtime_checkable
class Comparator(Protocol):
    """Decides whether two outputs of one request are the same (`correct`), and how similar they are (`score`)."""

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> Verdict:
        """Return whether two outputs, in the form of `chat.output_text`, are the same answer to the request."""
        ...


@runtime_checkable
class KeyedComparator(Comparator, Protocol):
    """A comparator by which outputs are the same exactly if their keys are equal, so that sameness is transitive."""

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return a key that is equal exactly for outputs that are the same."""
        ...


@dataclass(frozen=True, slots=True)
class ByMatching:
    """A matcher as a comparator: the other output is the accepted answer, and equal texts are the same."""

    matcher: Matcher

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> Verdict:
        """Return whether the matcher accepts one output if the other is the accepted answer."""
        if one.strip() == other.strip():
            return Verdict(correct=True, score=1.0)
        if request is not None and isinstance(self.matcher, QuestionMatcher):
            return self.matcher.matches_question(request.asked_text, one, (other,))
        return self.matcher.matches(one, (other,))


def accepted(gold: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted answers. A single text is one accepted answer.

    >>> accepted("Vienna"), accepted(["Vienna", "Wien"])
    (('Vienna',), ('Vienna', 'Wien'))
    """
    return (gold,) if isinstance(gold, str) else tuple(gold)


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several accepted answers: right if one matches, else unknown if one may match.

    >>> any_of([WRONG, UNKNOWN]), any_of([UNKNOWN, RIGHT]), any_of([])
    (Verdict(correct=None, score=None), Verdict(correct=True, score=None), Verdict(correct=None, score=None))
    """
    found = tuple(verdicts)
    scores = [one.score for one in found if one.score is not None]
    said = {one.correct for one in found}
    correct = True if True in said else None if None in said or not said else False
    return Verdict(correct, max(scores, default=None))


def by_keys(one: str, other: str, score: float | None = None) -> Verdict:
    """Return the verdict on two keys; `score` is the similarity of outputs with different keys, 0 by default."""
    same = one == other
    return Verdict(same, 1.0 if same else score or 0.0)
