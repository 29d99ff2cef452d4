"""A user's own rule: a plain function of the answer and the accepted answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cascade.errors import CascadeError, UsageError, quote
from cascade.matching.base import UNKNOWN, Verdict, accepted


@dataclass(frozen=True, slots=True)
class FunctionMatcher:
    """The verdict of a function `(answer, gold)`; `gold` is a tuple of texts.

    The function returns a bool, or a score in [0, 1], which is right from `at_least` on; None or NaN if unknown.

    Attributes:
        function: the rule.
        at_least: the least score of a right answer.

    >>> FunctionMatcher(lambda answer, gold: answer in gold).matches("a", ["a", "b"]).correct
    True
    """

    function: Callable[[str, tuple[str, ...]], Any]
    at_least: Fraction = Fraction(1, 2)

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return the function's verdict.

        Raises:
            UsageError: the function raised, or did not return a truth value; it names the function.
        """
        try:
            said = self.function(answer, accepted(gold))
        except CascadeError:
            raise
        except Exception as error:
            shown = f"{type(error).__name__}: {quote(str(error))}"
            raise UsageError(f"The matching function {self._name} failed: {shown}. Fix it and run again.") from error
        return self._verdict(said)

    def _verdict(self, said: Any) -> Verdict:
        if isinstance(said, Verdict):
            return said
        plain = said.item() if getattr(said, "shape", None) == () else said  # numpy's scalars are no bools
        if isinstance(plain, bool):
            return Verdict(plain)
        if plain is None or (isinstance(plain, float) and plain != plain):  # noqa: PLR0124 - NaN
            return UNKNOWN
        if isinstance(plain, int | float) and 0 <= plain <= 1:
            return Verdict(plain >= self.at_least, float(plain))
        shown = quote(repr(said))
        raise UsageError(
            f"The matching function {self._name} returned {shown}. It must return True, False, a score from 0 to 1, "
            "or None if the truth is unknown."
        )

    @property
    def _name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)
