"""The formats of other tools: an example file of each documented form, and what follows from it by hand."""

from __future__ import annotations

import json
import random
import re
import zipfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cascade.chat import ChatRequest
from cascade.errors import UsageError
from cascade.logs.schema import Dropped, chat_of

pytest.importorskip("duckdb")

from cascade.money import PriceTable
from cascade.types import Usage
from unit.logs.reading import lines, picked, rows_of

MINI, HAIKU = "gpt-4o-mini", "claude-haiku-4-5"
PRICED = PriceTable.bundled().price(MINI)
LISTED = PRICED and PRICED.cost_nano_usd(Usage(40, 12, 8, 2))
COUNTS = {"input_tokens": 40, "output_tokens": 12, "cached_input_tokens": 8, "reasoning_tokens": 2}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Vienna"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Weather in Vienna?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    {"role": "user", "content": "And in Graz?"},
]
SECOND = {"id": "c2", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Graz"}'}}
REPLY: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [SECOND]}


def spend(number: int = 1, **fields: Any) -> dict[str, Any]:
    """A row of LiteLLM_SpendLogs."""
    body = {"model": "small", "messages": [{"role": "user", "content": "Which river?"}]}
    choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "The Danube."}}
    details = {"prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens_details": {"reasoning_tokens": 2}}
    return {
        "request_id": f"chatcmpl-{number}",
        "call_type": "acompletion",
        "spend": 2.1e-05,
        "prompt_tokens": 40,
        "completion_tokens": 12,
        "startTime": f"2026-11-21T10:00:0{number}.000Z",
        "endTime": f"2026-11-21T10:00:0{number}.850Z",
        "model": "gpt-4o-mini-2024-07-18",
        "model_group": "small",
        "metadata": {"status": "success", "usage_object": details},
        "cache_hit": "False",
        "messages": {},
        "response": {"id": "x", "object": "chat.completion", "choices": [choice]},
        "session_id": "session-1",
        "status": "success",
        "proxy_server_request": body,
    } | fields


def observed(number: int = 1, **fields: Any) -> dict[str, Any]:
    """An observation of Langfuse, as its API gives it."""
    return {
        "id": f"obs-{number}",
        "traceId": "trace-1",
        "type": "GENERATION",
        "startTime": f"2026-11-21T10:00:0{number}.000Z",
        "endTime": f"2026-11-21T10:00:0{number}.500Z",
        "model": "small",
        "input": [{"role": "user", "content": "Which river?"}],
        "output": {"role": "assistant", "content": "Danube"},
        "level": "DEFAULT",
        "parentObservationId": None,
        "usageDetails": {
            "input": 30,
            "input_cached_tokens": 10,
            "output": 12,
            "output_reasoning_tokens": 2,
            "total": 54,
        },
        "costDetails": {"input": 0.00002, "output": 0.00004, "total": 0.00006},
    } | fields


def typed(value: Any) -> dict[str, Any]:
    """A value as OTLP's JSON writes it: 64-bit integers are texts."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(each) for each in value]}}
    kind = {bool: "boolValue", int: "intValue", float: "doubleValue"}.get(type(value), "stringValue")
    return {kind: str(value) if kind == "intValue" else value}


def span(number: int = 1, has: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A span of a chat call."""
    start = 1795255200 * 10**9 + number * 10**9
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": 52,
        "gen_ai.usage.output_tokens": 47,
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Which river?"}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Danube"}]}]),
    } | (has or {})
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": f"eee19b7ec3c1b17{number}",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 250_000_000),
        "attributes": [{"key": key, "value": typed(value)} for key, value in attributes.items() if value is not None],
        "status": {},
    } | fields


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


LARGE = span(2, {"gen_ai.request.model": "large", "gen_ai.usage.cost": 0.0004})
TRACED: list[tuple[str, Any, dict[str, Any]]] = [
    (
        "litellm",
        [spend(2, model="gpt-4o", spend=0.0004), spend(1)],
        {"tokens": (40, 12, 8, 2), "costs": [21_000, 400_000], "latency_ms": 850.0, "answer": "The Danube."},
    ),
    (
        "langfuse",
        [observed(2, model="large", costDetails={"total": 0.0004}), observed(1)],
        {"tokens": (40, 14, 10, 2), "costs": [60_000, 400_000], "latency_ms": 500.0, "answer": "Danube"},
    ),
    (
        "otel",
        [export(LARGE, span(1, {"gen_ai.usage.cost": 0.00006}))],
        {"tokens": (52, 47, None, None), "costs": [60_000, 400_000], "latency_ms": 250.0, "answer": "Danube"},
    ),
]


@pytest.mark.parametrize(("kind", "records", "expected"), TRACED, ids=[kind for kind, *_ in TRACED])
def test_a_trace_is_an_episode_in_the_order_of_time(tmp_path, kind, records, expected):
    rows = rows_of(lines(tmp_path / "log.jsonl", *records))
    assert picked(rows, "step", "candidate") == [(1, 0), (2, 0)]
    assert len({row["episode_id"] for row in rows}) == 1
    assert [row["cost_nano_usd"] for row in rows] == expected["costs"]
    assert picked(rows, *COUNTS)[0] == expected["tokens"]
    first = ("Which river?", expected["answer"], expected["latency_ms"], "2026-11-21T10:00:01.000+00:00")
    assert picked(rows[:1], "question", "answer", "latency_ms", "created_at") == [first]
    models = list(dict.fromkeys(row["model"] for row in rows))
    placed = rows_of(tmp_path / "log.jsonl", models=models[::-1])
    assert picked(placed, "step", "model") == list(enumerate(models[::-1], 1))


