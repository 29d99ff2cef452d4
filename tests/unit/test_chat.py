"""A chat request: what is carried, what is refused, what comes back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from cascade import Orchestrator
from cascade.chat import ChatRequest, output_text
from cascade.errors import UsageError
from cascade.logs.schema import request_of
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.fields import wire_body
from cascade.server.catalog import Catalog, ClientRequest, Names
from cascade.server.dialects import ChatCompletions, ServedMessage
from cascade.server.receipts import Receipt
from cascade.types import Request
from unit.builders import TWO_RUNGS

USER = {"role": "user", "content": "Weather in Vienna for 3 days?"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
CALL = {"id": "c1", "function": {"name": "get_weather", "arguments": '{"city": "Vienna"}'}}
CONFIG = TWO_RUNGS | {"policy": {"kind": "fixed", "depth": 2}}


def served_by(script: Any, depth: int = 1) -> tuple[Orchestrator, FakeProvider]:
    fake = FakeProvider(script)
    return Orchestrator.from_config(
        {**CONFIG, "policy": {"kind": "fixed", "depth": depth}}, providers={"fake": fake}
    ), fake


def sent(request: Request) -> dict[str, Any]:
    """Return what a provider sends, without what cascade adds for itself."""
    body = wire_body(request, "m")
    return {name: body[name] for name in body.keys() - {"model", "logprobs", "top_logprobs", "max_tokens"}}


def test_an_application_s_request_is_sent_to_every_model_as_it_is():
    body = {
        "model": "whatever the application names",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": "data:,"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "rain"},
        ],
        "tools": TOOLS,
        "top_p": 0.3,
        "stop": ["\n"],
        "stream": True,
    }
    orchestrator, fake = served_by(None, 2)
    orchestrator.chat(body)
    expected = {name: body[name] for name in body.keys() - {"model", "stream"}}
    assert [sent(request) for request in fake.requests] == [expected] * len(fake.requests)
    assert {request.model for request in fake.requests} == {"small", "large"}


@pytest.mark.parametrize(
    ("options", "own", "sent_limits", "counted"),
    [
        ({}, None, {"max_tokens": 4_096}, 4_096),  # added only where the application sets none
        ({"max_completion_tokens": 7}, None, {"max_completion_tokens": 7}, 7),
        # of two limits a cap counts with the higher one: servers differ in which they read
        (
            {"max_completion_tokens": 7, "max_tokens": 9_000},
            None,
            {"max_completion_tokens": 7, "max_tokens": 9_000},
            9_000,
        ),
        ({}, 50, {"max_tokens": 50}, 50),  # a model's own
    ],
)
def test_which_limit_is_sent_and_counted(options, own, sent_limits, counted):
    fake = FakeProvider(None)
    base = "small" if own is None else {"model": "small", "max_tokens": own}
    models = {**CONFIG["models"], "base": base}
    Orchestrator.from_config({**CONFIG, "models": models}, providers={"fake": fake}).chat([USER], **options)
    body = wire_body(fake.requests[0], "m")
    assert {name: body[name] for name in ("max_tokens", "max_completion_tokens") if name in body} == sent_limits
    assert [request.max_tokens for request in fake.requests] == [counted, counted if options else 4_096]


def test_the_served_message_is_one_model_s_whole_message():
    body = reply("I will look.", tool_calls=[("get_weather", {"city": "Wien"})])
    orchestrator, _ = served_by(lambda _: body)
    answer = orchestrator.chat([USER], tools=TOOLS)
    assert answer.message == body["choices"][0]["message"]
    assert [call["function"]["name"] for call in answer.tool_calls] == ["get_weather"]
    assert answer.text == '[{"arguments":{"city":"Wien"},"name":"get_weather"}]'


def test_json_is_parsed():
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "required": ["intent"]}}}
    orchestrator, _ = served_by(lambda _: '{"intent": "lost card"}')
    assert orchestrator.chat([USER], response_format=schema).parsed == {"intent": "lost card"}


def test_equal_calls_agree_whatever_their_spelling():
    def script(request: Request) -> Any:
        arguments = '{"days": 3.0, "city": "Wien"}' if request.model == "small" else '{"city":"Wien","days":3}'
        return reply("", tool_calls=[("get_weather", arguments)])

    orchestrator, _ = served_by(script, 2)
    assert orchestrator.chat([USER], tools=TOOLS).steps[1].signals["agrees_with_earlier"] == 1.0


WRONG = ("messages[0].role", "messages[0].content", "messages[1].content", "max_tokens", "tools must", "top_k")
CLASS = ("response_format is a class", "json_schema", "model_json_schema")


@pytest.mark.parametrize(
    ("messages", "options", "parts", "lines"),
    [
        (
            [{"role": "boss", "content": 3}, {"role": "user"}],
            {"max_tokens": 0, "tools": "all", "top_k": 10**400},
            WRONG,
            None,
        ),
        ([USER], {"response_format": Receipt}, CLASS, None),
        # a request of a megabyte may have half a million problems, of which each would be looked through for keys
        ([{}] * 1_000, {}, ("980 more",), 21),
        ([{"role": "user", "content": "cut \ud83d"}], {}, ("half of a character",), None),
    ],
)
def test_what_is_wrong_with_a_request_is_said_at_once(messages, options, parts, lines):
    with pytest.raises(UsageError) as caught:
        ChatRequest(messages, options)
    assert [part for part in parts if part not in str(caught.value)] == []
    assert lines is None or str(caught.value).count("\n") == lines
    for given in ([], {"prompt": "Hi"}, {"messages": [USER], "n": 2}):
        with pytest.raises(UsageError):
            served_by(None)[0].chat(given)


@pytest.mark.parametrize("budget", [5e3, "5000", True, [1]])
async def test_a_thinking_budget_that_no_cap_knows_is_not_sent_and_is_read_where_a_log_has_it(budget):
    body = {"messages": [USER], "thinking": {"type": "enabled", "budget_tokens": budget}}
    orchestrator, fake = served_by(None)
    for given in (body, ChatRequest.from_openai(body)):
        with pytest.raises(UsageError):
            await orchestrator.achat(given)
    with pytest.raises(UsageError):
        ClientRequest.of(ChatCompletions({"model": "support", **body}, "t"), {}, Names(Catalog("support", ("small",))))
    assert fake.requests == []
    # 28 November 2026: a trace of such a request was read as one of no chat, so its tool calls were compared as texts
    assert request_of(json.dumps(body)) == ChatRequest.from_openai(body)


def test_a_history_takes_the_messages_of_the_official_client_and_its_marks_of_what_is_not_given():
    openai = pytest.importorskip("openai")
    called = openai.types.chat.ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "type": "function"}], "reasoning_content": "…"}
    )
    app, fake = served_by({"small": [reply("Sunny.")]})
    with app:
        app.chat([USER, called, USER], tools=openai.omit, temperature=openai.NOT_GIVEN, seed=1)
    assert sent(fake.requests[0]) == {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [{**CALL, "type": "function"}]}
            | {"reasoning_content": "…"},
            USER,
        ],
        "seed": 1,
    }


def test_a_reply_that_is_cut_says_whose_limit_cut_it():
    app, _ = served_by(
        {"small": [reply("It is", finish_reason="length")], "large": [reply("It", finish_reason="length")]}
    )
    with app:
        own, theirs = app.chat([USER]).warnings, app.chat([USER], max_tokens=3).warnings
    assert "cut at its token limit, which cascade set: max_tokens under models raises it" in own[0]
    assert not any("cascade set" in warning for warning in theirs)


def test_a_pair_of_surrogates_is_its_character():
    chat = ChatRequest([{"role": "user", "content": "\ud83d\ude00"}], {"metadata": {"\ud83d\ude00": "ü"}})
    assert chat.body() == {"messages": [{"role": "user", "content": "😀"}], "metadata": {"😀": "ü"}}


def test_a_request_is_a_value():
    messages = [dict(USER)]
    request = ChatRequest(messages, {"tools": TOOLS})
    messages[0]["content"] = "changed"
    assert request.messages[0]["content"] == USER["content"]
    assert copy.deepcopy(request) == request
    assert hash(request) == hash(ChatRequest([USER], {"tools": TOOLS}))


def test_arguments_that_are_no_json_stay_as_they_are():
    call = {"function": {"name": "f", "arguments": "{broken"}}
    assert json.loads(output_text({"tool_calls": [call]})) == [{"name": "f", "arguments": "{broken"}]


def test_a_logged_request_is_replayed_to_the_letter(tmp_path):
    body = reply("", tool_calls=[("get_weather", {"city": "Wien"})])
    with Orchestrator.from_config(
        {**CONFIG, "traces": {"store": f"sqlite:///{tmp_path}/traces.db"}},
        providers={"fake": FakeProvider(lambda _: body)},
    ) as first:
        answer = first.chat([USER], tools=TOOLS)
    replayed = {**CONFIG, "provider": {"kind": "replay", "options": {"path": f"sqlite:///{tmp_path}/traces.db"}}}
    with Orchestrator.from_config(replayed) as second:
        again = second.chat([USER], tools=TOOLS)
    assert again.message == answer.message


def test_a_reply_without_text_says_nothing_of_whether_its_model_gives_log_probs():
    """Servers send no log-probs with tool calls: the next request is asked for them all the same."""
    calls = reply("", tool_calls=[("get_weather", {"city": "Vienna"})])
    calls["choices"][0]["logprobs"] = None
    orchestrator, fake = served_by({"small": [calls]})
    with orchestrator:
        orchestrator.chat([USER], tools=TOOLS)
        orchestrator.chat([USER], tools=TOOLS)
    assert [request.top_logprobs for request in fake.requests] == [1, 1]


@pytest.mark.parametrize(("fields", "texts"), [({}, []), ({"top_logprobs": 0}, []), ({"top_logprobs": 1}, ["Sunny."])])
def test_one_alternative_comes_where_an_application_asks_for_it(fields, texts):
    """It was left out as the token itself, so a client that reads the first of them failed."""
    orchestrator, _ = served_by({"small": [reply("Sunny.", logprobs=[-0.1])]})
    with orchestrator:
        choice = orchestrator.chat([USER], logprobs=True, **fields).to_openai()["choices"][0]
    assert [each["token"] for each in choice["logprobs"]["content"][0]["top_logprobs"]] == texts


@pytest.mark.parametrize("wanted", [False, None])
def test_log_probs_that_the_application_does_not_want_are_asked_for_and_not_given_back(wanted):
    orchestrator, fake = served_by({"small": [reply("Sunny.", logprobs=[-0.1])]})
    with orchestrator:
        answer = orchestrator.chat([USER], logprobs=wanted)
    assert wire_body(fake.requests[0], "m")["logprobs"] is True
    assert answer.steps[0].signals["reply_mean_logprob"] == pytest.approx(-0.1)
    assert answer.to_openai()["choices"][0]["logprobs"] is None


def test_a_reply_without_log_probs_takes_nothing_from_the_next():
    config = {**CONFIG, "policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5}}
    silent = reply("Sunny.")
    silent["choices"][0]["logprobs"] = None
    script = {"small": [silent, silent, reply("Sunny.", logprobs=[-0.1])], "large": ["Rain."]}
    with Orchestrator.from_config(config, providers={"fake": FakeProvider(script)}) as orchestrator:
        answers = [orchestrator.chat([USER]) for _ in range(3)]
    assert [answer.text for answer in answers] == ["Rain.", "Rain.", "Sunny."]
    assert Receipt("t").of(answers[0]).silent == ("small",)


def test_what_the_served_model_said_beside_its_message_is_passed_on():
    body = reply("Sunny.")
    body |= {"model": "small-2026-01-01", "system_fingerprint": "fp_1", "service_tier": "default"}
    body["usage"] = {
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2, "accepted_prediction_tokens": 1},
    }
    orchestrator, _ = served_by({"small": [body]})
    with orchestrator:
        answer = orchestrator.chat([USER])
    completion = answer.to_openai()
    assert {name: completion[name] for name in ("model", "system_fingerprint", "service_tier")} == {
        "model": "small-2026-01-01",
        "system_fingerprint": "fp_1",
        "service_tier": "default",
    }
    assert completion["usage"]["prompt_tokens_details"] == {"cached_tokens": 4, "audio_tokens": 0}
    assert completion["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2, "accepted_prediction_tokens": 1}
    chunks = b"".join(
        [*ChatCompletions({"stream_options": {"include_usage": True}}, "t").ending(ServedMessage(answer), None)]
    ).split(b"\n\n")
    events = [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks if chunk.startswith(b"data: {")]
    assert {(chunk["model"], chunk["service_tier"]) for chunk in events} == {("small-2026-01-01", "default")}


@pytest.mark.parametrize("audio", [{"id": "a", "data": "AAAA", "transcript": "Sunny."}, {"id": "a", "data": "AAAA"}])
def test_a_message_that_speaks_is_served_as_it_is(audio):
    spoken = reply("Sunny.")
    spoken["choices"][0]["message"] = {"role": "assistant", "content": None, "audio": audio}
    orchestrator, fake = served_by({"small": [spoken]})
    with orchestrator:
        answer = orchestrator.chat([USER], modalities=["text", "audio"])
    assert [request.model for request in fake.requests] == ["small"]
    assert (answer.text, answer.warnings) == (audio.get("transcript", ""), ())
    assert answer.to_openai()["choices"][0]["message"]["audio"] == audio


def test_a_service_tier_without_a_price_is_not_bought():
    priced = {"model": "small", "price": {"input": 1, "output": 4}, "allow_fields": ["service_tier"]}
    config = {**CONFIG, "models": {"base": priced, "guide": "large"}, "policy": {"kind": "fixed", "depth": 1}}
    fake = FakeProvider({"small": ["Sunny."]})
    with Orchestrator.from_config(config, providers={"fake": fake}) as orchestrator:
        known, flex = orchestrator.chat([USER]), orchestrator.chat([USER], service_tier="flex")
    assert known.cost == flex.cost is not None
    assert sent(fake.requests[1]) == {"messages": [USER]}
    assert any("service_tier" in warning for warning in flex.warnings)
