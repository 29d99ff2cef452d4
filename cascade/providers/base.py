"""The Protocol of providers: a provider takes a request and returns an unchecked chat completion in OpenAI's form.

Retries, deadlines, checks and prices are the task of `guard` and the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, runtime_checkable

from cascade.types import Request

Payload: TypeAlias = Mapping[str, Any]
"""A chat completion, or a chunk of one, as plain JSON values."""
TRACEPARENT: ContextVar[str | None] = ContextVar("TRACEPARENT", default=None)
"""The `traceparent` header of calls to servers (W3C Trace Context); None: no such header is sent."""


class Provider(Protocol):
    """Answers requests. Raises `ProviderError`s, or an error that setup is missing; never errors of other libraries."""

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer within `timeout_s` seconds of wall clock, or raise `ProviderTimeoutError`.

        Blocking work belongs in a thread: `await cascade.resilience.event_loop.in_thread(work)`.
        """
        ...

    async def close(self) -> None:
        """Release connections and memory. May be called twice."""
        ...


@runtime_checkable
class Streams(Protocol):
    """Implemented by a provider that can answer piece by piece, in chat completion chunks."""

    def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield chunks as they come."""
        ...


@runtime_checkable
class Loads(Protocol):
    """Implemented by a provider whose first call would load something that takes seconds."""

    def load(self) -> None:
        """Load it now. May be called twice. Raises MissingExtraError if a package is not installed."""
        ...


@runtime_checkable
class Lacks(Protocol):
    """Implemented by a provider that knows, without a call, which fields a model refuses."""

    def lacks(self, model: str, fields: Iterable[str]) -> list[str]:
        """Return which of the given fields a model is known to refuse."""
        ...


@runtime_checkable
class Knows(Protocol):
    """Implemented by a provider that passes on fields that only some servers read (`fields.OPTIONAL`)."""

    def knows(self, model: str) -> frozenset[str]:
        """Return the optional fields that a model's server reads."""
        ...