@pytest.mark.parametrize(
    ("record", "cost"),
    [
        (spend(spend=0), LISTED),  # a spend of 0 also means that no price was known (L4)
        ({"question": "q", "model": MINI, "answer": "x", **COUNTS}, LISTED),
        (spend(spend=0, model="my-own"), None),
        (spend(spend=0, prompt_tokens=0, completion_tokens=0), None),
        (spend(spend=0, cache_hit="True"), 0),
        (observed(model="my-own", costDetails={"total": 0}), None),
        (observed(model="my-own", costDetails={"input": 0.5, "output": 0.25}), 750_000_000),
        (observed(model="my-own", costDetails={"input": 0.5, "output": "?"}), None),
        (observed(model="my-own", costDetails={}, totalCost=0.5), 500_000_000),
        (export(span(1, {"gen_ai.usage.cost": 0.0, "gen_ai.request.model": "my-own"})), None),
    ],
)
def test_a_cost_of_nothing_is_unknown_unless_something_says_it_was_free(tmp_path, record, cost):
    (row,) = rows_of(lines(tmp_path / "log.jsonl", record))
    (by_hand,) = rows_of(tmp_path / "log.jsonl", costs={row["model"]: 7})
    assert (row["cost_nano_usd"], by_hand["cost_nano_usd"]) == (cost, 7 if cost in (None, LISTED) else cost)


def with_parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message in the form of OpenTelemetry's conventions of 2026."""
    if message["role"] == "tool":
        part = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": "tool", "parts": [part]}
    texts = [{"type": "text", "content": message["content"]}] if message["content"] else []
    calls = [
        {"type": "tool_call", "id": c["id"], **c["function"], "arguments": json.loads(c["function"]["arguments"])}
        for c in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "parts": [*texts, *calls]}


def numbered(prefix: str, inside: str, messages: list[dict[str, Any]], call: str) -> dict[str, Any]:
    """Messages as an attribute for each field, as OpenLLMetry and OpenInference write them."""
    has: dict[str, Any] = {}
    for at, message in enumerate(messages):
        start = f"{prefix}.{at}.{inside}"
        has |= {start + name: message[name] for name in ("role", "content", "tool_call_id") if message.get(name)}
        for number, each in enumerate(message.get("tool_calls", ())):
            function = "function." if call else ""
            called = f"{start}tool_calls.{number}.{call}"
            has[f"{called}id"] = each["id"]
            has |= {f"{called}{function}{name}": text for name, text in each["function"].items()}
    return has


def dotted(message: dict[str, Any]) -> dict[str, Any]:
    """A message as a frame of Phoenix has it."""
    calls = [
        {"tool_call.id": call["id"]} | {f"tool_call.function.{name}": text for name, text in call["function"].items()}
        for call in message.get("tool_calls", ())
    ]
    own = {f"message.{name}": value for name, value in message.items() if name != "tool_calls"}
    return own | ({"message.tool_calls": calls} if calls else {})


NO_TEXTS = {"gen_ai.input.messages": None, "gen_ai.output.messages": None}
INFERENCE = {
    "gen_ai.operation.name": None,
    "gen_ai.request.model": None,
    "openinference.span.kind": "LLM",
    "llm.model_name": "small",
    "llm.token_count.prompt": 52,
    "llm.tools.0.tool.json_schema": json.dumps(TOOL),
}
CALLED = {"type": "function_call", "id": "fc_1", "name": "get_weather"}
RAIN = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
RESPONSES: dict[str, Any] = {
    "instructions": "Be short.",
    "input": [TALK[1], CALLED | {"call_id": "c1", "arguments": '{"city": "Vienna"}'}, RAIN, TALK[4]],
    "tools": [{"type": "function", **TOOL["function"]}],  # type: ignore[dict-item]
}
RESPONSE = [CALLED | {"call_id": "c2", "arguments": '{"city": "Graz"}'}]
SPANS: dict[str, dict[str, Any]] = {
    "otel": {
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be short."}]),
        "gen_ai.input.messages": json.dumps([with_parts(message) for message in TALK[1:]]),
        "gen_ai.tool.definitions": json.dumps([TOOL]),
        "gen_ai.output.messages": json.dumps([with_parts(REPLY) | {"finish_reason": "tool_calls"}]),
    },
    "openllmetry": {
        **NO_TEXTS,
        **numbered("gen_ai.prompt", "", TALK, ""),
        **numbered("gen_ai.completion", "", [REPLY], ""),
        "llm.request.functions.0.name": "get_weather",
        "llm.request.functions.0.parameters": json.dumps(TOOL["function"]["parameters"]),  # type: ignore[index]
    },
    "openinference": {
        **NO_TEXTS,
        **INFERENCE,
        **numbered("llm.input_messages", "message.", TALK, "tool_call."),
        **numbered("llm.output_messages", "message.", [REPLY], "tool_call."),
    },
}
WHOLE: dict[str, Any] = {
    "responses": observed(input=RESPONSES, output={"object": "response", "output": RESPONSE}),
    "litellm": spend(
        proxy_server_request={"model": "small", "messages": TALK, "tools": [TOOL]},
        response={"choices": [{"finish_reason": "tool_calls", "index": 0, "message": REPLY}]},
    ),
    "langfuse": observed(input={"messages": TALK, "tools": [TOOL]}, output=REPLY),
    "langchain": observed(
        input=[*TALK, {"role": "tool", "content": TOOL}],
        output={**REPLY, "tool_calls": [{"name": "get_weather", "args": {"city": "Graz"}, "id": "c2"}]},
    ),
    **{name: export(span(has=has)) for name, has in SPANS.items()},
    "phoenix": {f"attributes.{name}": value for name, value in INFERENCE.items()}
    | {f"attributes.llm.{name}_messages": [*map(dotted, talk)] for name, talk in (("input", TALK), ("output", [REPLY]))}
    | {"context.span_id": "s", "attributes.llm.tools": [{"tool.json_schema": json.dumps(TOOL)}]},
}


@pytest.mark.parametrize("spelling", WHOLE)
def test_a_conversation_with_tools_comes_back_whole(tmp_path, spelling):
    (row,) = rows_of(lines(tmp_path / "log.jsonl", WHOLE[spelling]))
    assert json.loads(row["context"]) == json.loads(ChatRequest(TALK, {"tools": [TOOL]}).canonical)
    assert row["question"] == "And in Graz?"
    assert json.loads(row["answer"]) == [{"name": "get_weather", "arguments": {"city": "Graz"}}]
    assert row["signals"]["tool_calls"] == 1


