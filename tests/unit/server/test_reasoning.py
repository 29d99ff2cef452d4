"""Tool loops in which models of several vendors take turns: each gets back what it thought, and nobody else does.

The vendors answer 400 where the real ones would, on a loopback port; the clients are the official ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import httpx
import pytest
from packages import Package

from cascade import Orchestrator
from cascade.chat import ChatRequest
from cascade.conformal.scope import kind_of
from cascade.logs.chats import options_in
from cascade.plans.verdict import judged_fields
from cascade.providers.fields import Fields, ModelFields
from cascade.providers.histories import accepted, mark_of, packed, taken_back, unpacked, with_mark
from cascade.server.dialects.messages import Messages
from cascade.types import Candidate
from unit.builders import request as call

from .served import listening
from .vendors import Body, Vendors, anthropic_answer, chat_answer, gemini_answer, openai_answer

anthropic, openai = Package("anthropic"), Package("openai")
pytestmark = pytest.mark.litellm

PRICE = {"input": 1, "output": 2}
MODELS = {
    "claude": {"model": "anthropic/claude-opus-4-7", "price": PRICE},
    "older": {"model": "anthropic/claude-sonnet-4-5", "price": PRICE},  # thinks when a turn begins, or not at all
    "gpt": {"model": "openai/responses/gpt-5-mini", "price": PRICE},
    "deepseek": {"model": "deepseek/deepseek-reasoner", "price": PRICE},
    "gemini": {"model": "gemini/gemini-3-pro-preview", "price": PRICE},
    "flash": {"model": "gemini-3-flash-preview", "price": PRICE, "provider": "openai_http"},
}
VENDORS = {"claude": "anthropic", "older": "anthropic", "gpt": "openai", "deepseek": "deepseek"}
VENDORS |= {"gemini": "gemini", "flash": "google"}
SECRETS = {
    "anthropic": ["sig-of-claude:Claude thinks", "secret-of-claude"],
    "openai": ["secret-of-openai"],
    "deepseek": ["DeepSeek thinks"],
    "gemini": ["sig-of-gemini"],
    "google": ["sig-of-gemini"],
}
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}}
COUNTS = {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}


def claude(_: Body) -> Body:
    thinking = {"type": "thinking", "thinking": "Claude thinks", "signature": "sig-of-claude:Claude thinks"}
    call = {"type": "tool_use", "id": "toolu_01", "name": "f", "input": {"days": 3}}
    blocks = [thinking, {"type": "redacted_thinking", "data": "secret-of-claude"}, call]
    return anthropic_answer(blocks, {"input_tokens": 50, "output_tokens": 9}, "tool_use")


def deepseek(_: Body) -> Body:
    call = {"id": "call_00_x", "type": "function", "function": {"name": "f", "arguments": '{"days": 3}'}}
    message = {"content": "", "reasoning_content": "DeepSeek thinks", "tool_calls": [call]}
    return chat_answer(message, COUNTS, "deepseek-reasoner")


def gpt(_: Body) -> Body:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret-of-openai"}
    call = {"id": "fc_1", "call_id": "call_1", "name": "f", "arguments": '{"days": 3}', "status": "completed"}
    usage = {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59}
    return openai_answer([reasoning, {"type": "function_call", **call}], usage, "gpt-5-mini")


def google(_: Body) -> Body:
    call = {"id": "call_g", "type": "function", "function": {"name": "f", "arguments": '{"days": 3}'}}
    seal = {"extra_content": {"google": {"thought_signature": "sig-of-gemini"}}}
    return chat_answer({"content": None, "tool_calls": [call | seal]}, COUNTS, "gemini-3-flash-preview")


def gemini(_: Body) -> Body:
    part = {"functionCall": {"name": "f", "args": {"days": 3}}, "thoughtSignature": "sig-of-gemini"}
    return gemini_answer("", {"promptTokenCount": 50, "candidatesTokenCount": 9, "totalTokenCount": 59}, part)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Vendors, Any, Any]]:
    answers = {"anthropic": claude, "deepseek": deepseek, "openai": gpt, "gemini": gemini, "google": google}
    config = {"models": MODELS, "provider": "litellm", "strategy": {"kind": "ladder", "models": ["claude", "deepseek"]}}
    policy = {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5}
    with pytest.MonkeyPatch.context() as patched, Vendors(answers) as vendors:
        for name, value in vendors.environment.items():
            patched.setenv(name, value)
        flash = {**MODELS["flash"], "api_base": vendors.environment["OPENAI_API_BASE"].replace("openai", "google")}
        config["models"] = {**MODELS, "flash": flash}
        orchestrator = Orchestrator.from_config({**config, "policy": policy, "traces": "off"})
        with (
            orchestrator,
            listening(orchestrator) as url,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as first,
            anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as second,
        ):
            yield vendors, first, second


def chat(client: Any, model: str, turns: list[Any], *, stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    request = {"model": model, "messages": turns, "tools": [tool], "reasoning_effort": "low", "max_tokens": 4_096}
    if stream:
        with client.chat.completions.stream(**request) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.create(**request)
    message = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "2"}
    turns += [message.model_dump(exclude_unset=True), result]


def responses(client: Any, model: str, turns: list[Any], *, stream: bool) -> None:
    tool = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
    request = {"model": model, "input": turns, "tools": [tool], "reasoning": {"effort": "low"}}
    request |= {"include": ["reasoning.encrypted_content"], "store": False}
    if stream:
        with client.responses.stream(**request) as events:
            answer = events.get_final_response()
    else:
        answer = client.responses.create(**request)
    call = next(entry for entry in answer.output if entry.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    turns += [*(entry.model_dump(exclude_unset=True, exclude={"parsed_arguments"}) for entry in answer.output), result]


def messages(client: Any, model: str, turns: list[Any], *, stream: bool) -> None:
    request = {"model": model, "messages": turns, "max_tokens": 4_096, "tools": [{"name": "f", "input_schema": SCHEMA}]}
    request["thinking"] = {"type": "adaptive"} if model == "claude" else {"type": "enabled", "budget_tokens": 1_024}
    if stream:
        with client.messages.stream(**request) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**request)
    call = next(block for block in answer.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "2"}
    blocks = [block.model_dump(exclude_unset=True) for block in answer.content]
    turns += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]


ASK = {"chat": chat, "responses": responses, "messages": messages}
PAIRS = [*permutations(("claude", "gpt", "deepseek"), 2), ("older", "gpt"), ("deepseek", "older"), ("claude", "older")]
PAIRS += [("gemini", "gpt"), ("claude", "gemini"), ("flash", "gpt"), ("deepseek", "flash")]


@pytest.mark.parametrize(
    ("base", "guide", "stream"),
    [*((*pair, False) for pair in PAIRS), *((*pair, True) for pair in {pair[0]: pair for pair in PAIRS}.values())],
)
@pytest.mark.parametrize("dialect", [*ASK])
def test_each_gets_back_what_it_thought_and_nobody_else_does(served, dialect, base, guide, *, stream):
    vendors, first, second = served
    vendors.got.clear()
    turns: list[Any] = [{"role": "user", "content": "How long?"}]
    order = (base, base, guide, base)
    for model in order:
        ASK[dialect](second if dialect == "messages" else first, model, turns, stream=stream)
    assert vendors.refused == []
    assert [got.vendor for got in vendors.got] == [VENDORS[model] for model in order]
    for number, got in enumerate(vendors.got):
        sent = got.raw.decode()
        own = {secret: sent.count(secret) for secret in SECRETS[got.vendor]}
        foreign = {secret for secrets in SECRETS.values() for secret in secrets} - own.keys()
        assert [secret for secret in foreign if secret in sent] == []
        assert re.search(r"by-[0-9a-f]{6}-|written_by", sent) is None
        earlier = sum(VENDORS[model] == got.vendor for model in order[:number])
        stopped = order[number] == "older" and number > 0 and VENDORS[order[number - 1]] != "anthropic"
        no_place = got.vendor == "google" and dialect != "chat"  # its clients have no place for the signature of a call
        assert own == dict.fromkeys(own, 0 if stopped or no_place else earlier)
        assert got.vendor != "anthropic" or ("thinking" in got.body) == (not stopped)


def test_a_base_that_refuses_a_history_is_not_asked_again_in_the_conversation(served):
    vendors, _, client = served
    blocks = [{"type": "thinking", "thinking": "Mine", "signature": "made up"}, {"type": "text", "text": "Yes."}]
    begun = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "Yes."}]
    turns = [*begun, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": blocks}]
    calls: list[tuple[int, int, str]] = []
    for text in ("Why?", "Really?"):
        vendors.got.clear()
        turns.append({"role": "user", "content": text})
        raw = client.messages.with_raw_response.create(model="cascade", max_tokens=4_096, messages=turns)
        turns.append({"role": "assistant", "content": "Because."})
        served_by = raw.headers["x-cascade-served-by"]
        calls.append((len(vendors.bodies("anthropic")), len(vendors.bodies("deepseek")), served_by))
    assert calls == [(1, 1, "deepseek/deepseek-reasoner"), (0, 1, "deepseek/deepseek-reasoner")]
    assert vendors.refused == ["anthropic: Invalid `signature` in `thinking` block"]
    vendors.refused.clear()
    metrics = httpx.get(f"{client.base_url}/metrics").text
    assert 'cascade_skipped_calls_total{model="anthropic/claude-opus-4-7"} 1' in metrics
    another = {"role": "user", "content": "Another?"}
    for fresh in ([another], [*begun, another]):  # another client's conversation may begin with the same words
        vendors.got.clear()
        client.messages.create(model="cascade", max_tokens=4_096, messages=fresh)
        assert len(vendors.bodies("anthropic")) == 1


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (packed({"reasoning": "Hm", "content": "x"}, "m"), {"reasoning": "Hm", "written_by": mark_of("m")}),
        ((packed({"reasoning": "Hm"}, "m") or "")[:-3], {}),
        (f"{mark_of('m')}W10=", {}),
        (f"{mark_of('m')}{'x' * 9}", {}),
        ("EqQBCkYIBxgC", None),
        (None, None),
        (7, None),
    ],
)
def test_what_a_client_hands_back_is_read_whole_or_not_at_all(text, fields):
    assert unpacked(text) == fields


def test_only_its_writer_gets_thinking_of_a_model_of_an_unknown_vendor():
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [call]}
    handed = with_mark(given, "ours")
    assert accepted([handed], "ours") == [given]
    without = {name: value for name, value in given.items() if name != "reasoning_content"}
    assert accepted([handed], "theirs") == accepted([handed], "openai/gpt-5") == [without]
    assert accepted([handed], "deepseek-chat") == [{**without, "reasoning_content": ""}]
    native = {"role": "assistant", "content": "Yes.", "thinking_blocks": [{"type": "thinking", "signature": "s"}]}
    came = taken_back({"role": "assistant", "content": "Yes."}, native["thinking_blocks"][0], "thinking_blocks")
    assert accepted([came], "bedrock/claude-x") == [native]
    assert accepted([came], "ours") == accepted([came], "gpt-5") == [{"role": "assistant", "content": "Yes."}]
    alone = with_mark({"role": "assistant", "content": None, "reasoning_content": "Hm"}, "ours")
    assert accepted([alone], "theirs") == []


def test_an_image_in_a_tool_s_result_follows_the_results_where_they_are_text_alone():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    text = {"type": "text", "text": "It"}
    first, second = ({"role": "tool", "tool_call_id": name, "content": [image]} for name in ("a", "b"))
    second = {**second, "content": [text, image]}
    asks = {"role": "user", "content": "What is it?"}
    assert accepted([first, second, asks], "claude-opus-5") == [first, second, asks]
    plain, again, images, last = accepted([first, second, asks], "gpt-5")
    assert (type(plain["content"]), again, last) == (str, {**second, "content": [text]}, asks)
    assert [part["type"] for part in images["content"]] == ["text", "image_url"] * 2
    assert (images["role"], [*accepted([first], "gpt-5")][-1]["content"][1]) == ("user", image)


def test_no_judge_reads_thinking():
    thinking = {"reasoning_content": "Hm", "thinking_blocks": [{"signature": "s"}], "provider_specific_fields": {}}
    answer = {"role": "assistant", "content": "Yes.", **thinking}
    asks, why = ({"role": "user", "content": text} for text in ("Is it?", "Why?"))
    request = ChatRequest([asks, with_mark(answer, "m"), why])
    shown = judged_fields(request, Candidate("Yes.", "base", "m", message=answer))
    assert shown["reply"] == {"content": "Yes."}
    assert shown["conversation"][1] == {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("body", "effort"),
    [
        ({"thinking": {"type": "adaptive"}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2_048}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "low"),
        ({"output_config": {"effort": "low"}}, None),
        ({"thinking": {"type": "disabled"}}, None),
    ],
)
def test_a_model_is_sent_thinking_or_an_effort(body, effort):
    parsed = ChatRequest.from_openai(Messages({"messages": [{"role": "user", "content": "Hi"}], **body}, "t").request())
    assert kind_of(parsed) == kind_of(ChatRequest(parsed.messages, options_in(body)))  # a log of the same body
    models = Fields({"claude": ModelFields("claude-opus-5", lambda _: frozenset(body)), "gpt": ModelFields("gpt-5")})
    sent = [models.sent(call(model=model, chat=parsed)).chat for model in ("claude", "gpt")]
    assert [chat and chat.options for chat in sent] == [body, {"reasoning_effort": effort} if effort else {}]
    unsent = tuple(body.keys() - ({"thinking"} if effort else set()))
    assert (models.unsent(parsed), body.keys() - kind_of(parsed).keys()) == (unsent, set())
