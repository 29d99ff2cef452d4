"""Spans of model calls, as an application's own exporter gets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cascade import Orchestrator, errors, telemetry
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Request

pytest.importorskip("opentelemetry.sdk")

SETTINGS = {
    "models": {"base": {"model": "openai/small"}, "guide": {"model": "large"}},
    "provider": "fake",
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "traces": "off",
}
PROMPT, SAID = "Which river flows through Vienna?", "It is the Danube."


def script(request: Request) -> Any:
    return (
        errors.BadRequestError("no", status=400)
        if request.model == "openai/small"
        else reply(SAID, logprobs=[-0.1] * 9)
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
async def test_each_call_is_a_span_without_content(spans: Any, way: str) -> None:
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
    assert PROMPT not in str([dict(one.attributes) for one in spans()])
    assert SAID not in str([dict(one.attributes) for one in spans()])


async def test_content_stands_in_spans_where_that_is_asked_for(spans: Any) -> None:
    async with served(script, telemetry={"spans": True, "content": True}) as orchestrator:
        await orchestrator.achat([{"role": "user", "content": PROMPT}])
    attributes = spans()[-1].attributes
    assert PROMPT in attributes["gen_ai.input.messages"]
    assert SAID in attributes["gen_ai.output.messages"]


def test_a_span_is_a_child_of_the_applications_and_its_caller_sees_no_other(spans: Any) -> None:
    from opentelemetry import trace

    with (
        served(script, telemetry={"spans": True}) as orchestrator,
        telemetry.tracer().start_as_current_span("app") as app,
    ):
        for _ in orchestrator.stream(PROMPT):
            assert trace.get_current_span() is app
    assert {one.parent.span_id for one in spans() if one.name != "app"} == {app.get_span_context().span_id}


def test_without_being_asked_for_there_are_none(spans: Any) -> None:
    with served(script) as orchestrator:
        orchestrator.ask(PROMPT)
    assert spans() == ()