def test_whole_calls_in_a_table_are_read_and_failed_ones_left_out(tmp_path):
    parts, dropped = [{"type": "input_text", "text": "Weather?"}, {"type": "input_image", "image_url": "u"}], Dropped()
    replies: list[Any] = [{"output": [{"type": "reasoning"}, *RESPONSE]}, {"output": RESPONSE}]
    replies += [{"type": "error", "error": {"message": "busy"}}, {"error": {"message": "the answer"}, **REPLY}]
    body = {"input": [{"role": "user", "content": parts}], "tools": RESPONSES["tools"]}
    cut = {"output": RESPONSE, "object": "response", "incomplete_details": {"reason": "max_output_tokens"}}
    calls = [{"question": body, "answer": reply, "model": f"m{at}"} for at, reply in enumerate([cut, *replies])]
    calls += [{"question": body, "model": f"answers {error}", "error": error} for error in ("429", "false")]
    rows = rows_of(lines(tmp_path / "calls.jsonl", *calls), dropped=dropped)
    assert [json.loads(row["answer"])[0]["arguments"] for row in rows[1:4]] == [{"city": "Graz"}] * 3
    seen = [part["type"] for part in chat_of(rows[0]).messages[0]["content"]]
    assert (rows[0]["answer"], len(rows), dropped.count, seen) == (None, 5, 2, ["text", "image_url"])


def test_calls_that_are_none_failed_or_copies_are_left_out_and_counted(tmp_path):
    failed = {"status": {"code": 2}}
    cases: list[list[Any]] = [
        [spend(1), spend(1), spend(2, call_type="aembedding"), spend(3, status="failure")],
        [observed(1), observed(2, type="SPAN"), observed(3, level="ERROR"), observed(1)],
        [export(span(1), span(1), span(2, {"gen_ai.operation.name": "execute_tool"}), span(3, **failed))],
    ]
    for at, records in enumerate(cases):
        dropped = Dropped()
        assert len(rows_of(lines(tmp_path / f"{at}.jsonl", *records), dropped=dropped)) == 1
        assert (dropped.count, len(dropped.rows), dropped.notes.total()) == (3, 3, 0)


def test_a_call_inside_of_another_with_the_same_content_is_one_call(tmp_path):
    """L6: a framework and its client both log the same generation; between them may lie a span that is no call."""
    between = observed(2, id="between", type="SPAN", parentObservationId="obs-1")
    records = [observed(1), between, observed(3, parentObservationId="between")]
    records.append(observed(4, model="other", parentObservationId="obs-1"))
    rows = rows_of(lines(tmp_path / "log.jsonl", *records), dropped=(dropped := Dropped()))
    assert [row["model"] for row in rows] == ["small", "other"]
    assert dropped.count == 2
    nested = export(span(1), span(2, parentSpanId="eee19b7ec3c1b171"), span(3, {"gen_ai.request.model": "large"}))
    assert [row["model"] for row in rows_of(lines(tmp_path / "spans.jsonl", nested))] == ["small", "large"]


@pytest.mark.parametrize("output", [{"total": 5}, ["x", "y"], '{"total": 5}', [{"name": "Ann"}]])
def test_an_output_in_json_that_is_no_message_is_the_answer_but_an_error_is_none(tmp_path, output):
    """Before, `["x", "y"]` was x, and an object was no answer."""
    rows = rows_of(lines(tmp_path / "log.jsonl", observed(1, output=output), observed(2, output={"error": "down"})))
    value = json.loads(output) if isinstance(output, str) else output
    assert [row["answer"] and json.loads(row["answer"]) for row in rows] == [value, None]


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"max_tokens": 9, "stream": True}])
def test_a_short_request_whose_options_are_on_record_is_kept_with_them(tmp_path, options):
    body = spend()["proxy_server_request"] | options
    (row,) = rows_of(lines(tmp_path / "log.jsonl", spend(1, proxy_server_request=body)))
    chat = chat_of(row) if row["context"] else None
    assert (chat.options if chat else {}) == {name: value for name, value in options.items() if name != "stream"}
    assert (row["question"], row["answer"]) == ("Which river?", "The Danube.")
    apart = lines(tmp_path / "b.jsonl", spend(1, session_id="a"), spend(2, session_id="b", model="gpt-4o"))
    assert len({row["episode_id"] for row in rows_of(apart, models=[spend()["model"], "gpt-4o"])}) == 1


