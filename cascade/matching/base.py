"""The Protocols of matchers and comparators, and a user's own function as one.

A matcher says whether an answer is one of the accepted ones; a comparator whether two outputs of a request are equal.
Both say None if that is unknown: no accepted answer is known or readable, a judge's reply is unreadable, an expression
took too long. If only the answer cannot be read, it is wrong: False.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

from cascade.chat import ChatRequest
from cascade.errors import CascadeError, UsageError, quote
from cascade.registry import imported

TimeLimit = Annotated[float, Field(gt=0, le=3_600)]
"""Seconds that one comparison may take: at most an hour."""


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

    def same(self, output: str, other: str, request: ChatRequest | None = None) -> bool | None:
        """Return whether two outputs, in the form of `chat.output_text`, are the same answer to the request."""
        ...


@runtime_checkable
class KeyedComparator(Comparator, Protocol):
    """A comparator by which outputs are the same exactly if their keys are equal, so that sameness is transitive."""

    def same(self, output: str, other: str, request: ChatRequest | None = None) -> bool:
        """Return whether two outputs are the same answer to the request."""
        return self.key(output, request) == self.key(other, request)

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return a key that is equal exactly for outputs that are the same."""
        ...


@dataclass(frozen=True, slots=True)
class ByMatching:
    """A matcher as a comparator: the other output is the accepted answer, and equal texts are the same."""

    matcher: Matcher

    def same(self, output: str, other: str, request: ChatRequest | None = None) -> bool | None:
        """Return whether the matcher accepts one output if the other is the accepted answer."""
        if output.strip() == other.strip():
            return True
        if request is not None and isinstance(self.matcher, QuestionMatcher):
            return self.matcher.matches_question(request.asked_text, output, (other,))
        return self.matcher.matches(output, (other,))


class FunctionMatcher:
    """A user's own rule: a function `(answer, gold)`, with `gold` a tuple of texts, returns a bool, or None if unknown.

    Args:
        function: the function, or its name as "module.attribute"; the module is imported, which runs it.

    Raises:
        UsageError: there is no such function.

    >>> FunctionMatcher(lambda answer, gold: answer in gold).matches("a", ["a", "b"])
    True
    """

    def __init__(self, function: Callable[[str, tuple[str, ...]], Any] | str) -> None:
        self._function = function if callable(function) else _imported_function(function)
        self._name = getattr(self._function, "__qualname__", type(self._function).__name__)

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return the function's verdict.

        Raises:
            UsageError: the function raised, or did not return a truth value; it names the function.
        """
        try:
            verdict = self._function(answer, accepted(gold))
        except CascadeError:
            raise
        except Exception as error:
            shown = f"{type(error).__name__}: {quote(str(error))}"
            raise UsageError(f"The matching function {self._name} failed: {shown}. Fix it and run again.") from error
        plain = verdict.item() if getattr(verdict, "shape", None) == () else verdict  # numpy's scalars are no bools
        if plain is None or isinstance(plain, bool):
            return plain
        raise UsageError(
            f"The matching function {self._name} returned {quote(repr(verdict))}. It must return True, False, or None "
            "if the truth is unknown."
        )


def _imported_function(path: Any) -> Callable[..., Any]:
    module, _, attribute = str(path).replace(":", ".").rpartition(".")
    if not module:
        raise UsageError(f'function={path!r} must be "module.attribute", such as my_rules.is_right')
    try:
        function = imported(f"{module}:{attribute}")
    except ValueError as error:
        raise UsageError(f"function={path!r} {error}") from error
    if not callable(function):
        raise UsageError(f"function={path!r} must be a function")
    loaded: Callable[..., Any] = function
    return loaded


def accepted(gold: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted answers. A single text is one accepted answer.

    >>> accepted("Vienna"), accepted(["Vienna", "Wien"])
    (('Vienna',), ('Vienna', 'Wien'))
    """
    return (gold,) if isinstance(gold, str) else tuple(gold)
