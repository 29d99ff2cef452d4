"""Messages, tools and schema of foreign logs are kept: the same conversation, as three systems write it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.chat import ChatRequest
from cascade.logs.importers.langfuse import rows_from_langfuse
from cascade.logs.importers.litellm_spend import rows_from_litellm
from cascade.logs.importers.otel import rows_from_otel
from cascade.logs.schema import chat_of
from unit.logs.importers.test_litellm_spend import spent
from unit.logs.importers.test_otel import CONTENT, export, span, write

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Vienna"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Weather in Vienna?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    {"role": "user", "content": "And in Graz?"},
]
SECOND = {"id": "c2", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Graz"}'}}
REPLY = {"role": "assistant", "content": None, "tool_calls": [SECOND]}

Spelling = Callable[[Path, list[dict[str, Any]], dict[str, Any]], list[dict[str, Any]]]


def litellm(path: Path, messages: list[dict[str, Any]], reply: dict[str, Any]) -> list[dict[str, Any]]:
    body = {"model": "small", "messages": messages, "tools": [TOOL], "stream": False}
    choice = {"finish_reason": "tool_calls", "index": 0, "message": reply}
    given = spent(1, proxy_server_request=body, response={"object": "chat.completion", "choices": [choice]})
    return list(rows_from_litellm(write(path, given)))


def langfuse(path: Path, messages: list[dict[str, Any]], reply: dict[str, Any]) -> list[dict[str, Any]]:
    given = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": "2026-11-21T10:00:00.000Z",
        "model": "small",
        "input": {"messages": messages, "tools": [TOOL]},
        "output": reply,
        "usageDetails": {"input": 40, "output": 12, "total": 52},
    }
    return list(rows_from_langfuse(write(path, given)))


def langchain(path: Path, messages: list[dict[str, Any]], reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Write what Langfuse's callback for LangChain stores: tools among the messages, calls as {name, args, id}."""

    def called(one: dict[str, Any]) -> dict[str, Any]:
        calls = [
            {"name": call["function"]["name"], "args": json.loads(call["function"]["arguments"]), "id": call["id"]}
            for call in one.get("tool_calls", ())
        ]
        return one | ({"tool_calls": calls} if calls else {})

    given = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": "2026-11-21T10:00:00.000Z",
        "model": "small",
        "input": [*map(called, messages), {"role": "tool", "content": TOOL}],
        "output": called(reply),
    }
    return list(rows_from_langfuse(write(path, given)))


