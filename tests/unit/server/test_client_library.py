"""The official client libraries of OpenAI and Anthropic against the server, on a loopback port."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from packages import Package
from pydantic import BaseModel

from cascade import errors
from cascade.errors import BadResponseError
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.histories import packed
from cascade.runtime import Runtime
from cascade.server.app import application
from cascade.server.auth import new_key
from cascade.server.dialects import ChatCompletions, ServedMessage
from cascade.server.dialects.messages import Messages
from cascade.server.dialects.responses import Responses
from cascade.server.errors import GatewayError, refusal_of
from cascade.server.lifecycle import listener
from cascade.types import Request

from .served import ASK, Gated, asgi, listening, orchestrator
from .test_contract import SURE, UNSURE
from .test_http import SCHEMA, TOOLS

anthropic, openai = Package("anthropic"), Package("openai")

KEY = new_key()
INJECTION = 'a\n\ndata: [DONE]\n\nevent: x\r\ndata: {"error": {}}'
CLAUDE_TOOLS = [{"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}]
RESPONSE_TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}]


class City(BaseModel):
    name: str
    people: int


def script(request: Request) -> Any:
    """Answer by what is asked: the last message says how."""
    text, sure = request.chat.asked_text, [-0.01] * 40
    if text == "call a tool":
        days: Any = "3" if request.model == "small" else 3
        return reply("", tool_calls=[("get_weather", {"days": days})], logprobs=sure)
    if text == "call two":
        return reply("", tool_calls=[("get_weather", {"days": 3}), ("get_weather", {"days": 4})], logprobs=sure)
    if text == "too long":
        return errors.from_status(400, "maximum context length is 8 tokens")
    if text == "write JSON":
        people = '"many"' if request.model == "small" else "2"
        return reply(f'{{"name": "Vienna", "people": {people}}}', logprobs=sure)
    if text == "inject":
        return reply(INJECTION, logprobs=sure)
    if text == "limit":
        return errors.RateLimitedError("slow down", retry_after_s=0)
    if request.model == "small" and text.startswith("hard"):
        return UNSURE
    return with_thoughts(SURE) if text.endswith("thinking") else SURE


def with_thoughts(payload: Any) -> Any:
    (choice,) = payload["choices"]
    return {
        **payload,
        "choices": [{**choice, "message": {**choice["message"], "reasoning_content": "Vienna lies on it."}}],
    }


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Form(NamedTuple):
    """How one form of the API is asked by its client, and what of an answer has which place."""

    library: Any
    place: Callable[[Any], Any]
    body: Callable[[str], dict[str, Any]]
    tools: Any
    text: Callable[[Any], str]
    end: Callable[[Any], tuple[str, int, int]]
    call: Callable[[Any], tuple[str, Any]]


def _completions_call(answer: Any) -> tuple[str, Any]:
    function = answer.choices[0].message.tool_calls[0].function
    return function.name, json.loads(function.arguments)


FORMS = {
    "chatcmpl": Form(
        openai, lambda client: client.chat.completions, lambda text: {"messages": ask(text)}, TOOLS,
        lambda answer: answer.choices[0].message.content,
        lambda answer: (answer.choices[0].finish_reason, answer.usage.prompt_tokens, answer.usage.completion_tokens),
        _completions_call,
    ),
    "resp": Form(
        openai, lambda client: client.responses, lambda text: {"input": ask(text)}, RESPONSE_TOOLS,
        lambda answer: answer.output_text,
        lambda answer: (answer.status, answer.usage.input_tokens, answer.usage.output_tokens),
        lambda answer: (answer.output[-1].name, json.loads(answer.output[-1].arguments)),
    ),
    "msg": Form(
        anthropic, lambda client: client.messages, lambda text: {"messages": ask(text), "max_tokens": 50}, CLAUDE_TOOLS,
        lambda answer: answer.content[0].text,
        lambda answer: (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens),
        lambda answer: (answer.content[-1].name, answer.content[-1].input),
    ),
}  # fmt: skip
ENDS = {"chatcmpl": ("stop", "tool_calls"), "resp": ("completed", "completed"), "msg": ("end_turn", "tool_use")}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    keys = [{"name": "app", "sha256": KEY.sha256}]
    with orchestrator(FakeProvider(script), server={"keys": keys}) as served, listening(served) as address:
        yield address


@pytest.fixture(scope="module")
def clients(url: str) -> Iterator[dict[Any, Any]]:
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key=KEY.key, max_retries=0) as first,
        anthropic.Anthropic(base_url=url, api_key=KEY.key, max_retries=0) as second,
    ):
        yield {openai: first, anthropic: second}


@pytest.fixture(params=FORMS)
def form(request: Any, clients: dict[Any, Any]) -> tuple[str, Form, Any]:
    """Return a form by its name, and the part of its client that asks."""
    reads = FORMS[request.param]
    return request.param, reads, reads.place(clients[reads.library])


def final(part: Any, whole: str, *, stream: bool, **fields: Any) -> Any:
    """Return a client library's last word on a request, asked as a whole or as a stream."""
    if not stream:
        return getattr(part, whole)(model="cascade", **fields)
    with part.stream(model="cascade", **fields) as events:
        for name in ("get_final_completion", "get_final_message", "get_final_response"):
            if hasattr(events, name):
                return getattr(events, name)()
    raise AssertionError("the stream has no end")


