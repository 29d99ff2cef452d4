"""Conversations with prompt caches: marks and keys reach the model unchanged, and each turn costs what its vendor bills.

The vendors are servers on a loopback port, the clients the official ones; every amount here is worked out by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from packages import Package

from cascade import Orchestrator
from cascade.budget.charges import bound_of, paid_call
from cascade.chat import ChatRequest
from cascade.conformal.scope import kind_of
from cascade.money import Price
from cascade.providers.fields import Fields, ModelFields
from cascade.types import Completion, Usage
from unit.builders import request as call

from .served import listening
from .vendors import Body, Vendors, anthropic_answer, chat_answer, gemini_answer

anthropic, openai = Package("anthropic"), Package("openai")
pytestmark = pytest.mark.litellm

HOUR, SHORT = {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}}
CLAUDE_PRICE = {"input": 3, "output": 15, "cached_input": 0.3, "cache_write": 3.75, "cache_write_1h": 6}
MODELS = {
    "claude": {"model": "anthropic/claude-sonnet-4-5", "price": CLAUDE_PRICE},
    "gpt": {"model": "openai/gpt-5", "price": {"input": 1.25, "output": 10, "cached_input": 0.125}},
    "deepseek": {"model": "deepseek/deepseek-chat", "price": {"input": 0.28, "output": 0.42, "cached_input": 0.028}},
    "gemini": {"model": "gemini/gemini-2.5-flash", "price": {"input": 0.3, "output": 2.5, "cached_input": 0.03}},
}
REPLIES = ["One.", "Two.", "Three."]


def claude_usage(new: int, read: int, short: int, hour: int) -> Body:
    split = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": hour}
    counts = {"input_tokens": new, "cache_read_input_tokens": read, "cache_creation_input_tokens": short + hour}
    return {**counts, "output_tokens": 20, "cache_creation": split, "service_tier": "standard"}


def gpt_usage(read: int, cached: int) -> Body:
    details = {"prompt_tokens_details": {"cached_tokens": cached}, "completion_tokens_details": {"reasoning_tokens": 8}}
    return {"prompt_tokens": read, "completion_tokens": 20, "total_tokens": read + 20, **details}


def deepseek_usage(hit: int, miss: int) -> Body:
    counts = {"prompt_tokens": hit + miss, "completion_tokens": 20, "total_tokens": hit + miss + 20}
    return {**counts, "prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": miss}


def gemini_usage(read: int, cached: int) -> Body:
    counts = {"promptTokenCount": read, "candidatesTokenCount": 12, "thoughtsTokenCount": 8}
    return {**counts, "totalTokenCount": read + 20, "cachedContentTokenCount": cached}


TURNS: dict[str, list[tuple[Body, int, tuple[int, int, int | None, int | None]]]] = {
    "claude": [
        # 10 × 3,000 + 100 × 3,750 + 2,000 × 6,000 + 20 × 15,000
        (claude_usage(10, 0, 100, 2_000), 12_705_000, (2_110, 0, 100, 2_000)),
        # 10 × 3,000 + 2,100 × 300 + 50 × 3,750 + 20 × 15,000
        (claude_usage(10, 2_100, 50, 0), 1_147_500, (2_160, 2_100, 50, 0)),
        # 10 × 3,000 + 2,150 × 300 + 40 × 6,000 + 20 × 15,000
        (claude_usage(10, 2_150, 0, 40), 1_215_000, (2_200, 2_150, 0, 40)),
    ],
    "gpt": [  # 2,000 × 1,250 + 20 × 10,000; then 1,920 and 2,048 × 125 instead of 1,250
        (gpt_usage(2_000, 0), 2_700_000, (2_000, 0, None, None)),
        (gpt_usage(2_100, 1_920), 665_000, (2_100, 1_920, None, None)),
        (gpt_usage(2_200, 2_048), 646_000, (2_200, 2_048, None, None)),
    ],
    "deepseek": [  # 2,000 × 280 + 20 × 420; 1,984 × 28 + 116 × 280 + 20 × 420
        (deepseek_usage(0, 2_000), 568_400, (2_000, 0, None, None)),
        (deepseek_usage(1_984, 116), 96_432, (2_100, 1_984, None, None)),
        (deepseek_usage(2_048, 152), 108_304, (2_200, 2_048, None, None)),
    ],
    "gemini": [  # 2,000 × 300 + 20 × 2,500; 1,900 × 30 + 200 × 300 + 20 × 2,500
        (gemini_usage(2_000, 0), 650_000, (2_000, 0, None, None)),
        (gemini_usage(2_100, 1_900), 167_000, (2_100, 1_900, None, None)),
        (gemini_usage(2_200, 2_000), 170_000, (2_200, 2_000, None, None)),
    ],
}


def answers() -> dict[str, Any]:
    """Return the answers of each vendor, by how many turns its conversation has."""

    def turn(body: Body) -> int:
        roles = [message["role"] for message in body.get("messages") or body.get("contents") or ()]
        return sum(role in {"assistant", "model"} for role in roles)

    def text(body: Body, name: str) -> tuple[str, Body]:
        return REPLIES[turn(body)], TURNS[name][turn(body)][0]

    def claude(body: Body) -> Body:
        answer, usage = text(body, "claude")
        return anthropic_answer([{"type": "text", "text": answer}], usage)

    def chat(name: str, model: str) -> Any:
        return lambda body: chat_answer({"content": text(body, name)[0]}, text(body, name)[1], model)

    by_vendor = {"anthropic": claude, "chat": chat("gpt", "gpt-5"), "deepseek": chat("deepseek", "deepseek-chat")}
    return {**by_vendor, "gemini": lambda body: gemini_answer(*text(body, "gemini"))}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Vendors, str]]:
    with pytest.MonkeyPatch.context() as patched, Vendors(answers()) as vendors:
        for name, value in vendors.environment.items():
            patched.setenv(name, value)
        config = {"models": MODELS, "provider": "litellm", "strategy": {"kind": "ladder", "models": [*MODELS]}}
        policy = {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5}
        orchestrator = Orchestrator.from_config({**config, "policy": policy, "traces": "off"})
        with orchestrator, listening(orchestrator) as url:
            yield vendors, url


class Turn(NamedTuple):
    """What a client got: the text, the cost and the fields not sent, and its usage by the names of its API."""

    text: str
    cost_nano_usd: int
    unsent: list[str]
    usage: Body


class Conversation:
    """Three turns in one dialect, whose system prompt and tool are marked for a cache."""

    def __init__(self, dialect: str, url: str) -> None:
        self.dialect = dialect
        if dialect == "messages":
            self.client: Any = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        else:
            self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self.turns: list[Body] = []

    def ask(self, model: str, text: str, *, stream: bool) -> Turn:
        self.turns.append({"role": "user", "content": text})
        place, more = getattr(self, f"_{self.dialect}")()
        raw = place.with_raw_response.create(model=model, stream=stream, **more)
        final = [*raw.parse()] if stream else [raw.parse()]
        answer, usage = _read(self.dialect, final) if stream else _whole(self.dialect, final[0])
        self.turns.append({"role": "assistant", "content": answer})
        dollars = raw.headers.get("x-cascade-cost-usd") or _streamed_cost(final)
        cost = round(float(dollars) * 10**9)
        return Turn(answer, cost, (raw.headers.get("x-cascade-fields-not-sent") or "").split(", "), usage)

    def _chat(self) -> tuple[Any, Body]:
        tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}, "cache_control": HOUR}
        system = {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": HOUR}]}
        more: Body = {"stream_options": {"include_usage": True}, "extra_body": {"cache_control": SHORT}}
        more |= {"messages": [system, *self.turns], "tools": [tool], "prompt_cache_key": "k7"}
        return self.client.chat.completions, more

    def _responses(self) -> tuple[Any, Body]:
        tool = {"type": "function", "name": "f", "parameters": SCHEMA, "cache_control": HOUR}
        system = {"role": "system", "content": [{"type": "input_text", "text": "Be brief.", "cache_control": HOUR}]}
        more: Body = {"input": [system, *self.turns], "tools": [tool], "prompt_cache_key": "k7"}
        return self.client.responses, {**more, "extra_body": {"cache_control": SHORT}}

    def _messages(self) -> tuple[Any, Body]:
        tool = {"name": "f", "input_schema": SCHEMA, "cache_control": HOUR}
        system = [{"type": "text", "text": "Be brief.", "cache_control": HOUR}]
        more: Body = {"system": system, "messages": self.turns, "tools": [tool], "max_tokens": 4_096}
        return self.client.messages, {**more, "extra_body": {"cache_control": SHORT, "prompt_cache_key": "k7"}}


def _whole(dialect: str, answer: Any) -> tuple[str, Body]:
    text = {
        "chat": lambda: answer.choices[0].message.content,
        "responses": lambda: answer.output_text,
        "messages": lambda: answer.content[0].text,
    }
    return text[dialect](), answer.usage.model_dump()


def _read(dialect: str, events: list[Any]) -> tuple[str, Body]:
    if dialect == "chat":
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        return text, events[-1].usage.model_dump()
    if dialect == "responses":
        return _whole(dialect, events[-1].response)
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    return text, next(event.usage.model_dump() for event in events if event.type == "message_delta")


def _streamed_cost(events: list[Any]) -> str:
    places = [part for event in events for part in (event, getattr(event, "response", None))]
    return str(next(extra["cost_usd"] for part in places if (extra := getattr(part, "cascade", None))))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("model", [*MODELS])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_three_turns_with_a_cache(served, dialect, model, *, stream):
    vendors, url = served
    vendors.got.clear()
    talk = Conversation(dialect, url)
    with talk.client:
        turns = [talk.ask(model, text, stream=stream) for text in ("First?", "Second?", "Third?")]
    assert [turn.text for turn in turns] == REPLIES
    assert [turn.cost_nano_usd for turn in turns] == [cost for _, cost, _ in TURNS[model]]
    assert {*turns[0].unsent} == {"cache_control", "prompt_cache_key"}  # none of the four models knows both
    assert [usage_of(dialect, turn.usage) for turn in turns] == [(*tokens, 20) for _, _, tokens in TURNS[model]]
    sent = [json.dumps(got.body.get("messages") or got.body["contents"])[:-1] for got in vendors.got]
    assert sent[1].startswith(sent[0])
    assert sent[2].startswith(sent[1])  # else the vendor finds nothing in its cache
    heads = [
        {name: value for name, value in got.body.items() if name not in {"messages", "contents"}} for got in vendors.got
    ]
    assert json.dumps(heads[0]) == json.dumps(heads[1]) == json.dumps(heads[2])
    for got in vendors.got:
        marked = got.raw.decode().replace(" ", "").count('"cache_control":')
        assert marked == (3 if model == "claude" else 0)
        assert got.body.get("prompt_cache_key") == ("k7" if model in {"gpt", "deepseek"} else None)
    if model == "claude":
        assert json.dumps(vendors.got[2].body["messages"]) == json.dumps([
            {"role": "user", "content": [{"type": "text", "text": "First?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "One."}]},
            {"role": "user", "content": [{"type": "text", "text": "Second?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Two."}]},
            {"role": "user", "content": [{"type": "text", "text": "Third?"}]},
        ])  # fmt: skip
        assert heads[0]["system"] == [{"type": "text", "text": "Be brief.", "cache_control": HOUR}]
        assert (heads[0]["tools"][0]["cache_control"], heads[0]["cache_control"]) == (HOUR, SHORT)


def usage_of(dialect: str, usage: Body) -> tuple[int | None, ...]:
    """Return a client's tokens: all that were read, from a cache, for 5 minutes and an hour new to it; written."""
    read, written = ("prompt", "completion") if dialect == "chat" else ("input", "output")
    more = usage.get(f"{read}_tokens_details") or {}
    split = usage.get("cache_creation") or more.get("cache_creation_token_details") or {}
    cached, new = (
        usage.get("cache_read_input_tokens", more.get("cached_tokens")),
        usage.get("cache_creation_input_tokens", 0),
    )
    whole = usage[f"{read}_tokens"] + (new + cached if dialect == "messages" else 0)
    times = [split.get(f"ephemeral_{time}_input_tokens") for time in ("5m", "1h")]
    return (whole, cached, *times, usage[f"{written}_tokens"])