SENT = {"temperature": 0.2, "max_tokens": 100, "stop": ["END"], "parallel_tool_calls": False}
UNSENT = {"temperature": 1, "max_tokens": "Infinity", "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}
CAMEL = {"temperature": "0.2", "maxTokens": "100", "stop": ["END"], "parallelToolCalls": False}


@pytest.mark.parametrize(
    ("record", "options"),
    [
        (observed(modelParameters=SENT), SENT),
        (observed(modelParameters=json.dumps(CAMEL)), SENT),
        (observed(modelParameters=UNSENT), {}),  # what its wrapper of OpenAI's client writes where nothing was sent
        (export(span(1, {"llm.invocation_parameters": json.dumps({"model": "small", **SENT})})), SENT),
        (export(span(1, {"llm.invocation_parameters": json.dumps({"system": "Be brief.", "messages": [], **SENT})})), SENT),
    ],
)  # fmt: skip
def test_settings_beside_the_messages_are_of_the_request(tmp_path, record, options):
    (row,) = rows_of(lines(tmp_path / "log.jsonl", record))
    assert (chat_of(row).options if row["context"] else {}) == options
    assert not row["context"] or [message["role"] for message in chat_of(row).messages] == ["user"]


def test_parts_of_a_type_that_is_no_text_end_no_import(tmp_path):
    odd = [{"type": ["tool_use"], "text": "Hi"}, {"type": {"of": "text"}}]
    asks = [{"role": "user", "content": odd}, {"type": ["function_call"], "name": "f"}]
    calls = [observed(input=asks, output={"role": "assistant", "content": odd}), observed(2)]
    rows = rows_of(lines(tmp_path / "a.jsonl", *calls))
    assert [row["step"] for row in rows] == [1, 2]


def test_scores_say_which_answers_are_right(tmp_path):
    trace = {"id": "t1", "scores": [{"name": "fit", "value": 1}], "observations": [observed(1, traceId="t1")]}
    beside = observed(2, scores=[{"name": "fit", "value": 0.7}])
    rows = rows_of(lines(tmp_path / "log.jsonl", trace), columns={"correct": "fit"})
    assert [row["correct"] for row in rows] == [True]
    graded = rows_of(lines(tmp_path / "b.jsonl", beside), columns={"correct": "scores.fit"})
    assert [row["correct"] for row in graded] == [None]


def test_a_file_of_another_kind_is_left_out_and_counted_and_a_page_needs_little_memory(tmp_path):
    page = {"data": [observed(1, id=f"o{number}", input="river " * 200) for number in range(600)], "meta": {}}
    scores = [{"id": f"s{number}", "traceId": "trace-1", "value": 1} for number in range(3)]
    files, dropped = [lines(tmp_path / "page.jsonl", page), lines(tmp_path / "s.jsonl", *scores)], Dropped()
    assert (len(rows_of(*files, dropped=dropped)), dropped.count) == (600, 3)
    for memory, problem in (("100MB", "fit"), ("5MB", "--memory")):
        with pytest.raises(UsageError, match=problem):
            rows_of(*files, columns={"correct": "fit"}, memory=memory)


def test_a_call_of_a_tool_is_no_fault_where_nothing_says_which_were_offered(tmp_path):
    calls = [observed(at, input=sent, output=REPLY) for at, sent in enumerate((TALK, {"messages": TALK}))]
    assert [row["signals"]["message_faults"] for row in rows_of(lines(tmp_path / "log.jsonl", *calls))] == [0, 1]


def test_a_reply_of_a_trace_that_was_cut_at_its_limit_is_no_answer_unless_it_is_the_last(tmp_path):
    cut = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Dan"}], "finish_reason": "length"}])
    calls = [span(at, {"gen_ai.output.messages": cut, "gen_ai.request.max_tokens": 2}) for at in (1, 2)]
    assert picked(rows_of(lines(tmp_path / "t.json", export(*calls))), "step", "answer") == [(1, None), (2, "Dan")]


def test_a_reply_without_parts_is_no_answer_and_of_several_choices_the_first_is_one(tmp_path):
    text = {"role": "assistant", "parts": [{"type": "text", "content": "x"}], "finish_reason": "stop"}
    silent = text | {"parts": []}
    calls = [observed(1, output=[text, text | {"parts": [{"text": "y"}]}]), observed(2, output=[silent])]
    run = {"run_type": "llm", "inputs": {"prompts": ["?"]}, "outputs": {"messages": [{"role": "ai", "content": "x"}]}}
    rows = [*rows_of(lines(tmp_path / "a.jsonl", *calls)), *rows_of(lines(tmp_path / "b.jsonl", run))]
    assert picked(rows, "question", "answer") == [("Which river?", "x"), ("Which river?", None), ("?", "x")]
    inside = {"message_content": {"type": "image", "image": {"image": {"url": "https://h/i.png"}}}}  # OpenInference's
    sent = {"type": "human", "content": [{"type": "image", "image": "https://h/i.png"}, inside]}  # the AI SDK's first
    (row,) = rows_of(lines(tmp_path / "c.jsonl", observed(input=[sent])))
    assert [part["image_url"]["url"] for part in chat_of(row).messages[0]["content"]] == ["https://h/i.png"] * 2


def test_turns_of_one_trace_are_episodes_of_one_group(tmp_path):
    other = [*TALK, {"role": "assistant", "content": "Sun."}, {"role": "user", "content": "And in Linz?"}]
    records = [observed(1, input={"messages": TALK, "tools": [TOOL]}, output=REPLY)]
    records.append(observed(2, input={"messages": other, "tools": [TOOL]}, output=REPLY))
    rows = rows_of(lines(tmp_path / "log.jsonl", *records))
    assert picked(rows, "episode_id", "step", "group") == [("trace-1", 1, "trace-1"), ("trace-1/2", 1, "trace-1")]


BODY = {"temperature": 0.2, "max_tokens": 9, "stop": ["END"]}
EXPORTS = {  # the records of a call, and the file around them
    "ai sdk": (
        """{"traceId": "$at $name", "spanId": "root", "startTimeUnixNano": 1, "attributes": {"ai.response.text": "x"}},
        {"traceId": "$at $name", "spanId": "own", "parentSpanId": "root", "attributes": {"gen_ai.request.model": $model,
        "ai.prompt.messages": "[{\\"role\\": \\"user\\", \\"content\\": [{\\"type\\": \\"text\\", \\"text\\": \\"$asked\\"}]}]",
        "gen_ai.request.temperature": 0.2, "gen_ai.request.max_tokens": 9, "gen_ai.request.stop_sequences": ["END"],
        "ai.prompt.tools": ["{\\"type\\": \\"function\\", \\"name\\": \\"f\\"}"], "ai.response.text": $answer,
        "gen_ai.response.finish_reasons": ["tool-calls"], "gen_ai.usage.input_tokens": $input_tokens,
        "gen_ai.usage.output_tokens": $output_tokens, "ai.usage.cachedInputTokens": $cached_input_tokens,
        "ai.usage.inputTokenDetails.cacheWriteTokens": $written}}""",
        '{"resourceSpans": [{"scopeSpans": [{"spans": [%s]}]}]}',
    ),
    "promptfoo": (
        """{"promptIdx": 0, "testIdx": $at, "provider": {"id": "anthropic:messages:$name", "label": ""}, "success": $correct,
        "prompt": {"raw": "[{\\"role\\": \\"user\\", \\"content\\": \\"$asked\\"}]"}, "cost": $cost_usd, "latencyMs": $latency_ms,
        "response": {"output": $answer, "tokenUsage": {"prompt": $input_tokens, "completion": $output_tokens}, "cached": false},
        "failureReason": 1, "gradingResult": {"pass": $correct, "score": 0.5}}""",
        '{"evalId": "e", "results": {"version": 3, "results": [%s], "stats": {}}, "config": {}}',
    ),
    "deepeval": (
        """{"name": "case $at", "input": $question, "actualOutput": $answer, "expectedOutput": "The Mur", "success": $correct,
        "inputTokenCount": $input_tokens, "outputTokenCount": $output_tokens, "tokenCost": $cost_usd, "completionTime": $latency_s,
        "metricsData": [{"name": "GEval", "success": $correct, "score": 0.5}], "evaluationCost": 0.5, "runDuration": 9}""",
        '{"testCases": [%s], "hyperparameters": {}, "testPassed": 1}',
    ),
    "helm": (
        """{"instance": {"id": "id$at", "references": [{"output": {"text": "The Mur"}, "tags": ["correct"]}]}, "train_trial_index": 0,
        "output_mapping": {"A": "The Mur", "B": "None;\\nit is dry"}, "request": {"model": $model, "prompt": $question, "temperature": 0.2,
        "max_tokens": 9, "stop_sequences": ["END"], "num_completions": 1, "echo_prompt": false}, "result": {"success": true,
        "completions": [{"text": " $letter", "tokens": [{"text": " A", "logprob": -0.5}]}], "request_time": $latency_s}}""",
        '{"adapter_spec": {}, "request_states": [%s]}',
    ),
    "helicone": (
        """{"request_id": "$at$name", "request_properties": {"Helicone-Session-Id": "s$at"}, "request_model": $model, "costUSD": 0,
        "request_body": {"model": $model, "messages": [{"role": "user", "content": $question}], "temperature": 0.2, "max_tokens": 9,
        "stop_sequences": ["END"]}, "response_body": {"content": [{"type": "text", "text": $answer}], "usage": {"input_tokens": $fresh,
        "cache_read_input_tokens": $cached_input_tokens, "cache_creation_input_tokens": $written, "output_tokens": $output_tokens}},
        "response_status": 200, "delay_ms": $latency_ms, "prompt_tokens": $fresh, "prompt_cache_write_tokens": $written,
        "prompt_cache_read_tokens": $cached_input_tokens, "completion_tokens": $output_tokens, "scores": {"fit": {"value": $correct}},
        "cache_reference_id": "00000000-0000-0000-0000-000000000000"}""",
        "[%s]",
    ),
}
WRITTEN = {"cost_nano_usd": "cost|written", "input_tokens": "input|fresh", "latency_ms": "latency"}
FIGURES = ("correct", "cached_input_tokens", "cost_nano_usd", "input_tokens", "output_tokens", "latency_ms")


def called() -> list[dict[str, Any]]:
    """What two models did with 20 requests; `name`, `letter`, `at` and `asked` are written inside of texts."""
    rng, calls = random.Random(7), list[dict[str, Any]]()
    for at, (model, rate) in product(range(20), ((HAIKU, 0.6), ("claude-opus-4-5", 0.95))):
        fresh, cached, written = rng.randrange(20, 400), rng.choice([0, 128]), rng.choice([0, 64])
        usage = Usage(fresh + cached + written, rng.randrange(8, 40), cached, None, False, written, 0)
        question, correct, ms = f"River of\ntown {at}, “1,5”?", rng.random() < rate, float(rng.randrange(99, 999))
        cost = PriceTable.bundled().price(model).cost_nano_usd(usage)
        own = {"at": at, "model": json.dumps(model), "name": model, "fresh": fresh, "written": written}
        own |= {"letter": "BA"[correct], "asked": json.dumps(json.dumps(question))[3:-3], "latency_s": ms / 1000}
        own |= {"question": json.dumps(question), "cost_usd": cost / 1e9}
        own |= {"answer": json.dumps("The Mur" if correct else "None;\nit is dry")}
        figures = (correct, cached, cost, usage.input_tokens, usage.output_tokens, ms)
        calls.append(own | dict(zip(FIGURES, figures, strict=True)) | {"correct": json.dumps(correct)})
    return calls


@pytest.mark.parametrize("kind", EXPORTS)
def test_an_export_holds_the_figures_that_it_was_written_from(tmp_path: Path, kind: str) -> None:
    (template, around), calls, files = EXPORTS[kind], called(), list[Path]()
    for model in (HAIKU, "claude-opus-4-5"):
        records = [re.sub(r"\$(\w+)", r"%(\1)s", template) % call for call in calls if call["name"] == model]
        files.append(lines(tmp_path / model / "export.json", json.loads(around % ", ".join(records))))
    columns = {"correct": "scores.fit.value"} if kind == "helicone" else {}
    rows = rows_of(*files, models=[file.parent.name for file in files], columns=columns)
    has = [name for name in FIGURES if re.search(rf"\$({WRITTEN.get(name, name)})", template)]
    names = ("question", "model", "answer", *has)
    read = [
        call | {name: json.loads(call[name]) for name in ("question", "model", "answer", "correct")} for call in calls
    ]
    assert sorted(map(str, picked(rows, *names))) == sorted(map(str, picked(read, *names)))
    assert {row[name] for row in rows for name in {*FIGURES} - {*has}} <= {None}
    assert len({row["episode_id"] for row in rows}) == 20
    sent = [chat_of(row).options if row["context"] else {} for row in rows]
    body = BODY if "stop_sequences" in template else {}
    assert [{name: of[name] for name in of if name != "tools"} for of in sent] == [body] * 40
    assert {(row["signals"] or {}).get("message_faults", 0) for row in rows} == {0}


def request(custom_id: str, **fields: Any) -> dict[str, Any]:
    body = {"model": MINI, "messages": TALK, "tools": [TOOL]}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **fields}


