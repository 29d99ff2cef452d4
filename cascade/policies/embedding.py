"""What a question is about, as a few numbers: its sentence embedding, seen from the directions that were fitted.

A sentence model (`strategies.embedding`) gives a question 384 numbers. A policy that was fitted with them keeps the few
directions in which its training questions differ most, and looks at where a question lies along each: the features
`asked.embedding_0`, `asked.embedding_1`, … One function gives them live and on a log, one question at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.errors import UsageError
from cascade.policies.question_features import AskedNumber

PREFIX = "embedding_"
NUMBER = AskedNumber("length, of 1", -2.0, 2.0, "where it lies along a direction of its sentence embedding")
_DECIMALS = 4
"""Processors add in their own order, and differ beyond the sixth decimal."""
_REMEMBERED = 256
"""Questions whose numbers are kept: a walk asks for the same question's at every step."""


@dataclass(frozen=True, slots=True, eq=False)
class Directions:
    """Where embeddings are looked at from.

    Attributes:
        model: the sentence model that they are of; another one's embeddings mean something else.
        centre: float64 (d,), the mean of the training questions' embeddings.
        axes: float64 (k, d), the directions, each of length 1.

    Raises:
        UsageError: their shapes do not fit, or a number is not finite.
    """

    model: str
    centre: Floats
    axes: Floats

    def __post_init__(self) -> None:
        fits = self.centre.ndim == 1 and self.axes.ndim == 2 and self.axes.shape[1:] == self.centre.shape
        if not fits or not self.axes.size or not (np.isfinite(self.centre).all() and np.isfinite(self.axes).all()):
            raise UsageError("The directions of an embedding are finite numbers: a centre (d,) and axes (k, d).")

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers are called among those of a question's text."""
        return tuple([f"{PREFIX}{index}" for index in range(len(self.axes))])

    def numbers(self, vector: Floats) -> dict[str, float]:
        """Return where an embedding, float64 (d,), lies along each direction, to four decimals."""
        if vector.shape != self.centre.shape:
            raise UsageError(f"An embedding has {self.centre.size} numbers, not {vector.size}.")
        along = [math.fsum(((vector - self.centre) * axis).tolist()) for axis in self.axes]
        return {name: round(value, _DECIMALS) + 0.0 for name, value in zip(self.names, along, strict=True)}


class Embedder(Protocol):
    """A sentence model."""

    @property
    def name(self) -> str:
        """Which one it is, to the bit of its weights."""
        ...

    def __call__(self, text: str) -> Floats:
        """Return a text's embedding, float64 (d,): the same text gives the same numbers."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """A question's text as the numbers `embedding_0`, … : a sentence model and the directions. Safe to share.

    Raises:
        UsageError: the directions are of another sentence model.
    """

    directions: Directions
    embedder: Embedder = field(repr=False)
    _known: dict[str, Mapping[str, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.directions.model != self.embedder.name:
            raise UsageError(
                f"The policy was fitted with the sentence model {self.directions.model}; this one is "
                f"{self.embedder.name}, whose embeddings mean something else. Fit it again."
            )

    def numbers(self, text: str) -> Mapping[str, float]:
        """Return a question's numbers. Raises what the sentence model raises; it never answers with zeros."""
        found = self._known.get(text)
        if found is None:
            found = self.directions.numbers(self.embedder(text))
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[text] = found
        return found