def test_a_plain_answer_with_its_headers(form):
    name, reads, part = form
    explain = {"x-cascade-explain": "1"}
    raw = part.with_raw_response.create(model="cascade", **reads.body("hard"), extra_headers=explain)
    answer = raw.parse()
    assert (reads.text(answer), answer.model, answer.cascade["stopped"]) == ("The Danube.", "large", "horizon")
    assert reads.end(answer) == (ENDS[name][0], 100, 10)
    assert answer.id == f"{name}{'-' if name == 'chatcmpl' else '_'}{raw.headers['x-cascade-trace-id']}"
    assert raw.headers["x-cascade-served-by"] == "large"
    assert answer._request_id == raw.headers["x-cascade-trace-id"]


@pytest.mark.parametrize("text", ["easy", "hard", "inject"])
def test_a_stream(form, text):
    name, reads, part = form
    usage = {"stream_options": {"include_usage": True}} if name == "chatcmpl" else {}
    answer = final(part, "create", stream=True, **reads.body(text), **usage)
    assert reads.text(answer) == (INJECTION if text == "inject" else "The Danube.")
    assert reads.end(answer)[0] == ENDS[name][0]
    assert 0 not in reads.end(answer)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called(form, stream):
    name, reads, part = form
    answer = final(part, "create", stream=stream, **reads.body("call a tool"), tools=reads.tools)
    assert reads.call(answer) == ("get_weather", {"days": 3})
    assert answer.model == "large"  # the base's call breaks the schema
    end = answer.choices[0].finish_reason if name == "chatcmpl" else reads.end(answer)[0]
    assert end == ENDS[name][1]


@pytest.mark.parametrize("text", ["easy thinking", "hard thinking"])
def test_thinking_is_streamed_before_the_text(form, text):
    name, reads, part = form
    more: Any = {"msg": {"thinking": {"type": "adaptive"}}, "resp": {"reasoning": {"effort": "low"}}}.get(name, {})
    with part.stream(model="cascade", **reads.body(text), **more) as stream:
        events = [event.to_json() for event in stream]
    thought, text_at = (next(at for at, event in enumerate(events) if word in event) for word in ("lies on it", "The"))
    assert thought < text_at
    assert "delta" in events[thought]  # LangChain, Haystack, pydantic-ai and Strands read no other
    assert "".join(events[-2:]).count("lies on it") == 1  # in the message that the library joined


def test_a_chunk_has_one_tool_call_as_of_openai(clients):
    """LlamaIndex reads the first call of a chunk alone, and so lost every other."""
    request: dict[str, Any] = {"model": "cascade", "messages": ask("call two"), "tools": TOOLS, "stream": True}
    deltas = [chunk.choices[0].delta for chunk in clients[openai].chat.completions.create(**request)]
    calls = [[(call.index, call.function.arguments) for call in delta.tool_calls or ()] for delta in deltas]
    assert [listed for listed in calls if listed] == [[(0, '{"days": 3}')], [(1, '{"days": 4}')]]
    assert [delta.role for delta in deltas].count("assistant") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_has_the_sign_by_which_each_library_knows_it(form, stream):
    """Without it Claude Code does not shorten the conversation, and LangChain raises no error of its own kind."""
    name, reads, part = form
    with pytest.raises(reads.library.BadRequestError) as caught:
        part.create(model="cascade", stream=stream, **reads.body("too long"))
    error = caught.value.body["error"] if name == "msg" else caught.value.body
    assert error["code"] == "context_length_exceeded"
    assert (error["message"].count("prompt is too long") == 1) is (name == "msg")


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema(form, stream):
    name, reads, part = form
    field = {"chatcmpl": "response_format", "resp": "text_format", "msg": "output_format"}[name]
    answer = final(part, "parse", stream=stream, **reads.body("write JSON"), **{field: City})
    parsed = {
        "chatcmpl": lambda: answer.choices[0].message.parsed,
        "resp": lambda: answer.output_parsed,
        "msg": lambda: answer.parsed_output,
    }
    assert (parsed[name](), answer.model) == (City(name="Vienna", people=2), "large")  # the base's breaks the schema


