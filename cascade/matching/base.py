"""The Protocols of matchers and comparators.

A matcher says whether an answer is one of the accepted ones; a comparator whether two outputs of a request are equal.
Both say None if that is unknown: no accepted answer is known or readable, a judge's reply is unreadable, an expression
took too long. If only the answer cannot be read, it is wrong: False.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from cascade.chat import ChatRequest
from cascade.errors import CascadeError, UsageError, quote


class Matcher(Protocol):
    """Decides whether an answer is one of the accepted ones."""

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether `answer` agrees with any of `gold`."""
        ...


@runtime_checkable
class QuestionMatcher(Matcher, Protocol):
    """A matcher that also uses the question; `judge_rows` passes it."""

    def matches_question(self, question: str, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether `answer` to `question` agrees with any of `gold`."""
        ...


@runtime_checkable
class Comparator(Protocol):
    """Decides whether two outputs of one request are the same."""

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> bool | None:
        """Return whether two outputs, in the form of `chat.output_text`, are the same answer to the request."""
        ...


@runtime_checkable
class KeyedComparator(Comparator, Protocol):
    """A comparator by which outputs are the same exactly if their keys are equal, so that sameness is transitive."""

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> bool:
        """Return whether two outputs are the same answer to the request."""
        return self.key(one, request) == self.key(other, request)

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return a key that is equal exactly for outputs that are the same."""
        ...


@dataclass(frozen=True, slots=True)
class ByMatching:
    """A matcher as a comparator: the other output is the accepted answer, and equal texts are the same."""

    matcher: Matcher

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> bool | None:
        """Return whether the matcher accepts one output if the other is the accepted answer."""
        if one.strip() == other.strip():
            return True
        if request is not None and isinstance(self.matcher, QuestionMatcher):
            return self.matcher.matches_question(request.asked_text, one, (other,))
        return self.matcher.matches(one, (other,))


@dataclass(frozen=True, slots=True)
class FunctionMatcher:
    """A user's own rule: a function `(answer, gold)`, with `gold` a tuple of texts, returns a bool, or None if unknown.

    >>> FunctionMatcher(lambda answer, gold: answer in gold).matches("a", ["a", "b"])
    True
    """

    function: Callable[[str, tuple[str, ...]], Any]

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return the function's verdict.

        Raises:
            UsageError: the function raised, or did not return a truth value; it names the function.
        """
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        try:
            verdict = self.function(answer, accepted(gold))
        except CascadeError:
            raise
        except Exception as error:
            shown = f"{type(error).__name__}: {quote(str(error))}"
            raise UsageError(f"The matching function {name} failed: {shown}. Fix it and run again.") from error
        plain = verdict.item() if getattr(verdict, "shape", None) == () else verdict  # numpy's scalars are no bools
        if plain is None or isinstance(plain, bool):
            return plain
        raise UsageError(
            f"The matching function {name} returned {quote(repr(verdict))}. It must return True, False, or None if the "
            "truth is unknown."
        )


def accepted(gold: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted answers. A single text is one accepted answer.

    >>> accepted("Vienna"), accepted(["Vienna", "Wien"])
    (('Vienna',), ('Vienna', 'Wien'))
    """
    return (gold,) if isinstance(gold, str) else tuple(gold)


def any_of(verdicts: Iterable[bool | None]) -> bool | None:
    """Return the verdict on several accepted answers: right if one matches, else unknown if one may match.

    >>> any_of([False, None]), any_of([None, True]), any_of([])
    (None, True, None)
    """
    seen = set(verdicts)
    return True if True in seen else None if None in seen or not seen else False
