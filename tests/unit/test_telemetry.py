"""Spans of model calls, as an application's own exporter gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import uuid4

import pytest

from cascade import Orchestrator, errors, telemetry
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.litellm import LiteLLM
from cascade.providers.openai_http import Exchange
from cascade.providers.registry import Endpoint
from cascade.telemetry import Traceparent
from cascade.types import Request
from unit.server.served import asgi

sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")

SETTINGS = {
    "models": {"base": {"model": "openai/small"}, "guide": {"model": "large"}},
    "provider": "fake",
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "traces": "off",
}
PROMPT, REPLY = "Which river flows through Vienna?", "It is the Danube."


def script(request: Request) -> Any:
    return (
        errors.BadRequestError("no", status=400)
        if request.model == "openai/small"
        else reply(REPLY, logprobs=[-0.1] * 9)
    )


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "tracer", lambda: provider.get_tracer("cascade"))
    yield exporter.get_finished_spans
    provider.shutdown()


def served(script: Any, **settings: Any) -> Orchestrator:
    return Orchestrator.from_config({**SETTINGS, **settings}, providers={"fake": FakeProvider(script)})


@pytest.mark.parametrize("way", ["ask", "aask", "stream", "chat"])
async def test_each_call_is_a_span_without_content(spans, way):
    async with served(script, telemetry={"spans": True}) as orchestrator:
        if way == "aask":
            await orchestrator.aask(PROMPT)
        elif way == "chat":
            await orchestrator.achat([{"role": "user", "content": PROMPT}])
        elif way == "stream":
            [event async for event in orchestrator.astream(PROMPT)]
        else:
            import asyncio

            await asyncio.to_thread(orchestrator.ask, PROMPT)
    first, second = spans()
    assert (first.name, second.name) == ("chat openai/small", "chat large")
    assert first.attributes["error.type"] == "BadRequestError"
    assert first.attributes["gen_ai.provider.name"] == "openai"
    assert not first.status.is_ok
    assert second.attributes["gen_ai.usage.output_tokens"] > 0
    assert second.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert second.attributes["cascade.step"] == 2
    assert PROMPT not in str([dict(span.attributes) for span in spans()])
    assert REPLY not in str([dict(span.attributes) for span in spans()])


async def test_content_stands_in_spans_where_that_is_asked_for(spans):
    async with served(script, telemetry={"spans": True, "content": True}) as orchestrator:
        await orchestrator.achat([{"role": "user", "content": PROMPT}])
    attributes = spans()[-1].attributes
    assert PROMPT in attributes["gen_ai.input.messages"]
    assert REPLY in attributes["gen_ai.output.messages"]


def test_a_span_is_a_child_of_the_applications_and_its_caller_sees_no_other(spans):
    from opentelemetry import trace

    with (
        served(script, telemetry={"spans": True}) as orchestrator,
        telemetry.tracer().start_as_current_span("app") as app,
    ):
        for _ in orchestrator.stream(PROMPT):
            assert trace.get_current_span() is app
    assert {span.parent.span_id for span in spans() if span.name != "app"} == {app.get_span_context().span_id}


def test_without_being_asked_for_there_are_none(spans):
    with served(script) as orchestrator:
        orchestrator.ask(PROMPT)
    assert spans() == ()


# --- traces across servers ---

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_which_traceparent_is_read():
    rest = f"{TRACE}-{SPAN}"
    assert Traceparent.of(f"00-{rest}-01") == Traceparent.of(f"cc-{rest}-01-what-comes") == Traceparent(TRACE, SPAN)
    wrong = [None, "", "x" * 10_000, rest, f"00-{rest}", f"00-{rest}-01-x", f"00-{rest}-01\n", f"ff-{rest}-01"]
    wrong += [f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01"]
    assert [header for header in wrong if Traceparent.of(header)] == []


async def sent(flag: str | None, **settings: Any) -> tuple[Any, list[Any]]:
    """Return the trace id of a request's response, and what each call to a model carries and was made of."""
    seen = list[Any]()

    class Provider(FakeProvider):
        async def complete(self, request: Request, timeout_s: float) -> Any:
            chats = Exchange(Endpoint(), request, 1.0, stream=False).own_headers["traceparent"]
            assert LiteLLM()._arguments(request, 1.0)["extra_headers"] == {"traceparent": chats}
            seen.append(chats.split("-"))
            return await super().complete(request, timeout_s)

    provider = Provider(script)
    async with Orchestrator.from_config({**SETTINGS, **settings}, providers={"fake": provider}) as orchestrator:
        headers = {} if flag is None else {"traceparent": f"00-{TRACE}-{SPAN}-{flag}"}
        body = {"model": "cascade", "messages": [{"role": "user", "content": PROMPT}]}
        async with asgi(orchestrator, **headers) as client:
            response = await client.post("/v1/chat/completions", json=body)
    return response.headers["x-cascade-trace-id"].replace("-", ""), seen