def test_the_events_of_a_response_are_numbered(clients):
    with clients[openai].responses.stream(model="large", input="easy") as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["The", " Danube."]


class Fails(Gated):
    """Fails once it is let go."""

    async def stream(self, request: Request, timeout_s: float) -> Any:
        await self._wait()
        raise errors.BadRequestError("no")
        yield


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize(("library", "kind"), [(openai, "completions"), (openai, "responses"), (anthropic, "messages")])
def test_a_comment_begins_a_stream_that_is_silent_and_what_follows_is_read(library, kind, breaks, monkeypatch):
    monkeypatch.setattr(Runtime, "failing_stores", ("traces",))
    gated = (Fails if breaks else Gated)({"large": [SURE]})
    settings = {"heartbeat_s": 0.01, "keep_alive_s": 7}
    with orchestrator(gated, server=settings) as served, listening(served) as address:
        assert listener(application(served)).timeout_keep_alive == 7
        base = address if library is anthropic else f"{address}/v1"
        client = library.Client(base_url=base, api_key="none", max_retries=0)
        part = getattr(getattr(client, "chat", client), kind, None) or getattr(client, kind)
        request: Any = {"input": "easy"} if kind == "responses" else {"messages": ASK}
        more: Any = {"completions": {"stream_options": {"include_usage": True}}, "messages": {"max_tokens": 50}}
        stream = part.create(model="large", stream=True, **request, **more.get(kind, {}))  # returns with the first byte
        assert stream.response.headers["x-cascade-stores-failing"] == "traces"
        assert gated.waiting.is_set()
        gated.go()
        if breaks:
            with pytest.raises(library.APIError):
                list(stream)
        else:
            events = [event.to_json() for event in stream]
            assert "Danube" in "".join(events)
            assert any("cost_usd" in event for event in events[-2:])  # of a chat, usage follows


async def test_the_asynchronous_clients(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY.key) as client:
        stream = await client.chat.completions.create(model="large", messages=ASK, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        both = await asyncio.gather(*(client.chat.completions.create(model="cascade", messages=ASK) for _ in range(8)))
    assert "".join(pieces) == "The Danube."
    assert {answer.choices[0].message.content for answer in both} == {"The Danube."}
    async with (
        anthropic.AsyncAnthropic(base_url=url, auth_token=KEY.key, api_key=None) as claude,
        claude.messages.stream(model="large", max_tokens=50, messages=ASK) as stream,
    ):
        assert [text async for text in stream.text_stream] == ["The", " Danube."]


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        ("NotFoundError", {"model": "nope"}, "easy"),
        ("BadRequestError", {"tools": [{"type": "web_search"}]}, "easy"),
        ("RateLimitError", {}, "limit"),
    ],
)
def test_errors_are_those_that_an_application_catches(form, kind, fields, text):
    name, reads, part = form
    if name == "chatcmpl" and kind == "BadRequestError":
        fields = {"tools": "all"}
    with pytest.raises(getattr(reads.library, kind)) as caught:
        part.create(**{"model": "cascade", **reads.body(text), **fields})
    trace_id = caught.value.response.headers["x-cascade-trace-id"]
    assert caught.value.body["request_id"] == trace_id if name == "msg" else caught.value.type


@pytest.mark.parametrize("key", ["not-it", KEY.sha256, "sk-cascade-" + "A" * 43], ids=["other", "hash", "form"])
def test_a_wrong_key(form, clients, key):
    _, reads, _ = form
    part = reads.place(clients[reads.library].with_options(api_key=key))
    with pytest.raises(reads.library.AuthenticationError) as caught:
        part.create(model="cascade", **reads.body("easy"))
    assert key not in str(caught.value)


def test_the_client_library_tries_again_what_may_be_tried_again_and_nothing_else(url):
    tries: list[int] = []
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY.key, max_retries=1) as client:
        client._client.event_hooks = {"response": [lambda response: tries.append(response.status_code)]}
        for text in ("limit", ""):
            with pytest.raises(openai.APIStatusError):
                client.chat.completions.create(model="cascade", messages=ask(text) if text else [])
    assert tries == [429, 429, 400]