def otel(path: Path, messages: list[dict[str, Any]], reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Write a span by the conventions of 2026: parts, system instructions and tools apart."""

    def part(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {
            "type": "tool_call",
            "id": call["id"],
            "name": function["name"],
            "arguments": json.loads(function["arguments"]),
        }

    def parts(one: dict[str, Any]) -> dict[str, Any]:
        if one["role"] == "tool":
            held = {"type": "tool_call_response", "id": one["tool_call_id"], "response": one["content"]}
            return {"role": "tool", "parts": [held]}
        said = [{"type": "text", "content": one["content"]}] if one["content"] else []
        return {"role": one["role"], "parts": [*said, *map(part, one.get("tool_calls", ()))]}

    function = TOOL["function"]
    assert isinstance(function, dict)
    has = {
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": messages[0]["content"]}]),
        "gen_ai.input.messages": json.dumps([parts(one) for one in messages[1:]]),
        "gen_ai.tool.definitions": json.dumps([{"type": "function", **function}]),
        "gen_ai.output.messages": json.dumps([parts(reply) | {"finish_reason": "tool_calls"}]),
    }
    return list(rows_from_otel(write(path, export(span(has=has)))))


def traceloop(path: Path, messages: list[dict[str, Any]], reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Write a span with an attribute for each message, call and tool."""
    has: dict[str, Any] = {}
    for kind, said in (("prompt", messages), ("completion", [reply])):
        for at, one in enumerate(said):
            name = f"gen_ai.{kind}.{at}"
            has |= {f"{name}.{key}": one[key] for key in ("role", "content", "tool_call_id") if one.get(key)}
            for number, call in enumerate(one.get("tool_calls", ())):
                has |= {f"{name}.tool_calls.{number}.{key}": one for key, one in call["function"].items()}
                has[f"{name}.tool_calls.{number}.id"] = call["id"]
    function = TOOL["function"]
    assert isinstance(function, dict)
    has |= {f"llm.request.functions.0.{key}": function[key] for key in ("name", "description")}
    has["llm.request.functions.0.parameters"] = json.dumps(function["parameters"])
    return list(rows_from_otel(write(path, export(span(has=has)))))


def events(path: Path, messages: list[dict[str, Any]], reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Write a span with an event for each message; OTLP keeps a call's arguments as JSON."""

    def told(one: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in one.items() if value is not None and name != "tool_call_id"}
        named = {"id": one["tool_call_id"]} if "tool_call_id" in one else {}
        return kept | named | ({"tool_calls": json.dumps(one["tool_calls"])} if "tool_calls" in one else {})

    said = [(f"gen_ai.{one['role']}.message", told(one)) for one in messages]
    said.append(("gen_ai.choice", {"index": 0, "finish_reason": "tool_calls", "message": json.dumps(reply)}))
    has = {"gen_ai.tool.definitions": json.dumps([TOOL])}
    return list(rows_from_otel(write(path, export(span(has=has, events=said)))))


SPELLINGS = [litellm, langfuse, langchain, otel, traceloop, events]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.__name__)
def test_a_conversation_with_tools_comes_back_whole(tmp_path: Path, spelling: Spelling) -> None:
    (row,) = spelling(tmp_path / "log.jsonl", MESSAGES, REPLY)
    assert row["context"] == ChatRequest(MESSAGES, {"tools": [TOOL]}).canonical
    assert row["question"] == "And in Graz?"
    assert json.loads(row["text"]) == REPLY
    assert json.loads(row["answer"]) == [{"name": "get_weather", "arguments": {"city": "Graz"}}]
    assert row["signals"]["tool_calls"] == 1
    again = chat_of(row)
    assert again is not None
    assert list(again.messages) == MESSAGES


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.__name__)
def test_arguments_that_break_the_schema_are_a_fault_there_too(tmp_path: Path, spelling: Spelling) -> None:
    bad = REPLY | {"tool_calls": [SECOND | {"function": {"name": "get_weather", "arguments": '{"city": 3}'}}]}
    (row,) = spelling(tmp_path / "log.jsonl", MESSAGES, bad)
    assert row["signals"]["message_faults"] >= 1


def test_a_schema_and_token_log_probs_are_kept(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    body = {"messages": MESSAGES[:2], "response_format": form}
    said = '{"city": "Vienna"}'
    tokens = [{"token": one, "logprob": -0.5, "top_logprobs": []} for one in ('{"city"', ': "', "Vienna", '"}')]
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "logprobs": {"content": tokens}}
    given = spent(1, proxy_server_request=body, response={"choices": [choice]})
    (row,) = rows_from_litellm(write(tmp_path / "s.jsonl", given))
    assert json.loads(row["context"])["response_format"] == form
    assert row["signals"]["reply_mean_logprob"] == -0.5
    assert row["answer"] == said


def test_turns_of_one_trace_are_episodes_of_one_group(tmp_path: Path) -> None:
    first = span(1, has=CONTENT)
    later = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "And another?"}]}] * 2)
    second = span(2, has=CONTENT | {"gen_ai.input.messages": later})
    rows = list(rows_from_otel(write(tmp_path / "t.jsonl", export(first, second))))
    trace = rows[0]["episode_id"]
    assert [(row["episode_id"], row["step"], row["group"]) for row in rows] == [
        (trace, 1, trace),
        (f"{trace}/2", 1, trace),
    ]
