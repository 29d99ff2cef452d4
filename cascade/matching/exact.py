"""Whether two answers are the same: the same words after normalisation (`TextMatcher`), or also the same number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from cascade.chat import ChatRequest
from cascade.matching.base import UNKNOWN, Verdict, accepted, by_keys
from cascade.text import normalize_answer

_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")
_PLAIN_NUMBER = re.compile(r"^\s*[-−]?\d[\d,]*(?:\.\d+)?\s*$")


def exact_match(answer: str, gold: Iterable[str]) -> bool:
    """Whether an answer equals one of the accepted ones.

    Words are compared as in SQuAD (`text.normalize_answer`). If the accepted answer is a plain number, an answer with
    exactly one number is compared by value, with any unit; of an equation, the right-hand side counts.

    >>> exact_match("The Danube.", ["Danube"]), exact_match("$9", ["9"]), exact_match("7 x 3", ["21"])
    (True, True, False)
    """
    accepted = tuple(gold)
    key = normalize_answer(answer)
    if any(normalize_answer(one) == key for one in accepted):
        return True
    value = only_number(answer)
    return value is not None and any(_PLAIN_NUMBER.match(one) and only_number(one) == value for one in accepted)


def only_number(text: str) -> Decimal | None:
    """Return the number in a text with exactly one number after its last "=", if any; None otherwise."""
    found = _NUMBER.findall(text[:1_000].rpartition("=")[2])
    if len(found) != 1:
        return None
    try:
        return Decimal(found[0].replace(",", "").replace("−", "-"))
    except InvalidOperation:
        return None


@dataclass(frozen=True, slots=True)
class ExactMatcher:
    """`exact_match` as a matcher: the default for short answers.

    >>> ExactMatcher().matches("The Danube.", ["Danube"]).correct
    True
    """

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer equals an accepted one; None if there is no accepted one."""
        golds = accepted(gold)
        return Verdict(exact_match(answer, golds)) if golds else UNKNOWN


class TextMatcher:
    """The same words after normalisation (`text.normalize_answer`). Long free text hardly ever has the same words.

    >>> TextMatcher().same("The Danube.", "danube").correct
    True
    """

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer has the words of an accepted one."""
        keys = [normalize_answer(one) for one in accepted(gold)]
        return Verdict(normalize_answer(answer) in keys) if keys else UNKNOWN

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> Verdict:
        """Return whether two texts have the same words."""
        return by_keys(self.key(one, request), self.key(other, request))

    def key(self, output: str, request: ChatRequest | None = None) -> str:  # noqa: ARG002 - the Protocol's
        """Return the words."""
        return normalize_answer(output)