PNG = base64.b64encode(b"not really a picture").decode()


def test_a_whole_conversation_of_anthropic_s_is_translated():
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
    request = Messages(body, "t").request()
    assert request == {
        "model": "cascade", "max_tokens": 9, "stop": ["END"], "top_k": 5, "temperature": 0.5, "user": "u7",
        "tools": [{"type": "function", "function": {
            "name": "get_weather", "description": "The weather.", "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
        "messages": [
            {"role": "system", "content": [
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                {"type": "text", "text": "How long?"},
            ]},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"days": 3}'}}],
             "thinking_blocks": [{"type": "thinking", "thinking": "…", "signature": "s"}], "written_by": "by-000000-"},
            {"role": "tool", "tool_call_id": "c1", "content": [
                {"type": "text", "text": "The tool failed:"}, {"type": "text", "text": "no net"}]},
            {"role": "user", "content": "Well?"},
        ],
    }  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])  # Haystack sends the text after the calls
def test_a_whole_conversation_of_responses_is_translated(order):
    body = {
        "model": "cascade", "max_output_tokens": 9, "instructions": "Be brief.", "reasoning": {"effort": "low"},
        "tools": RESPONSE_TOOLS, "tool_choice": {"type": "function", "name": "get_weather"}, "made_up": 1,
        "include": ["message.output_text.logprobs"], "top_logprobs": 2, "store": True,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "How long?"},
                                         {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            *[{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
              {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"days": 3}'}][::order],
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
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"days": 3}'}}],
             "reasoning_items": [{"type": "reasoning", "id": "r", "summary": []}], "written_by": "by-000000-"},
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
        *((Responses, {"input": "hi", **fields}) for fields in (
            {"previous_response_id": "resp_1"}, {"background": True}, {"tool_choice": {"type": "web_search"}},
            {"reasoning": {"mode": "pro"}}, {"text": {"tone": "dry"}}, {"text": "short"},
        )),
        *((Responses, {"input": "Hi", "tools": [{"type": "function", **name}, {
            "type": "namespace", "name": "a", "tools": [{"type": "function", "name": "f"}]}]})
          for name in ({"name": "a__f"}, {}, {"name": ["f"]})),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_and_not_dropped(dialect, field):
    with pytest.raises(GatewayError) as caught:
        dialect({"model": "cascade", **field}, "t").request()
    assert caught.value.status == 400


def test_a_call_without_an_object_is_no_message():
    with orchestrator(lambda _: reply("", tool_calls=[("get_weather", "[1]")])) as served:
        answer = served.chat(ASK, tools=[{"type": "function", "function": {"name": "get_weather", "parameters": {}}}])
    with pytest.raises(BadResponseError):
        Messages({}, "t").whole(ServedMessage(answer), None)


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "rate_limit_error"), (418, "invalid_request_error"), (502, "api_error")]
)
def test_kinds_of_errors_of_anthropic_s(status, kind):
    assert Messages.refused(refusal_of(GatewayError(status, "x")), "t")["error"]["type"] == kind


async def test_thinking_is_asked_for_as_effort_and_thoughts_come_back_as_a_block():
    fake, wanted = FakeProvider({"small": [with_thoughts(SURE)]}), {"type": "enabled", "budget_tokens": 5_000}
    body: dict[str, Any] = {"model": "small", "max_tokens": 9, "messages": ASK}
    async with orchestrator(fake) as served, asgi(served) as client:
        message = (await client.post("/v1/messages", json={**body, "thinking": wanted})).json()
        plain = (await client.post("/v1/messages", json=body)).json()
        answer = await served.achat(ASK)
    signature = packed({"reasoning_content": "Vienna lies on it."}, "small")
    assert message["content"][:1] == [{"type": "thinking", "thinking": "Vienna lies on it.", "signature": signature}]
    assert message["content"][1:] == plain["content"] == [{"type": "text", "text": "The Danube."}]
    assert fake.requests[0].chat is not None
    assert fake.requests[0].chat.options == {"max_tokens": 9, "reasoning_effort": "high"}
    for writer in (Messages({"thinking": wanted}, "t"), Responses({"reasoning": {}}, "t"), ChatCompletions({}, "t")):
        sent = writer.text("The Danube.", "small", packed({"reasoning_content": "Vienna "}, "small"))
        sent += b"".join(writer.ending(ServedMessage(answer), None))  # the rest of the thinking came after the text
        places = [sent.index(piece) for piece in (b'"Vienna "', b'"The Danube."', b'"lies on it."')]
        assert places == sorted(places)