def result(custom_id: str, model: str, city: str = "Graz") -> dict[str, Any]:
    call = SECOND | {"function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": REPLY | {"tool_calls": [call]}}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    body = {"created": 1795255200, "model": model, "choices": [choice], "usage": usage}
    return {"id": "r", "custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


GOLDEN = {
    "openai": """{"custom_id": "a", "body": {"input": "Which river?"}}
    {"custom_id": "a", "response": {"body": {"model": "m", "output": [{"role": "assistant", "content": "Danube"}],
    "usage": {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 10}, "output_tokens": 12}}}}""",
    "anthropic": """{"custom_id": "a", "params": {"messages": [{"role": "user", "content": "Which river?"}]}}
    {"custom_id": "a", "result": {"message": {"model": "m", "content": [{"type": "text", "text": "Danube"}],
    "usage": {"input_tokens": 15, "cache_creation_input_tokens": 5, "cache_creation": {"ephemeral_1h_input_tokens": 2},
    "cache_read_input_tokens": 10, "output_tokens": 12}}}}""",
    "gemini": """{"key": "a", "request": {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "i"}},
    {"text": "Which river?"}]}], "generationConfig": {"temperature": 0}}}
    {"key": "a", "response": {"modelVersion": "m", "candidates": [{"avgLogprobs": -0.5, "content": {"parts": [{"text": "Danube"}]}}],
    "usageMetadata": {"promptTokenCount": 30, "cachedContentTokenCount": 10, "candidatesTokenCount": 8,
    "thoughtsTokenCount": 4}}}""",
    "langsmith": """{"run_type": "llm", "inputs": {"messages": [[{"kwargs": {"type": "human", "content": "Which river?"}}]]},
    "outputs": {"generations": [[{"text": "Danube", "generation_info": {"finish_reason": "stop"}}]]}, "prompt_tokens": 30,
    "prompt_token_details": {"cache_read": 10}, "completion_tokens": 12, "extra": {"metadata": {"ls_model_name": "m"}}}""",
    "bedrock": """{"schemaType": "x", "modelId": "arn:x/m", "input": {"inputTokenCount": 15, "cacheReadInputTokenCount": 10,
    "cacheWriteInputTokenCount": 5, "inputBodyJson": {"messages": [{"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": "i"}}},
    {"text": "Which river?"}]}], "inferenceConfig": {"temperature": 0}}}, "output": {"outputTokenCount": 12,
    "outputBodyJson": {"output": {"message": {"role": "assistant", "content": [{"text": "Danube"}]}}}}}""",
    "reply": """{"question": "Which river?", "model": "m", "answer": {"role": "assistant", "content": "Danube", "usage": {"input_tokens": 15,
    "cache_creation_input_tokens": 5, "cache_creation": {"ephemeral_1h_input_tokens": 2}, "cache_read_input_tokens": 10, "output_tokens": 12}}}""",
    "cells": """{"question": "Which river?", "model": "m", "answer": "Danube", "input_tokens": 15, "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 10, "output_tokens": 12, "total_tokens": 42}""",
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_record_of_each_kind_is_read_with_its_image_and_settings(tmp_path, kind):
    texts = re.split(r"\n +(?=.\"(?:custom_id|key)\")", re.sub(r'(?<=["/])m"', f'{HAIKU}"', GOLDEN[kind]))
    (row,) = rows_of(lines(tmp_path / "log.jsonl", *[" ".join(text.split("\n")) for text in texts]))
    names = ("question", "answer", "model", "input_tokens", "cached_input_tokens", "output_tokens", "cost_nano_usd")
    written = {"anthropic": (5, 2), "reply": (5, 2), "bedrock": (5, 0), "cells": (5, 0)}.get(kind, (0, 0))
    cost = PriceTable.bundled().price(HAIKU).cost_nano_usd(Usage(30, 12, 10, None, False, *written))
    assert picked([row], *names) == [("Which river?", "Danube", HAIKU, 30, 10, 12, cost)]
    texts = ["png;base64,i", '"temperature":0', "'reply_mean_logprob': -0.5", "tool_choice", "written_input_tokens': 5"]
    assert [text in str(row) for text in texts] == ["image" in GOLDEN[kind]] * 2 + [kind == "gemini", False, kind < "c"]


SCHEMA = {"title": "OBJECT", **TOOL["function"]["parameters"]}  # type: ignore[index, dict-item]
SPELLINGS = {  # $ is the schema of the tool and of the reply
    "params": """{"temperature": 0.2, "max_tokens": 9, "stop_sequences": ["END"], "system": "Be short.", "messages": [{"role": "user",
    "content": "Which river?"}], "output_config": {"format": {"type": "json_schema", "schema": $}}, "tool_choice": {"type": "any"},
    "tools": [{"name": "get_weather", "input_schema": $}]}""",
    "body": """{"temperature": 0.2, "max_output_tokens": 9, "stop": ["END"], "instructions": "Be short.", "input": "Which river?",
    "text": {"format": {"type": "json_schema", "name": "output", "schema": $, "strict": true}}, "tool_choice": "required",
    "tools": [{"type": "function", "name": "get_weather", "parameters": $}]}""",
    "request": """{"contents": [{"role": "user", "parts": [{"text": "Which river?"}]}], "systemInstruction": {"parts": [{"text": "Be short."}]},
    "tools": [{"functionDeclarations": [{"name": "get_weather", "parameters": $}]}], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
    "generationConfig": {"temperature": 0.2, "maxOutputTokens": 9, "stopSequences": ["END"], "responseSchema": $}}""",
    "inputBodyJson": """{"messages": [{"role": "user", "content": [{"text": "Which river?"}]}], "system": [{"text": "Be short."}],
    "inferenceConfig": {"temperature": 0.2, "maxTokens": 9, "stopSequences": ["END"]}, "toolConfig": {"toolChoice": {"any": {}},
    "tools": [{"toolSpec": {"name": "get_weather", "inputSchema": {"json": $}}}]}}""",
}


@pytest.mark.parametrize("field", SPELLINGS)
def test_a_request_is_the_same_in_the_spelling_of_each_vendor(tmp_path, field):
    """Before, stop sequences, instructions, schemas and tool choices of some were lost in silence."""
    schema = json.dumps(SCHEMA).replace('"object"', '"OBJECT"' if field == "request" else '"object"')
    sent, text = json.loads(SPELLINGS[field].replace("$", schema)), {"role": "assistant", "content": "Inn"}
    bedrock = {"schemaType": "x", "modelId": "m", "input": {field: sent}, "output": {"outputBodyJson": text}}
    reply = {"custom_id": "a", "response": {"body": {"model": "m", "choices": [{"message": text}]}}}
    records = [bedrock] if field == "inputBodyJson" else [{"custom_id": "a", field: sent}, reply]
    (row,) = rows_of(lines(tmp_path / "log.jsonl", *records))
    form = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA, "strict": True}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    options = {**BODY, "tools": [tool], "tool_choice": "required", "response_format": form}
    options = {name: options[name] for name in options if name != "response_format" or field != "inputBodyJson"}
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Which river?"}]
    assert json.loads(row["context"]) == json.loads(ChatRequest(messages, options).canonical)


def test_the_files_of_a_batch_are_joined(tmp_path):
    requests = [request("a", gold=[{"name": "get_weather", "arguments": {"city": "Graz"}}]), request("b", segment="s")]
    failed = [{"custom_id": "b", "response": {"status_code": 500, "body": {}}, "error": None}]
    failed.append({"custom_id": "b", "response": None, "error": {"code": "batch_expired"}})
    files = [
        lines(tmp_path / "large.jsonl", *failed, *(result(name, "gpt-4o") for name in ("b", "a", "c"))),
        lines(tmp_path / "requests.jsonl", *requests),
        lines(tmp_path / "small.jsonl", result("a", MINI), result("b", MINI, city="Wien")),
    ]
    dropped = Dropped()
    rows = rows_of(*files, dropped=dropped)
    prices = PriceTable.bundled()
    costs = [prices.price(model).cost_nano_usd(Usage(100, 10)) for model in (MINI, "gpt-4o")]  # type: ignore[union-attr]
    assert sorted(picked(rows, "episode_id", "step", "model", "cost_nano_usd")) == [
        (name, step, model, costs[step - 1]) for name in ("a", "b") for step, model in ((1, MINI), (2, "gpt-4o"))
    ]
    assert {row["gold"] is not None for row in rows if row["episode_id"] == "a"} == {True}
    assert {row["segment"] for row in rows if row["episode_id"] == "b"} == {"s"}
    assert dropped.count == 3


def test_a_batch_at_another_effort_is_another_model_and_an_id_of_two_conversations_joins_nothing(tmp_path):
    body, dropped = {"model": "o4-mini", "messages": TALK, "tools": [TOOL]}, Dropped()
    requests = [request("a", body={**body, "reasoning_effort": effort}) for effort in ("low", "high")]
    requests += [request("b"), request("b", body={**body, "messages": TALK[:2]})]
    files = [lines(tmp_path / f"{effort}.jsonl", result("a", "o4-mini")) for effort in ("low", "high")]
    files.append(lines(tmp_path / "mini.jsonl", *requests, result("a", MINI), result("b", MINI)))
    rows = rows_of(*files, dropped=dropped)
    assert sorted(picked(rows, "episode_id", "model")) == [("a", MINI), ("a", "o4-mini@high"), ("a", "o4-mini@low")]
    assert [chat_of(row).options for row in rows] == [{"tools": [TOOL]}] * 3
    assert dropped.count == 1
    files[0].write_text("".join(f"{json.dumps(result(name, 'o4-mini'))}\n" for name in "abc"))  # b and c once, a again
    assert {row["model"] for row in rows_of(*files)} == {MINI, "o4-mini"}


def sample(doc_id: int, scores: list[float], right: float) -> dict[str, Any]:
    """A line of lm-eval for a question with options."""
    options = [" the Danube", " the Inn"]
    return {
        "doc_id": doc_id,
        "doc": {"question": f"Which river is number {doc_id}?"},
        "target": "0",
        "arguments": {f"gen_args_{at}": {"arg_0": "Q:", "arg_1": option} for at, option in enumerate(options)},
        "filtered_resps": [[str(score), "False"] for score in scores],
        "filter": "none",
        "metrics": ["acc", "acc_norm"],
        "acc": right,
        "acc_norm": 1 - right,
    }


def test_samples_of_lm_eval(tmp_path):
    name = "samples_rivers_2026-11-23T10-11-12.345678.jsonl"
    scores = {"small": [[-1.0, -2.0], [-2.0, -1.0]], "large": [[-0.1, -9.0], [-0.1, -9.0]]}
    right = {"small": [1.0, 0.0], "large": [1.0, 1.0]}
    by_model = {model: [sample(at, scores[model][at], right[model][at]) for at in range(2)] for model in scores}
    files = [lines(tmp_path / model / name, *samples, sample(0, [0, 0], 0)) for model, samples in by_model.items()]
    dropped = Dropped()
    rows = rows_of(*files, dropped=dropped)
    assert sorted(picked(rows, "episode_id", "step", "model", "answer", "correct")) == [
        ("rivers/0", 1, "small", "the Danube", True),
        ("rivers/0", 2, "large", "the Danube", True),
        ("rivers/1", 1, "small", "the Inn", False),
        ("rivers/1", 2, "large", "the Danube", True),
    ]
    assert {row["segment"] for row in rows} == {"rivers"}
    entropy = {row["episode_id"]: row["signals"]["choice_entropy"] for row in rows if row["model"] == "small"}
    assert entropy["rivers/0"] == pytest.approx(0.5822, abs=1e-4)
    assert dropped.count == 2  # the second answers to question 0
    read, duckdb = ("model", "answer", "correct", "signals"), pytest.importorskip("duckdb")
    for path in files:  # as Parquet, which has no record of lines
        duckdb.sql(f"SELECT * FROM read_json('{path}')").write_parquet(str(path.with_suffix(".parquet")))
    stored = rows_of(*[path.with_suffix(".parquet") for path in files])
    assert sorted(map(str, picked(stored, *read))) == sorted(map(str, picked(rows, *read)))
    assert [row["correct"] for row in rows_of(*files, columns={"correct": "acc_norm"})].count(True) == 1
    for task, model in product(("arc_easy", "rivers"), scores):
        lines(tmp_path / "all" / f"samples_{task}_{model}.jsonl", by_model[model][0])
    rows = rows_of(tmp_path / "all", models=["small", "large"])
    assert sorted({*picked(rows, "episode_id", "segment")}) == [("arc_easy/0", "arc_easy"), ("rivers/0", "rivers")]
    with pytest.raises(UsageError):
        rows_of(files[0])


def test_routerbench(tmp_path):
    """Where a set of questions has grades between 0 and 1, its 0 and 1 are grades as well, and no verdicts."""
    records = []
    for name, scores in (("mmlu", (0.0, 1.0)), ("mtbench", (0.5, 1.0))):
        record = {"sample_id": f"{name}.1", "prompt": "Which river?", "eval_name": name}
        for model, cost, score in zip(("small", "large"), (0.0001, 0.002), scores, strict=True):
            record |= {model: score, f"{model}|model_response": f"by {model}", f"{model}|total_cost": cost}
        records.append(record | {"oracle_model_to_route_to": "large"})
    rows = rows_of(lines(tmp_path / "rb.jsonl", *records))
    assert sorted(picked(rows, "segment", "step", "model", "answer", "correct", "cost_nano_usd")) == [
        ("mmlu", 1, "small", "by small", False, 100_000),
        ("mmlu", 2, "large", "by large", True, 2_000_000),
        ("mtbench", 1, "small", "by small", None, 100_000),
        ("mtbench", 2, "large", "by large", None, 2_000_000),
    ]


def test_inspect_logs_of_two_models(tmp_path):
    files = []
    for model, scores in ((MINI, "IC"), ("gpt-4o", "CC")):
        path, samples = tmp_path / f"{model}.eval", list[dict[str, Any]]()
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("header.json", json.dumps({"eval": {"task": "rivers", "model": model}}))
            for at, score in enumerate(scores):
                message = {"role": "assistant", "content": f"{model} says {at}"}
                output = {
                    "model": model,
                    "choices": [{"message": message, "stop_reason": "stop"}],
                    "usage": {"input_tokens": 100, "output_tokens": 10},
                    "time": 1.5,
                }
                record = {"id": at, "epoch": 1, "input": f"Which river {at}?", "target": "Danube", "output": output}
                samples.append(record | {"scores": {"match": {"value": score}}})
                packed.writestr(f"samples/{at}_epoch_1.json", json.dumps(samples[at]))
        path.with_suffix(".json").write_text(json.dumps({"eval": {}, "status": "success", "samples": samples}))
        files.append(path)
    rows, read = rows_of(*files), ("episode_id", "step", "answer", "correct", "gold", "cost_nano_usd")
    assert picked(rows_of(*[path.with_suffix(".json") for path in files]), *read) == picked(rows, *read)
    assert sorted(picked(rows, "episode_id", "step", "answer", "correct", "gold", "latency_ms")) == [
        (str(at), step, f"{model} says {at}", correct[at], ["Danube"], 1500.0)
        for at in range(2)
        for step, model, correct in ((1, MINI, [False, True]), (2, "gpt-4o", [True, True]))
    ]
    assert {row["cost_nano_usd"] for row in rows if row["model"] == MINI} == {PRICED.cost_nano_usd(Usage(100, 10))}


def pair(question: str, turn: int = 1, turns: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "dataset": "d",
        "pair": "b>g",
        "question_id": question,
        "question": f"{question}?",
        "round": turn,
        "T": turns,
        "base_model": "b",
        "base_answer": "x",
        "base_correct": 0,
        "base_cost_usd": 0.001,
        "base_uncertainty": 0.25,
        "base_uncertainty_kind": "neg_mean_token_logprob",
        "base_uncertainty_cost_usd": 0.0005,
        "guide_model": "g",
        "guide_answer": "y",
        "guide_correct": 1,
        "guide_cost_usd": 0.01,
        "guide_verdict": "no",
    } | fields


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (
            [pair("q")],
            [
                (None, 1, 0, "b", 1_500_000, False),
                (None, 2, 0, "g", 10_000_000, True),
                ("guide only", 1, 0, "g", 10_000_000, True),
            ],
        ),
        (
            [pair("q", 1, 2), pair("q", 2, 2, base_cost_usd=0, base_uncertainty_cost_usd=None, base_input_tokens=0)],
            [
                (None, 1, 0, "base", 1_500_000, False),
                (None, 1, 1, "guide", 10_000_000, True),
                ("guide only", 1, 0, "g", 10_000_000, True),
                (None, 2, 0, "base", 0, False),
                (None, 2, 1, "guide", 10_000_000, True),
            ],
        ),
    ],
)
def test_pairs_of_models(tmp_path, records, expected):
    rows = rows_of(lines(tmp_path / "pairs.jsonl", *records))
    assert picked(rows, "walk", "step", "candidate", "source", "cost_nano_usd", "correct") == expected
    assert rows[0]["signals"]["base_reply_mean_logprob" if len(records) > 1 else "reply_mean_logprob"] == -0.25
    assert [row["kept"] for row in rows if row["walk"]] == [True]


