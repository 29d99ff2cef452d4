"""GenAI spans of OpenTelemetry, in the spelling of every age of the conventions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cascade.logs.importers import known
from cascade.logs.importers.otel import attributes, rows_from_otel
from cascade.logs.schema import Dropped

TRACE = "5b8efff798038103d269b633813fc60c"
START_NS = 1795255200 * 10**9  # 2026-11-21T10:00:00Z
ASKED = [
    {"role": "system", "parts": [{"type": "text", "content": "Be short."}]},
    {"role": "user", "parts": [{"type": "text", "content": "Which river?"}]},
]
SAID = [{"role": "assistant", "parts": [{"type": "text", "content": "Danube"}], "finish_reason": "stop"}]


def value(given: Any) -> dict[str, Any]:
    """Write a value as OTLP's JSON does: 64-bit integers are texts."""
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    if isinstance(given, float):
        return {"doubleValue": given}
    if isinstance(given, list):
        return {"arrayValue": {"values": [value(one) for one in given]}}
    if isinstance(given, dict):
        return {"kvlistValue": {"values": pairs(given)}}
    return {"stringValue": given}


def pairs(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(one)} for key, one in given.items()]


def span(number: int = 1, *, events: list[tuple[str, dict[str, Any]]] = (), **has: Any) -> dict[str, Any]:  # type: ignore[assignment]
    """Make a span of a chat call; attributes are named with _ for the dots after gen_ai."""
    named = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "small",
        "gen_ai.response.model": "small-0613",
        "gen_ai.usage.input_tokens": 52,
        "gen_ai.usage.output_tokens": 47,
        "gen_ai.response.finish_reasons": ["stop"],
    } | has.pop("has", {})
    return {
        "traceId": TRACE,
        "spanId": f"eee19b7ec3c1b17{number}",
        "name": "chat small",
        "kind": 3,
        "startTimeUnixNano": str(START_NS + number * 10**9),
        "endTimeUnixNano": str(START_NS + number * 10**9 + 250_000_000),
        "attributes": pairs({name: one for name, one in named.items() if one is not None}),
        "events": [{"name": name, "timeUnixNano": "1", "attributes": pairs(of)} for name, of in events],
        "status": {},
    } | has


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    scope = {"scope": {"name": "instrumentation", "version": "1"}, "spans": list(spans)}
    resource = {"attributes": pairs({"service.name": "app"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def write(path: Path, *documents: Any) -> Path:
    path.write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    return path


def rows(
    tmp_path: Path, *spans: dict[str, Any], dropped: Dropped | None = None, **options: Any
) -> list[dict[str, Any]]:
    return list(rows_from_otel(write(tmp_path / "traces.jsonl", export(*spans)), dropped, **options))


CONTENT = {"gen_ai.input.messages": json.dumps(ASKED), "gen_ai.output.messages": json.dumps(SAID)}


def test_a_trace_is_an_episode(tmp_path: Path) -> None:
    path = write(
        tmp_path / "traces.jsonl",
        export(span(2, has=CONTENT | {"gen_ai.request.model": "large"})),
        export(span(1, has=CONTENT | {"gen_ai.conversation.id": "talk", "cascade.cost.nano_usd": 21_000})),
    )
    assert known(path) == "otel"
    first, second = rows_from_otel(path, roles={"small": "base", "large": "guide"})
    expected = {
        "episode_id": TRACE,
        "dataset": "traces",
        "group": "talk",
        "question": "Which river?",
        "step": 1,
        "candidate": 0,
        "source": "base",
        "model": "small",
        "answer": "Danube",
        "input_tokens": 52,
        "output_tokens": 47,
        "cached_input_tokens": None,
        "cost_nano_usd": 21_000,
        "latency_ms": 250.0,
        "created_at": "2026-11-21T10:00:01.000+00:00",
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["step"], second["candidate"], second["source"], second["cost_nano_usd"]) == (1, 1, "guide", None)
    assert second["cost_source"] == "no price"


def test_a_document_and_a_list_of_spans_are_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "doc.json").write_text(json.dumps(export(span(has=CONTENT)), indent=2))
    plain = {
        "name": "chat small",
        "context": {"trace_id": "0x01", "span_id": "0x02", "trace_state": "[]"},
        "kind": "SpanKind.CLIENT",
        "start_time": "2026-11-21T10:00:01.000000Z",
        "end_time": "2026-11-21T10:00:01.250000Z",
        "status": {"status_code": "UNSET"},
        "attributes": {"gen_ai.request.model": "small", "gen_ai.usage.input_tokens": 52, **CONTENT},
        "events": [],
    }
    (tmp_path / "console.json").write_text(json.dumps([plain]))
    for name, trace in (("doc.json", TRACE), ("console.json", "0x01")):
        assert known(tmp_path / name) == "otel"
        (row,) = rows_from_otel(tmp_path / name)
        assert (row["episode_id"], row["answer"], row["latency_ms"], row["input_tokens"]) == (
            trace,
            "Danube",
            250.0,
            52,
        )


OLD = {"gen_ai.system": "openai", "gen_ai.usage.input_tokens": None, "gen_ai.usage.prompt_tokens": 52}


@pytest.mark.parametrize(
    ("has", "events"),
    [
        ({"gen_ai.input.messages": ASKED, "gen_ai.output.messages": SAID}, []),
        (
            {},
            [
                ("gen_ai.system.message", {"content": "Be short."}),
                ("gen_ai.user.message", {"content": "Which river?"}),
                ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": '{"content": "Danube"}'}),
            ],
        ),
        (
            {},
            [
                ("gen_ai.content.prompt", {"gen_ai.prompt": '[{"role": "user", "content": "Which river?"}]'}),
                ("gen_ai.content.completion", {"gen_ai.completion": '[{"role": "assistant", "content": "Danube"}]'}),
            ],
        ),
        (
            {
                "gen_ai.prompt.0.role": "system",
                "gen_ai.prompt.0.content": "Be short.",
                "gen_ai.prompt.1.role": "user",
                "gen_ai.prompt.1.content": "Which river?",
                "gen_ai.completion.0.content": "Danube",
            },
            [],
        ),
        (
            {},
            [("gen_ai.client.inference.operation.details", CONTENT)],
        ),
    ],
)
def test_texts_are_found_in_every_spelling(tmp_path: Path, has: dict[str, Any], events: Any) -> None:
    (row,) = rows(tmp_path, span(has=OLD | has, events=events))
    assert (row["question"], row["answer"], row["input_tokens"]) == ("Which river?", "Danube", 52)


def test_without_texts_the_costs_are_still_there(tmp_path: Path) -> None:
    dropped = Dropped()
    (row,) = rows(tmp_path, span(has={"gen_ai.usage.cost": 0.0004}), dropped=dropped)
    assert (row["question"], row["answer"], row["candidate"], row["cost_nano_usd"]) == (None, None, 0, 400_000)
    assert dict(dropped.notes) == {"question is null": 1}


def test_spans_that_are_no_calls_are_noted_and_failed_ones_dropped(tmp_path: Path) -> None:
    dropped = Dropped()
    found = rows(
        tmp_path,
        span(1, has=CONTENT),
        span(2, has={"gen_ai.operation.name": "execute_tool"}),
        span(3, has={"gen_ai.operation.name": "embeddings"}),
        {"traceId": TRACE, "spanId": "1", "name": "GET /", "attributes": pairs({"http.method": "GET"})},
        span(4, status={"code": 2, "message": "timeout"}),
        span(5, status={"code": "STATUS_CODE_ERROR"}),
        span(6, has={"error.type": "timeout"}),
        span(1, has=CONTENT),
        dropped=dropped,
    )
    assert len(found) == 1
    assert dict(dropped.notes) == {"a span that is not a model call, skipped": 3}
    assert dict(dropped.rows) == {"a failed call": 3, "the same call a second time": 1}


def test_evaluations_and_attributes_can_be_mapped(tmp_path: Path) -> None:
    scored = {"gen_ai.evaluation.name": "correctness", "gen_ai.evaluation.score.value": 1.0}
    named = {"gen_ai.evaluation.name": "style", "gen_ai.evaluation.score.label": "pass"}
    events = [("gen_ai.evaluation.result", scored), ("gen_ai.evaluation.result", named)]
    made = span(has=CONTENT | {"app.answer": "Danube", "app.tags": ["a", "b"]}, events=events)
    (row,) = rows(tmp_path, made, columns={"correct": "correctness", "gold": "app.answer", "kept": "style"})
    assert (row["correct"], row["gold"], row["kept"]) == (True, ["Danube"], True)


def test_cached_and_reasoning_tokens_are_kept(tmp_path: Path) -> None:
    has = {"gen_ai.usage.cache_read.input_tokens": 8, "gen_ai.usage.reasoning.output_tokens": 3}
    (row,) = rows(tmp_path, span(has=CONTENT | has))
    assert (row["cached_input_tokens"], row["reasoning_tokens"]) == (8, 3)


def test_attributes_of_odd_shapes_are_no_crash() -> None:
    odd = [{"key": "a"}, {"value": {}}, "x", {"key": "b", "value": {"arrayValue": {}}}, {"key": "c", "value": 7}]
    assert attributes(odd) == {"a": None, "None": None, "b": [], "c": None}
    assert attributes([{"key": "d", "value": {"kvlistValue": None}}]) == {"d": {}}
    assert attributes(None) == {}