async def test_a_response_says_at_which_service_tier_it_was_served():
    payload = {**reply("The Danube."), "service_tier": "priority"}
    async with orchestrator(FakeProvider(lambda _: payload)) as served:
        answer = await served.achat(ASK)
    whole = Responses({}, "t").whole(ServedMessage(answer), None)
    assert openai.types.responses.Response.model_validate(whole).service_tier == "priority"
    events = b"".join(Responses({}, "t").ending(ServedMessage(answer), None))
    assert events.count(b'"service_tier":"priority"') == 1  # in the last event


def test_which_tools_a_response_may_call_is_translated_and_without_tools_left_out():
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    body = {"input": "Hi", "tools": RESPONSE_TOOLS, "tool_choice": allowed, "parallel_tool_calls": True}
    request = Responses(body, "t").request()
    assert request["tool_choice"] == {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}  # fmt: skip
    assert request["parallel_tool_calls"] is True
    idle = Responses({**body, "tools": [], "tool_choice": "auto"}, "t").request()
    assert idle.keys() == {"messages"}


def test_functions_of_a_namespace_are_offered_called_and_handed_back_under_both_names():
    function = {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA}
    space = {"type": "namespace", "name": "map", "description": "Maps.", "tools": [function]}
    fake = FakeProvider(lambda request: reply("", tool_calls=[("map__look", {"days": 3})]))
    with listening(orchestrator(fake)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        turns: Any = [*ask("Hi")]
        wanted: Any = {"model": "small", "tools": [space, *RESPONSE_TOOLS], "store": False}
        (call,) = client.responses.create(input=turns, **wanted).output
        assert (call.name, call.namespace, call.arguments) == ("look", "map", '{"days": 3}')
        turns += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "here"}]
        with client.responses.stream(input=turns, **wanted) as events:
            assert events.get_final_response().output[0].namespace == "map"
    assert [(tool["function"]["name"], tool["function"].get("description")) for tool in fake.requests[0].chat.tools] == [
        ("map__look", "Maps.\n\nLooks."), ("get_weather", None)]  # fmt: skip
    assert fake.requests[1].chat.messages[1]["tool_calls"][0]["function"]["name"] == "map__look"
    choice = Responses(
        {"input": "Hi", **wanted, "tool_choice": {"type": "function", "name": "look", "namespace": "map"}}, "t"
    )
    assert choice.request()["tool_choice"]["function"] == {"name": "map__look"}


def test_what_a_tool_of_anthropic_s_has_besides_is_refused_by_name(clients):
    tool = {**CLAUDE_TOOLS[0], "eager_input_streaming": True, "input_examples": [{"days": 3}]}
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\]\.function\.input_examples\.") as caught:
        clients[anthropic].messages.create(model="small", max_tokens=9, messages=ASK, tools=[tool])
    assert "eager_input_streaming" not in str(caught.value)


def test_anthropic_s_tool_runner_goes_on_without_a_thread(clients):
    runner = clients[anthropic].beta.messages.tool_runner(model="large", max_tokens=9, tools=[], messages=ASK)
    assert runner.until_done().content[0].text == "The Danube."


def test_a_name_of_a_user_that_openai_s_servers_refuse_goes_as_its_digest():
    users = ["u" * 64, "u" * 65, json.dumps({"session_id": "s" * 90})]
    sent = [Messages({"messages": ASK, "metadata": {"user_id": user}}, "t").request()["user"] for user in users]
    assert sent[0] == users[0]
    assert [len(user) for user in set(sent[1:])] == [64, 64]


def test_a_field_of_a_tool_that_is_null_is_left_out():
    tool = {"type": "function", "name": "f", "description": None, "parameters": SCHEMA}
    request = Responses({"input": "Hi", "tools": [tool]}, "t").request()
    assert request["tools"] == [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]


async def test_paths_beside_a_dialect_s_own():
    async with asgi(orchestrator(FakeProvider({"small": ["Hi"]}))) as client:
        missing = await client.get("/v1/messages/batches")
        root = (await client.get("/")).json()
    assert (missing.status_code, missing.json()["type"]) == (404, "error")
    assert missing.json()["error"]["type"] == "not_found_error"
    assert {"GET /ui", "POST /v1/chat/completions"} <= set(root["paths"])