def chat(**options: Any) -> ChatRequest:
    part = {"type": "text", "text": "Hi", "cache_control": HOUR, "prompt_cache_breakpoint": {}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "cache_control": SHORT}
    turns = [{"role": "user", "content": [part]}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return ChatRequest(turns, options)


def test_marks_go_to_the_vendor_that_reads_them_and_where_the_operator_opens_them():
    models = {"claude": ModelFields("claude-x"), "gpt": ModelFields("openai/gpt-6")}
    models |= {"ours": ModelFields("ours"), "open": ModelFields("open", opened=frozenset({"cache_control"}))}
    fields, request = (
        Fields(models),
        chat(tools=[{"type": "function", "function": {"name": "f"}, "cache_control": SHORT}]),
    )
    assert fields.unsent(request) == ("cache_control", "prompt_cache_breakpoint")
    assert fields.unsent(request, ["claude", "open"]) == ("prompt_cache_breakpoint",)
    sent = {name: fields.sent(call(model=name, chat=request)).chat for name in models}
    counts = {
        name: (sent_chat.canonical.count('"cache_control"'), sent_chat.canonical.count("breakpoint"))
        for name, sent_chat in sent.items()
        if sent_chat
    }
    assert counts == {"claude": (3, 0), "gpt": (0, 1), "ours": (0, 0), "open": (3, 0)}
    assert sent["ours"] is not None
    assert sent["ours"].messages[0]["content"] == "Hi"
    assert request.canonical.count('"cache_control"') == 3


def test_a_cache_changes_no_kind_of_request_and_thinking_does():
    plain = ChatRequest([{"role": "user", "content": "Hi"}])
    marked = ChatRequest(
        [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": HOUR}]}],
        {"cache_control": SHORT, "prompt_cache_key": "k", "prompt_cache_retention": "24h", "prompt_cache_options": {}},
    )
    assert kind_of(marked) == kind_of(plain)
    for name, value in (("reasoning_effort", "low"), ("output_config", {"effort": "low"})):
        assert kind_of(ChatRequest(plain.messages, {name: value})) != kind_of(plain)


@pytest.mark.parametrize(
    ("ttl", "hour", "price", "cost", "bound"),
    [
        ("5m", None, {}, 475_000, 475_000),  # 100 × 1,000 + 200 × 1,250 + 25 × 5,000
        ("1h", 150, {}, 587_500, 587_500),  # 100 × 1,000 + 50 × 1,250 + 150 × 2,000 + 25 × 5,000
        ("1h", None, {}, None, 625_000),  # all 200 may be kept for an hour
        ("1h", 150, {"cache_write_1h": None}, None, None),
        ("1h", None, {"cache_write_1h": None}, None, None),
        ("5m", 0, {"cache_write_1h": None}, 475_000, 475_000),
        ("1h", 200, {"cache_write": None}, 625_000, 625_000),
    ],
)
def test_a_write_costs_by_how_long_it_is_kept(ttl, hour, price, cost, bound):
    rates = {"input": 1, "output": 5, "cached_input": 0.1, "cache_write": 1.25, "cache_write_1h": 2, **price}
    listed = Price.per_million(**rates)
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "ttl": ttl}}
    request = call(model="m", chat=ChatRequest([{"role": "user", "content": [part]}]), max_tokens=100)
    usage = Usage(300, 25, written_input_tokens=200, hour_input_tokens=hour)
    paid = paid_call(request, Completion("Hi", "stop", usage), listed)
    assert (paid.cost_nano_usd, paid.cost_bound_nano_usd) == (cost, bound)
    assert (paid.unpriced is None) == (bound is not None)
    dearest = 2_000 if ttl == "1h" and listed.cache_write_1h else 1_250 if listed.cache_write else 1_000
    assert bound_of(request, listed, 1_000).nano_usd == 1_000 * dearest + 100 * 5_000


