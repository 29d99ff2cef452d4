"""The Protocol of a strategy, and what it says of each model that it uses."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cascade.policies.base import Takes
from cascade.types import Completion, Question, Request, Step

Plan: TypeAlias = Generator[Request | Step, Completion | None, None]
"""Yields a `Request` and is sent its `Completion` (or has a `ProviderError` thrown in), yields an undecided `Step` and
is resumed if another step is wanted. It ends by returning after its last step."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model and how it is asked."""

    name: str
    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None


class Strategy(Protocol):
    """Combines models into steps."""

    @property
    def horizon(self) -> int:
        """T, the most steps a question can take."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that it may call."""
        ...

    def plan(self, question: Question) -> Plan:
        """Return the plan of one question."""
        ...

    def only(self, takes: Takes) -> Strategy:
        """Return the strategy of the part that a policy takes.

        Raises:
            UsageError: the strategy has no such part.
        """
        ...