@pytest.mark.parametrize("flag", ["00", "01", None])
async def test_calls_carry_on_the_trace_and_never_the_flag_of_a_client(flag):
    own, calls = await sent(flag)
    assert {(trace, flags) for _, trace, _, flags in calls} == {(own if flag is None else TRACE, "00")}
    assert SPAN not in {span for _, _, span, _ in calls}


@pytest.mark.parametrize("flag", ["00", "01", None])
@pytest.mark.parametrize("draws", ["ALWAYS_ON", "ALWAYS_OFF"])
async def test_a_request_is_a_span_of_its_clients_trace_if_the_server_draws_it(spans, monkeypatch, flag, draws):
    tracer = telemetry.tracer()
    monkeypatch.setattr(tracer, "sampler", sampling.ParentBased(getattr(sampling, draws)))
    monkeypatch.setattr(telemetry, "tracer", lambda: tracer)
    monkeypatch.setattr("cascade.server.app.tracer", lambda: tracer)
    own, calls = await sent(flag, telemetry={"spans": True})
    if draws == "ALWAYS_OFF":
        assert ({flags for *_, flags in calls}, spans()) == ({"00"}, ())
        return
    assert {flags for *_, flags in calls} == {"01"}
    *children, request = spans()
    assert PROMPT not in str([dict(record.attributes) for record in spans()])
    assert request.attributes["cascade.trace_id"].replace("-", "") == own
    assert request.attributes["http.response.status_code"] == 200
    assert [f"{record.context.span_id:016x}" for record in children] == [span for _, _, span, _ in calls]
    assert {record.parent.span_id for record in children} == {request.context.span_id}
    if flag is not None:
        assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, SPAN)


def test_a_share_of_one_clients_trace_is_drawn_by_no_id_of_its_own_or_of_a_request(spans, monkeypatch):
    tracer, caller, flags = telemetry.tracer(), Traceparent(TRACE, SPAN), set[bool]()
    monkeypatch.setattr(tracer, "sampler", sampling.ParentBased(sampling.TraceIdRatioBased(0.5)))
    for _ in range(64):
        with telemetry.request_span(tracer, "POST", str(uuid4()), caller, None) as span:
            flags.add(span.is_recording())
    assert flags == {True, False}


def test_spans_go_where_the_standard_variables_say(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry import trace

    posted, providers = list[tuple[str, bytes]](), list[Any]()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        assert telemetry.export({"OTEL_EXPORTER_OTLP_ENDPOINT": address}.get)
        with providers[0].get_tracer("cascade").start_as_current_span("a request"):
            pass
        providers[0].shutdown()
        server.shutdown()
    ((path, body),) = posted
    assert (path, b"a request" in body, b"service.name" in body) == ("/v1/traces", True, True)


@pytest.mark.parametrize(
    "name", ["SDK_DISABLED", "TRACES_EXPORTER", "EXPORTER_OTLP_ENDPOINT", "EXPORTER_OTLP_PROTOCOL"]
)
def test_without_an_address_nothing_is_sent_and_an_unknown_protocol_is_refused(name):
    values = {"SDK_DISABLED": "TRUE", "TRACES_EXPORTER": "none", "EXPORTER_OTLP_PROTOCOL": "grpc"}
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", f"OTEL_{name}": values.get(name)}
    with pytest.raises(errors.ConfigError) if "PROTOCOL" in name else nullcontext():
        assert not telemetry.export(variables.get)
