"""What is priced apart from tokens: service tiers, web searches, audio."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from cascade.budget import tokens
from cascade.budget.charges import Budget, most_nano_usd, paid_call
from cascade.chat import ChatRequest
from cascade.errors import BudgetExceededError, UsageError
from cascade.money import Price, PriceTable, price_from_entry
from cascade.providers.litellm import refuse_fetching
from cascade.types import Message, Request, Usage
from unit.builders import completion, request

sys.path.append(str(Path(__file__).parents[3] / "tools"))

from make_prices import compact_map

ENTRY: dict[str, Any] = {
    "mode": "chat",
    "litellm_provider": "openai",
    "input_cost_per_token": 1e-6,
    "output_cost_per_token": 4e-6,
    "input_cost_per_token_priority": 2e-6,
    "output_cost_per_token_priority": 8e-6,
    "input_cost_per_token_flex": 5e-7,
    "output_cost_per_token_flex": 2e-6,
    "input_cost_per_audio_token": 1e-5,
    "output_cost_per_audio_token": 2e-5,
}
SEARCH = {f"search_context_size_{size}": 0.025 for size in ("low", "medium", "high")}
PLAIN = 100 * 1_000 + 10 * 4_000
"""The nano-dollars of 100 tokens in and 10 out."""


def priced(name: str = "m", **fields: Any) -> Price:
    return price_from_entry(compact_map({name: {**ENTRY, **fields}})[name], "test")


def greeting(**options: Any) -> Request:
    return request(chat=ChatRequest([{"role": "user", "content": "Hi"}], options))


@pytest.mark.parametrize(
    ("wanted", "served", "cost"),
    [
        (None, None, PLAIN),
        ("auto", None, PLAIN),
        ("auto", "default", PLAIN),
        ("flex", None, PLAIN // 2),
        ("flex", "default", PLAIN),
        (None, "priority", 2 * PLAIN),
        ("priority", "priority", 2 * PLAIN),
    ],
)
def test_the_tier_of_the_reply_decides_and_else_that_of_the_request(wanted, served, cost):
    sent = greeting() if wanted is None else greeting(service_tier=wanted)
    call = paid_call(sent, completion(tier=served), priced())
    assert (call.cost_nano_usd, call.cost_bound_nano_usd, call.unpriced) == (cost, cost, None)


@pytest.mark.parametrize(
    ("options", "unpriced"),
    [
        ({"service_tier": "scale"}, "service_tier 'scale' (price.tiers.scale)"),
        ({"web_search_options": {}}, "web_search_options (price.search)"),
    ],
)
def test_what_has_no_known_price_is_unknown_named_and_refused_under_a_cap(options, unpriced):
    call = paid_call(greeting(**options), completion(), priced())
    assert (call.cost_nano_usd, call.cost_bound_nano_usd, call.unpriced) == (None, None, unpriced)
    with pytest.raises(BudgetExceededError, match="no known price for"):
        Budget(10**12).hold(greeting(**options), priced())


def test_a_cap_holds_the_dearer_of_the_plain_tier_and_the_one_asked_for():
    tiers = [most_nano_usd(greeting(service_tier=name), priced()).nano_usd for name in ("auto", "flex", "priority")]
    assert tiers[0] == tiers[1]  # a provider may serve flex at its plain tier
    assert tiers[2] > 1.9 * tiers[0]
    # a tier that lacks one of the model's rates is not priced
    for fields in ({"cache_read_input_token_cost": 1e-7}, {"input_cost_per_token_above_200k_tokens": 2e-6}):
        assert dict(priced(**fields).tiers) == {}
    assert {name for name, _ in PriceTable.bundled().price("openai/gpt-5-mini").tiers} == {"priority", "flex"}


IN, OUT = {"prompt_tokens_details": {"audio_tokens": 10}}, {"completion_tokens_details": {"audio_tokens": 5}}
DEAF, LONG = {"input_cost_per_audio_token": None}, {"input_cost_per_token_above_200k_tokens": 2e-6}
MUTE = {"output_cost_per_audio_token": None}
WROTE, CACHED = Usage(100, 10, written_input_tokens=50), Usage(100, 10, cached_input_tokens=5)
SEARCHING = {"search_context_cost_per_query": SEARCH}
SIZED = {"web_search_options": {"search_context_size": "low"}}


@pytest.mark.parametrize(
    ("name", "fields", "options", "details", "usage", "cost", "unpriced"),
    [
        ("m", {}, {}, IN, Usage(100, 10), PLAIN + 10 * 9_000, None),
        ("m", {}, {}, IN | OUT, Usage(100, 10), PLAIN + 10 * 9_000 + 5 * 16_000, None),
        ("m", DEAF, {}, IN, Usage(100, 10), None, "audio (price.audio_input)"),
        ("m", DEAF | MUTE, {}, IN | OUT, Usage(100, 10), None, "audio (price.audio_input, price.audio_output)"),
        ("m", {}, {}, IN, CACHED, None, "audio in a prompt that was partly read from a cache"),
        # the rates of short prompts are not those of long ones
        ("m", LONG, {}, IN, Usage(300_000, 1), None, "audio (price.audio_input)"),
        # to write to a prompt cache is not priced as reading
        ("m", {}, {}, {}, WROTE, None, "writing to a prompt cache (price.cache_write)"),
        ("m", {"cache_creation_input_token_cost": 1.25e-6}, {}, {}, WROTE, PLAIN + 50 * 250, None),
        # a model that always searches is charged for one search
        ("gpt-4o-search-preview", SEARCHING, {}, {}, Usage(100, 10), PLAIN + 25_000_000, None),
        ("gpt-4o-search-preview", SEARCHING, SIZED, {}, Usage(100, 10), PLAIN + 25_000_000, None),
        ("gpt-5", SEARCHING, {}, {}, Usage(100, 10), PLAIN, None),
    ],
)
def test_what_is_priced_apart_costs_its_price_or_is_named(name, fields, options, details, usage, cost, unpriced):
    call = paid_call(greeting(**options), completion(usage=usage, details=details), priced(name, **fields))
    assert (call.cost_nano_usd, call.unpriced) == (cost, unpriced)


def test_a_reply_that_speaks_is_held_at_the_price_of_audio():
    speaks = greeting(modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"})
    assert most_nano_usd(speaks, priced()).nano_usd > 4 * most_nano_usd(greeting(), priced()).nano_usd
    assert most_nano_usd(speaks, priced(**MUTE)).unpriced == "audio (price.audio_output)"  # else that of text
    assert priced("gpt-5", **SEARCHING).search == ()
    spoke = ChatRequest([{"role": "user", "content": "Hi"}, {"role": "assistant", "audio": {"id": "audio-1"}}])
    assert most_nano_usd(request(chat=spoke), priced(**DEAF)).unpriced == "audio (price.audio_input)"


TEXTS = ["Which river runs through Vienna?", "", "🙂" * 10, "日本語のテキスト", "x" * 500, "a b c d e", "<|endoftext|>"]


@pytest.fixture
def without_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_encoding", lambda: None)


@pytest.mark.usefixtures("without_vocabulary")
def test_without_a_vocabulary_three_bytes_make_a_token():
    assert [tokens.estimate_tokens(text) for text in ("", "a", "abc", "abcd", "é", "\ud800")] == [0, 1, 1, 2, 1, 1]


@pytest.mark.parametrize("text", [*TEXTS, "\ud800"])
def test_any_text_can_be_estimated(text):
    assert tokens.estimate_tokens(text) >= bool(text)


def test_the_estimate_is_above_the_vocabularys_own_count():
    encoding = tokens._encoding()
    if encoding is None:
        pytest.skip("litellm's vocabulary is not installed")
    for text in TEXTS:
        count = len(encoding.encode(text, disallowed_special=()))
        assert tokens.estimate_tokens(text) >= count * 1.15


def test_a_message_costs_its_frame_too():
    messages = (Message("system", "a"), Message("user", "b"))
    assert tokens.estimate_prompt(request(messages=messages)) == 2 * 8 + tokens.estimate_tokens(
        "a"
    ) + tokens.estimate_tokens("b")


def test_the_bound_is_a_token_a_byte_and_a_frame():
    assert tokens.bound_tokens(request(messages=(Message("user", "é" * 10),))) == 20 + 16
    assert tokens.bound_tokens(request(messages=(Message("user", ""), Message("user", "\ud800")))) == 1 + 32
    assert tokens.bound_tokens(request(messages=())) == 0


def referring(rules: dict[str, Any]) -> ChatRequest:
    root = {"$ref": "#/$defs/d0", "$defs": rules}
    tools = [{"type": "function", "function": {"name": "f", "parameters": root}}]
    return ChatRequest([{"role": "user", "content": "Hi"}], {"tools": tools})


def to(number: int) -> dict[str, str]:
    return {"$ref": f"#/$defs/d{number}"}


@pytest.mark.parametrize(
    ("rules", "count", "levels"),
    [
        ({"d0": {"type": "string"}}, 3 * len('"type""string"__'), 7),
        ({**{f"d{n}": {"items": to(n + 1)} for n in range(6_000)}, "d6000": {}}, 7 * 6_000, 12_006),
        ({**{f"d{n}": {"allOf": [to(n + 1)] * 2} for n in range(6_000)}, "d6000": {"a": 1}}, 10**15, 18_007),
        ({"d0": {"items": to(1)}, "d1": {"items": to(0), "not": {"anyOf": [to(1), to(1)]}}}, 14, 11),
        ({"d0": {f"p{n}": to(1) for n in range(4_000)}, "d1": {f"p{n}": n for n in range(4_000)}}, 9 * 4_000**2, 9),
    ],
    ids=["plain", "in a row", "doubled", "in a circle", "many to one"],
)
def test_references_are_counted_written_out_in_steps_that_grow_as_the_schema(rules, count, levels, monkeypatch):
    chat, looks, parts = referring(rules), list[int](), tokens._parts

    def counted(node: Any, definitions: Any) -> Any:
        own, inside = parts(node, definitions)
        looks.append(1 + len(inside))
        return own, inside

    monkeypatch.setattr(tokens, "_parts", counted)
    written = tokens.written_out(chat)
    assert count <= written[0] - len(chat.canonical) <= max(300, 1.5 * count)
    assert written[1] == levels
    assert sum(looks) < len(chat.canonical)
    with pytest.raises(UsageError) if count >= 10**6 or levels > 300 else nullcontext():
        refuse_fetching("openai/gpt-6.1-sol", chat)


@pytest.mark.parametrize("text", [*TEXTS, "1 2 3 4 5 6 7 8 9 " * 50, "[1,2],[3,4]," * 50, "ᚠᛇᚻ᛫ᛒᛦᚦ" * 50])
def test_the_bound_is_never_below_the_vocabularys_own_count(text):
    encoding = tokens._encoding()
    if encoding is None:
        pytest.skip("litellm's vocabulary is not installed")
    count = len(encoding.encode(text, disallowed_special=()))
    assert tokens.bound_tokens(request(messages=(Message("user", text),))) >= count


@pytest.mark.parametrize("missing", ["litellm", "tiktoken"])
def test_without_a_package_there_is_no_vocabulary(missing, monkeypatch):
    find_spec = util.find_spec
    monkeypatch.setattr(tokens.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    assert tokens._vocabulary_path() is None


def test_a_package_without_the_file_has_no_vocabulary(tmp_path, monkeypatch):
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(tokens.util, "find_spec", lambda _name: Spec)
    assert tokens._vocabulary_path() is None
    tokens._encoding.cache_clear()
    assert tokens._encoding() is None
    tokens._encoding.cache_clear()