def test_runs_of_a_base_and_a_guide_are_two_steps(tmp_path):
    shared = {"dataset": "d", "question_id": "q", "question": "q?", "method": "alone", "cost_usd": 0.001}
    records = [
        shared | {"model": "b", "role": "base", "round": 1, "answer": "x", "correct": None},
        shared | {"model": "b", "role": "base", "round": 2, "answer": "y", "correct": 1},
        shared | {"model": "g", "role": "guide", "round": 1, "answer": "z", "correct": 0},
    ]
    rows = rows_of(lines(tmp_path / "runs.jsonl", *records))
    assert picked(rows, "walk", "step", "candidate", "answer", "correct") == [
        (None, 1, None, None, None),
        (None, 1, 0, "y", True),
        (None, 2, 0, "z", False),
        ("guide only", 1, 0, "z", False),
    ]
    assert rows[0]["signals"] == {"replay": {"told": True}}


def test_a_question_that_two_runs_spell_differently_is_spelt_as_the_first_of_the_base(tmp_path):
    records = [
        {"dataset": "d", "question_id": f"q{at}", "question": role, "method": "alone", "model": role, "role": role}
        | {"round": 1, "answer": "x", "correct": 1, "sample": 0}
        for at in range(3_000)
        for role in ("guide", "base")
    ]
    rows = rows_of(lines(tmp_path / "runs.jsonl", *records))
    assert {row["question"] for row in rows} == {"base"}


def test_chat_requests_of_several_models_are_a_ladder(tmp_path):
    def row(model: str, run: int, cost: float, city: str, request_id: str = "r1") -> dict[str, Any]:
        calls = [{"name": "get_weather", "arguments": {"city": city}}]
        texts = {
            "messages_json": json.dumps(TALK[:2]),
            "tools_json": json.dumps([TOOL]),
            "tool_calls_json": json.dumps(calls),
        }
        return {"request_id": request_id, "model": model, "run": run, "output_text": None, "cost_usd": cost, **texts}

    records = [
        row("l", 1, 0.01, "Vienna"),
        row("s", 1, 0.001, "Graz"),
        row("s", 2, 0.001, "Linz"),
        row("m", 1, 0.005, "X", "r2"),
    ]
    dropped = Dropped()
    rows = rows_of(lines(tmp_path / "r.jsonl", *records), dropped=dropped, models=["s", "l"])
    assert picked(rows, "episode_id", "step", "model", "cost_nano_usd") == [
        ("r1", 1, "s", 1_000_000),
        ("r1", 2, "l", 10_000_000),
    ]
    assert dropped.count == 1
    with pytest.raises(UsageError):
        rows_of(tmp_path / "r.jsonl", models=["s", "x"])
