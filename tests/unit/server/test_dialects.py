"""Translation from and to OpenAI's responses and Anthropic's messages."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cascade.errors import BadResponseError, StreamInterruptedError
from cascade.providers.fake import FakeProvider, reply
from cascade.server.dialects import ServedMessage
from cascade.server.dialects.messages import Messages
from cascade.server.dialects.responses import Responses
from cascade.server.errors import GatewayError, refusal_of
from cascade.types import Request

from .served import ASK, asgi, orchestrator
from .test_client_library import CLAUDE_TOOLS, RESPONSE_TOOLS, script
from .test_http import SCHEMA

openai = pytest.importorskip("openai")

PNG = base64.b64encode(b"not really a picture").decode()


def test_a_whole_conversation_of_anthropic_s_is_translated() -> None:
    body = {
        "model": "cascade", "max_tokens": 9, "stop_sequences": ["END"], "top_k": 5, "temperature": 0.5,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "metadata": {"user_id": "u7"},
        "tools": CLAUDE_TOOLS,
        "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        "messages": [
            {"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                {"type": "text", "text": "How long?"},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "…", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"days": 3}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": "no net"},
                {"type": "text", "text": "Well?"},
            ]},
        ],
    }  # fmt: skip
    found = Messages(body, "t").request()
    assert found == {
        "model": "cascade", "max_tokens": 9, "stop": ["END"], "top_k": 5, "temperature": 0.5, "user": "u7",
        "tools": [{"type": "function", "function": {
            "name": "get_weather", "description": "The weather.", "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                {"type": "text", "text": "How long?"},
            ]},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"days": 3}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": [
                {"type": "text", "text": "The tool failed:"}, {"type": "text", "text": "no net"}]},
            {"role": "user", "content": "Well?"},
        ],
    }  # fmt: skip


def test_a_whole_conversation_of_responses_is_translated() -> None:
    body = {
        "model": "cascade", "max_output_tokens": 9, "instructions": "Be brief.", "reasoning": {"effort": "low"},
        "tools": RESPONSE_TOOLS, "tool_choice": {"type": "function", "name": "get_weather"}, "made_up": 1,
        "include": ["message.output_text.logprobs"], "top_logprobs": 2, "store": True,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "How long?"},
                                         {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"days": 3}'},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
    }  # fmt: skip
    assert Responses(body, "t").request() == {
        "model": "cascade", "max_completion_tokens": 9, "reasoning_effort": "low", "made_up": 1,
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, "strict": False}}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "logprobs": True, "top_logprobs": 2,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "How long?"},
                                         {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}}]},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"days": 3}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "field"),
    [
        (Messages, {"messages": "hi"}),
        (Messages, {"messages": [{"role": "user", "content": [{"type": "video"}]}]}),
        (Messages, {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]}),
        (Messages, {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}),
        (Messages, {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}),
        (Messages, {"messages": ASK, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        (Messages, {"messages": ASK, "tool_choice": {"type": "some"}}),
        (Messages, {"messages": ASK, "output_config": {"format": {"type": "xml"}}}),
        (Responses, {"input": 5}),
        (Responses, {"input": [{"type": "item_reference", "id": "1"}]}),
        (Responses, {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x"}]}]}),
        (Responses, {"input": [{"type": "function_call", "name": "x"}]}),
        (Responses, {"input": "hi", "tools": [{"type": "web_search"}]}),
        (Responses, {"input": "hi", "instructions": []}),
    ],
)
def test_what_cannot_be_translated_is_refused_and_not_dropped(dialect: Any, field: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        dialect({"model": "cascade", **field}, "t").request()
    assert caught.value.status == 400


def test_a_call_without_an_object_is_no_message() -> None:
    with orchestrator(lambda _: reply("", tool_calls=[("get_weather", "[1]")])) as served:
        answer = served.chat(ASK, tools=[{"type": "function", "function": {"name": "get_weather", "parameters": {}}}])
    with pytest.raises(BadResponseError):
        Messages({}, "t").whole(ServedMessage(answer), None)


class Breaks(FakeProvider):
    """Ends its streams after a word."""

    async def stream(self, request: Request, timeout_s: float) -> Any:
        async for chunk in super().stream(request, timeout_s):
            yield chunk
            raise StreamInterruptedError("gone", partial="The")


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/messages", b"event: error\ndata: {"),
        ("/v1/responses", b"event: error\ndata: {"),
        (None, b'data: {"error"'),
    ],
)
async def test_a_stream_that_breaks_ends_in_the_dialect_s_error(path: str | None, last: bytes) -> None:
    async with orchestrator(Breaks(script)) as served, asgi(served) as client:
        asked = {"input": "Hi"} if path == "/v1/responses" else {"messages": ASK}
        found = await client.post(path or "/v1/chat/completions", json={"model": "large", "stream": True, **asked})
    assert found.status_code == 200
    assert found.content.split(b"\n\n")[-2].startswith(last)


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "rate_limit_error"), (418, "invalid_request_error"), (502, "api_error")]
)
def test_kinds_of_errors_of_anthropic_s(status: int, kind: str) -> None:
    assert Messages.refused(refusal_of(GatewayError(status, "x")), "t")["error"]["type"] == kind


def thinking() -> FakeProvider:
    said = reply("The Danube.")
    said["choices"][0]["message"]["reasoning_content"] = "Vienna lies on it."
    return FakeProvider({"small": [said]})


async def thought(fake: FakeProvider, **fields: Any) -> Any:
    body = {"model": "small", "max_tokens": 9, "messages": ASK, **fields}
    async with asgi(orchestrator(fake)) as client:
        return await client.post("/v1/messages", json=body)


async def test_thinking_is_asked_for_as_effort_and_thoughts_come_back_as_a_block() -> None:
    fake = thinking()
    wanted = {"type": "enabled", "budget_tokens": 5_000}
    found = (await thought(fake, thinking=wanted)).json()
    assert found["content"] == [
        {"type": "thinking", "thinking": "Vienna lies on it.", "signature": ""},
        {"type": "text", "text": "The Danube."},
    ]
    assert fake.requests[0].chat is not None
    assert fake.requests[0].chat.options == {"max_tokens": 9, "reasoning_effort": "high"}
    plain = (await thought(thinking())).json()
    assert [block["type"] for block in plain["content"]] == ["text"]
    async with orchestrator(thinking()) as served:
        answer = await served.achat(ASK)
    writer = Messages({"thinking": wanted}, "t")
    events = writer.text("The Danube.", "small") + b"".join(writer.ending(ServedMessage(answer), None))
    assert events.index(b'"text_delta"') < events.index(b'"thinking_delta"')


async def test_a_response_says_at_which_service_tier_it_was_served() -> None:
    said = {**reply("The Danube."), "service_tier": "priority"}
    async with orchestrator(FakeProvider(lambda _: said)) as served:
        answer = await served.achat(ASK)
    whole = Responses({}, "t").whole(ServedMessage(answer), None)
    assert openai.types.responses.Response.model_validate(whole).service_tier == "priority"
    events = b"".join(Responses({}, "t").ending(ServedMessage(answer), None))
    assert events.count(b'"service_tier":"priority"') == 1  # in the last event


def test_a_field_of_a_tool_that_is_null_is_left_out() -> None:
    tool = {"type": "function", "name": "f", "description": None, "parameters": SCHEMA}
    found = Responses({"input": "Hi", "tools": [tool]}, "t").request()
    assert found["tools"] == [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]


async def test_paths_beside_a_dialect_s_own() -> None:
    async with asgi(orchestrator(FakeProvider({"small": ["Hi"]}))) as client:
        missing = await client.get("/v1/messages/batches")
        root = (await client.get("/")).json()
    assert (missing.status_code, missing.json()["type"]) == (404, "error")
    assert missing.json()["error"]["type"] == "not_found_error"
    assert {"GET /ui", "POST /v1/chat/completions"} <= set(root["paths"])
