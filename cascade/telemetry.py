"""OpenTelemetry spans of model calls, by the semantic conventions for generative AI. Off unless configured.

A span is a child of the current span when the question is asked: an application's own, or that of an instrumented
server. It has no text of a prompt or a reply, unless `telemetry.content` enables it.

Reference: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ (attribute names of version 1.41).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from cascade._names import __version__
from cascade.chat import calls_of, function_of, text_of
from cascade.errors import MissingExtraError, ProviderError
from cascade.providers.guard import Around, Guard
from cascade.resilience.portal import Deadline
from cascade.types import Completion, Request

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Attributes = dict[str, Any]


def tracer() -> Tracer:
    """Return the tracer of the process's own provider. Raises MissingExtraError without the extra `otel`."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError:
        raise MissingExtraError("opentelemetry", "telemetry") from None
    return trace.get_tracer("cascade", __version__)


class TracedGuard(Around):
    """A guard that makes a span for each call.

    Args:
        guard: makes the calls.
        tracer: makes the spans.
        content: whether a span has the prompt and the reply.
    """

    def __init__(self, guard: Guard, tracer: Tracer, *, content: bool) -> None:
        super().__init__(guard)
        self._tracer, self._content = tracer, content

    @asynccontextmanager
    async def around(self, request: Request, deadline: Deadline) -> AsyncIterator[list[Completion]]:  # noqa: ARG002
        """Make a span without making it current, since a stream's caller runs between its pieces."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        asked, replies = _asked(request, content=self._content), list[Completion]()
        span = self._tracer.start_span(f"chat {request.model}", kind=SpanKind.CLIENT, attributes=asked)
        try:
            yield replies
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            if isinstance(error, ProviderError) and error.status is not None:
                span.set_attribute("http.response.status_code", error.status)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            if replies:
                span.set_attributes(_answered(replies[0], content=self._content))
            span.end()


def _asked(request: Request, *, content: bool) -> Attributes:
    found: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": request.model.partition("/")[0] if "/" in request.model else "_OTHER",
        "gen_ai.request.model": request.model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "cascade.role": request.role,
        "cascade.purpose": request.purpose,
        "cascade.step": request.step,
    }
    if request.chat is None:
        found["gen_ai.request.temperature"] = request.temperature
    if request.instead_of is not None:
        found["cascade.instead_of"] = request.instead_of
    if content:
        said: Any = [one._asdict() for one in request.messages] if request.chat is None else request.chat.messages
        found["gen_ai.input.messages"] = _messages(said)
    return found


def _answered(completion: Completion, *, content: bool) -> Attributes:
    usage = completion.usage
    found: Attributes = {
        "gen_ai.response.model": completion.model,
        "gen_ai.response.id": completion.request_id,
        "gen_ai.response.finish_reasons": (completion.finish_reason,),
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if content:
        said = completion.message or {"role": "assistant", "content": completion.text}
        found["gen_ai.output.messages"] = _messages([said])
    return {name: value for name, value in found.items() if value is not None}


def _messages(said: Iterable[Mapping[str, Any]]) -> str:
    """Return messages in the form of the conventions. Tool calls are also parts."""
    found = []
    for one in said:
        parts: list[Attributes] = [{"type": "text", "content": text_of(one.get("content"))}]
        parts += [{"type": "tool_call", **function_of(call)} for call in calls_of(one)]
        found.append({"role": one.get("role"), "parts": [part for part in parts if part.get("content") != ""]})
    return json.dumps(found, ensure_ascii=False, default=str)