def advised(model: str | None) -> Body:
    """Return a usage of 1,000 tokens read and 50 written, and of an advisor that read 2,000, 1,500 cached, wrote 100."""
    own = {"type": "message", "model": "claude-sonnet-4-5", "input_tokens": 1_000, "output_tokens": 50}
    run = {"type": "advisor_message", "model": model, "input_tokens": 500, "output_tokens": 100}
    counts = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    runs = [own | counts, run | counts | {"cache_read_input_tokens": 1_500}]
    return {"input_tokens": 1_000, "output_tokens": 50, **counts, "iterations": runs}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        # 1,000 × 3,000 + 50 × 15,000, and Opus 4.5 of the table: 500 × 5,000 + 1,500 × 500 + 100 × 25,000
        (advised("claude-opus-4-5"), "0.009500000"),
        (advised("claude-sonnet-4-5"), "0.007200000"),  # and 500 × 3,000 + 1,500 × 300 + 100 × 15,000 at its own price
        (advised("claude-unknown-9"), None),
        ({**advised(None), "iterations": [{"type": "message", "input_tokens": 1_000}]}, None),
        ({**advised(None), "iterations": None, "service_tier": "priority"}, None),  # no price is known for this tier
        ({**advised(None), "iterations": None, "service_tier": "standard"}, "0.003750000"),
    ],
)
def test_each_run_costs_what_its_model_costs(served, usage, cost, *, stream):
    vendors, url = served
    before = vendors.answers
    vendors.answers = {"anthropic": lambda _: anthropic_answer([{"type": "text", "text": "Yes."}], usage)}
    body = {"model": "claude", "max_tokens": 99, "messages": [{"role": "user", "content": "Is it?"}], "stream": stream}
    answer = httpx.post(f"{url}/v1/messages", json=body, headers={"x-cascade-explain": "1"}, timeout=60)
    vendors.answers = before
    lines = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    final = next(event for event in lines if event["type"] == "message_delta") if stream else answer.json()
    assert final["cascade"]["cost_usd"] == cost
    runs = final["usage"].get("iterations") or []
    names = ("type", "model", "input_tokens", "cache_read_input_tokens", "output_tokens")
    listed = usage["iterations"] if cost and usage["iterations"] else []
    assert [[run[name] for name in names] for run in runs][: len(listed)] == [
        [run[name] for name in names] for run in listed
    ]
    assert final["usage"].get("service_tier") == usage.get("service_tier")
