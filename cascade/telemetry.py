"""OpenTelemetry spans of requests and model calls, by the semantic conventions for generative AI. Off by default.

A span is a child of the current span when the question is asked: an application's own, or that of a request to the
server. It has no text of a prompt or a reply, unless `telemetry.content` enables it.

References: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ (attribute names of version 1.41);
https://www.w3.org/TR/trace-context/ (`traceparent`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade._version import __version__
from cascade.chat import calls_of, function_of, text_of
from cascade.errors import ConfigError, MissingExtraError, ProviderError
from cascade.providers.base import TRACEPARENT
from cascade.providers.guard import Guard, Middleware
from cascade.resilience.event_loop import Deadline
from cascade.types import Completion, Request

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Attributes = dict[str, Any]


def tracer() -> Tracer:
    """Return the tracer of the process's own provider. Raises MissingExtraError without the extra `otel`."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError:
        raise MissingExtraError("opentelemetry", "telemetry") from None
    return trace.get_tracer("cascade", __version__)


def export(variable: Callable[[str], str | None]) -> bool:
    """Send the spans of this process by OTLP if OpenTelemetry's variables name an address; return whether they do.

    OTEL_TRACES_SAMPLER draws which traces are recorded; every span of a recorded trace is recorded.

    Args:
        variable: returns the value of a variable of the environment.

    Raises:
        MissingExtraError: without the extra `otel`.
        ConfigError: the variables name a protocol other than HTTP.
    """
    named = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    off = (variable("OTEL_SDK_DISABLED") or "").lower() == "true" or variable("OTEL_TRACES_EXPORTER") == "none"
    if named is None or off:
        return False
    protocol = variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in {None, "http/protobuf"}:
        raise ConfigError([f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol} is not supported; set http/protobuf"])
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased
    except ModuleNotFoundError:
        raise MissingExtraError("opentelemetry", "OTEL_EXPORTER_OTLP_ENDPOINT") from None
    resource = Resource({"service.name": "cascade"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.sampler = ParentBased(provider.sampler)  # `request_span` draws, and its parent carries the result
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


class Traceparent(NamedTuple):
    """The trace and the span that a client names, in hexadecimal digits.

    >>> Traceparent.of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    Traceparent(trace_id='0af7651916cd43dd8448eb211c80319c', span_id='b7ad6b7169203331')
    """

    trace_id: str
    span_id: str

    @classmethod
    def of(cls, traceparent: str | None) -> Traceparent | None:
        """Read a header; None if there is none, or if it is malformed."""
        match = _TRACEPARENT.fullmatch(traceparent or "")
        return None if match is None or (match[1] == "00" and match[4]) else cls(match[2], match[3])


_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


@contextmanager
def request_span(
    tracer: Tracer | None, name: str, trace_id: str, caller: Traceparent | None, key: str | None
) -> Iterator[Span | None]:
    """Make the span of a request in its caller's trace, and pass the trace on to calls; without a tracer, only pass it.

    Neither the caller's flag nor its choice of an id decides whether the span is recorded: that is drawn with a random
    number. `trace_id` would not do: samplers read its last 64 bits, and two of those are fixed in a UUID.
    """
    if tracer is None:
        trace_id = trace_id.replace("-", "") if caller is None else caller.trace_id
        TRACEPARENT.set(f"00-{trace_id}-{os.urandom(8).hex()}-00")
        yield None
        return
    from opentelemetry import trace
    from opentelemetry.context import Context

    context, kind = Context(), trace.SpanKind.SERVER
    if caller is not None:
        draws = getattr(tracer, "sampler", None)
        drawn = None if draws is None else draws.should_sample(None, secrets.randbits(128), name, kind)
        recorded = drawn is not None and drawn.decision.is_sampled()
        parent = trace.SpanContext(
            int(caller.trace_id, 16), int(caller.span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(recorded)
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
    named = {"cascade.trace_id": trace_id, "cascade.key": key or ""}
    with tracer.start_as_current_span(
        name, context, kind, named, record_exception=False, set_status_on_exception=False
    ) as span:  # a message may quote a prompt
        TRACEPARENT.set(_carried(span))
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.Status(trace.StatusCode.ERROR))
            raise


def _carried(span: Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags.sampled):02x}"


class TracedGuard(Middleware):
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

        attributes, replies = _request_attributes(request, content=self._content), list[Completion]()
        span = self._tracer.start_span(f"chat {request.model}", kind=SpanKind.CLIENT, attributes=attributes)
        TRACEPARENT.set(_carried(span))  # a later call sets its own
        try:
            yield replies
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            if isinstance(error, ProviderError):
                failed = {"http.response.status_code": error.status, "cascade.deployment": error.deployment}
                span.set_attributes({name: value for name, value in failed.items() if value is not None})
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            if replies:
                span.set_attributes(_answered(replies[0], content=self._content))
            span.end()


def _request_attributes(request: Request, *, content: bool) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": request.model.partition("/")[0] if "/" in request.model else "_OTHER",
        "gen_ai.request.model": request.model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "cascade.role": request.role,
        "cascade.purpose": request.purpose,
        "cascade.step": request.step,
    }
    if request.chat is None:
        attributes["gen_ai.request.temperature"] = request.temperature
    if request.instead_of is not None:
        attributes["cascade.instead_of"] = request.instead_of
    if content:
        messages: Any = [turn._asdict() for turn in request.messages] if request.chat is None else request.chat.messages
        attributes["gen_ai.input.messages"] = _messages(messages)
    return attributes


def _answered(completion: Completion, *, content: bool) -> Attributes:
    usage = completion.usage
    attributes: Attributes = {
        "gen_ai.response.model": completion.model,
        "gen_ai.response.id": completion.request_id,
        "cascade.deployment": completion.deployment,
        "gen_ai.response.finish_reasons": (completion.finish_reason,),
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if content:
        message = completion.message or {"role": "assistant", "content": completion.text}
        attributes["gen_ai.output.messages"] = _messages([message])
    return {name: value for name, value in attributes.items() if value is not None}


def _messages(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return messages in the form of the conventions. Tool calls are also parts."""
    turns = []
    for message in messages:
        blocks: list[Attributes] = [{"type": "text", "content": text_of(message.get("content"))}]
        blocks += [{"type": "tool_call", **function_of(call)} for call in calls_of(message)]
        turns.append({"role": message.get("role"), "parts": [block for block in blocks if block.get("content") != ""]})
    return json.dumps(turns, ensure_ascii=False, default=str)
