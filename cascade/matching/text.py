"""When two texts are the same: the same words."""

from __future__ import annotations

from collections.abc import Sequence

from cascade.chat import ChatRequest
from cascade.matching.base import UNKNOWN, Verdict, accepted, by_keys
from cascade.text import normalize_answer


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
