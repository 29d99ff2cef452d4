"""Compare the meaning of two texts by the cosine of their sentence vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from cascade.chat import ChatRequest
from cascade.matching.base import UNKNOWN, Verdict, accepted, any_of

Embed = Callable[[str], Any]
"""Returns a text's vector, such as `strategies.embedding.SentenceModel`."""


class EmbeddingMatcher:
    """Two texts are the same if the cosine of their vectors reaches a threshold; the score is the cosine, at least 0.

    A threshold is valid for one kind of text and one sentence model. Set it from pairs that people have judged:
    `calibration.similarity.similarity_threshold`.

    >>> matcher = EmbeddingMatcher(lambda text: (len(text), 1.0), Fraction(9, 10))
    >>> matcher.same("ten", "two").correct
    True
    """

    def __init__(self, embed: Embed, threshold: Fraction) -> None:
        self._vector = lru_cache(maxsize=4_096)(lambda text: _unit(embed(text)))
        self._threshold = float(threshold)

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer means the same as an accepted one."""
        golds = accepted(gold)
        return any_of([self.same(answer, one) for one in golds]) if golds else UNKNOWN

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> Verdict:  # noqa: ARG002 - the Protocol's
        """Return whether two texts mean the same. An empty text is the same only as another empty text."""
        if not one.strip() or not other.strip():
            same = one.strip() == other.strip()
            return Verdict(same, float(same))
        cosine = self.cosine(one, other)
        return Verdict(cosine >= self._threshold, min(1.0, max(0.0, cosine)))

    def cosine(self, one: str, other: str) -> float:
        """Return the cosine of two texts' vectors: 1 for equal texts."""
        return (
            1.0
            if one == other
            else math.fsum(a * b for a, b in zip(self._vector(one), self._vector(other), strict=True))
        )


def _unit(vector: Any) -> tuple[float, ...]:
    numbers = [float(one) for one in vector]
    length = math.hypot(*numbers)
    return tuple([one / length for one in numbers]) if length else tuple(numbers)
