"""From an untrusted payload to a completion: every check, alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import pytest
from cases import each

from cascade.chat import ChatRequest
from cascade.errors import (
    AuthenticationError,
    BadResponseError,
    ContextTooLongError,
    EmptyCompletionError,
    ProviderUnavailableError,
    QuotaError,
    RefusedError,
)
from cascade.providers.reading import (
    MAX_TEXT_CHARS,
    MAX_TOKEN_COUNT,
    as_storable,
    first_choice,
    logprob,
    read_completion,
    read_tokens,
    read_usage,
    status_of,
    storable,
    whole_message,
    with_tool_calls,
)
from cascade.types import Completion, Token, Usage
from unit.builders import payload, request


def read(given: Any, **fields: Any) -> Completion:
    return read_completion(given, request(**fields), 0.25)


def figures(notes: Iterable[str]) -> list[list[int]]:
    """Return the whole numbers of each note."""
    return [[int(digits) for digits in re.findall(r"\b\d+\b", note)] for note in notes]


def choice(content: Any = "Danube", **fields: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"content": content}, "finish_reason": "stop", **fields}


def single(content: Any = "Danube", **fields: Any) -> dict[str, Any]:
    return payload(choices=[choice(content, **fields)])


QUOTA = {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}
PAID = {"usage": Usage(10, 2), "billed": "yes"}


@each(
    "given, kind, fields",
    [
        *((given, BadResponseError, {}) for given in (None, [], "text", 7, [payload()], {"usage": {}})),
        *((payload(choices=choices), BadResponseError, {}) for choices in (None, {}, "x", 0)),
        *((payload(choices=choices), EmptyCompletionError, PAID) for choices in ([], [None], ["x"], [{}])),
        *((payload(choices=[{"message": message}]), EmptyCompletionError, PAID) for message in (None, "x")),
        # errors that come with status 200
        (payload(error={"message": "x", "type": "authentication_error"}), AuthenticationError, {}),
        (payload(error={"message": "x", "code": "context_length_exceeded"}), ContextTooLongError, {}),
        *((payload(error=error), ProviderUnavailableError, {}) for error in ("it broke", ["it broke"])),
        (single(error={"message": "overloaded", "code": 503}), ProviderUnavailableError, {}),
        (payload(error=QUOTA), QuotaError, {"retryable": False, "billed": "no"}),
        # a refusal is never an answer
        *((single(content), RefusedError, {"usage": Usage(10, 2)}) for content in ("", " \n", None, 7, [7])),
        *((single(message={"content": text, "refusal": "No."}), RefusedError, PAID) for text in (None, "text")),
        (single("text", finish_reason="content_filter"), RefusedError, PAID),
        (single(None, finish_reason="tool_calls"), RefusedError, PAID),
        (payload([{"type": "refusal", "refusal": "I cannot help with that."}]), RefusedError, {}),
        # nor an end that is not known to be good
        *((single(finish_reason=end), BadResponseError, {}) for end in ("error", "abort", "cancelled", "pause")),
    ],
)
def test_what_is_no_completion_is_an_error_that_keeps_its_usage(given, kind, fields):
    with pytest.raises(kind) as caught:
        read(given)
    assert {name: getattr(caught.value, name) for name in fields} == fields


USED = {"prompt_tokens": 10, "completion_tokens": 2}
DETAILED = USED | {
    "prompt_tokens_details": {"audio_tokens": 3, "odd": "x"},
    "completion_tokens_details": {"accepted_prediction_tokens": 1, "audio_tokens": None},
}
DETAILS = {"prompt_tokens_details": {"audio_tokens": 3}, "completion_tokens_details": {"accepted_prediction_tokens": 1}}
ENDS = {"MAX_TOKENS": "length", "end_turn": "stop", "pause_turn": "length", "tool_use": "tool_calls"}
PIECES = [{"type": "text", "text": "Answer: "}, {"type": "image_url"}, {"type": "text", "text": "Danube"}]


@each(
    "given, wanted, noted",
    [
        *((payload(error=error), {"text": "Danube"}, []) for error in (None, "", {}, [], 0)),
        *(
            (single(message={"content": "Danube", "refusal": refusal}), {"text": "Danube"}, [])
            for refusal in (None, "", "  ", 0, [])
        ),
        (single("", finish_reason="length"), {"text": "", "truncated": True}, []),
        *((single(finish_reason=end), {"finish_reason": "unknown"}, []) for end in (None, 7, {})),
        *((single(finish_reason=end), {"finish_reason": word}, []) for end, word in ENDS.items()),
        *((payload(model=echo), {"model": None}, []) for echo in (None, "", 7, [])),
        *((payload(id=identity), {"request_id": None}, []) for identity in (None, 7, {})),
        (payload(usage=DETAILED, service_tier="flex", system_fingerprint="fp"),
         {"tier": "flex", "fingerprint": "fp", "details": DETAILS}, []),
        (payload(choices=[None, choice()]), {"text": "Danube"}, [[1, 2]]),
        (payload("Da\x00nube\ud800 🙂"), {"text": "Da\ufffdnube\ufffd 🙂"}, [[]]),
        (payload(PIECES), {"text": "Answer: Danube"}, [[1, 3]]),  # 0.5.0 read it as an empty answer and refused it
    ],
)  # fmt: skip
def test_what_is_read_of_a_payload(given, wanted, noted):
    completion = read(given)
    assert {name: getattr(completion, name) for name in wanted} == wanted
    assert figures(completion.notes) == noted


def test_a_good_payload_says_everything():
    completion = read(payload(id="req-1", model="small"))
    assert completion == Completion("Danube", "stop", Usage(10, 2), None, "small", "req-1", 0.25, ())


@each(
    "error, status",
    [
        ({}, 500),
        ({"code": 200}, 500),
        ({"code": 600}, 500),
        ({"code": "teapot"}, 500),
        ({"code": None, "type": "not_found_error"}, 404),
        ({"code": "insufficient_quota"}, 429),
        ({"type": "overloaded_error"}, 503),
        ({"type": "permission_error"}, 403),
        ({"type": "invalid_request_error"}, 400),
        ({"type": "request_timeout"}, 408),
        ({"type": "exceed_context_size_error"}, 400),
        ({"code": 1.5, "status": "418"}, 418),
        *(({"code": code}, 500) for code in ("²", "9" * 5_000, " 404", "-404", "399", "600", 399, 600, True)),
        *(({"code": code}, int(code)) for code in (400, 599, "400", "599")),
    ],
)
def test_the_status_that_an_error_means(error, status):
    assert status_of(error) == status


# --- choices ---


@each(
    "choices",
    [
        [choice("b", index=1), choice("a", index=0)],
        [choice("none", index=None), choice("word", index="0"), choice("a", index=5)],
    ],
)
def test_of_several_choices_the_lowest_index_counts(choices):
    notes: list[str] = []
    first = first_choice(choices, notes)
    assert (first and first["message"]["content"], figures(notes)) == ("a", [[len(choices), 1]])


# --- usage ---


@each(
    "usage",
    [
        *(None, {}, [], "10", {"prompt_tokens": 10}),
        *({"prompt_tokens": count, "completion_tokens": 2} for count in (-1, "10", 10.0, True, math.nan)),
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": 10, "completion_tokens": -2},
        {"prompt_tokens": MAX_TOKEN_COUNT + 1, "completion_tokens": 2},
        {"prompt_tokens": 10, "completion_tokens": 0},  # for a reply with text
    ],
)
def test_what_is_no_count_is_estimated_high_and_says_so(usage):
    completion = read(payload(usage=usage))
    counted = usage == {"prompt_tokens": 10, "completion_tokens": 0}
    assert (completion.usage.estimated, figures(completion.notes)) == (True, [[0] if counted else []])
    assert completion.usage.input_tokens == 10 if counted else completion.usage.input_tokens > 8
    assert completion.usage.output_tokens >= 1
    call = request(chat=ChatRequest([{"role": "user", "content": "Which river?" * 9}]))
    assert read_usage(usage, call, "text", []).input_tokens >= (10 if counted else 20)


@each(
    "details, counts",
    [
        *(
            (({"cached_tokens": cached}, {"reasoning_tokens": reasoning}), (cached, reasoning))
            for cached, reasoning in ((4, 1), (0, 0), (10, 2), (None, None))
        ),
        *(((shape, shape), ()) for shape in (None, [], "x", 7)),
    ],
)
def test_a_part_of_a_count_is_kept_if_it_is_one(details, counts):
    usage = USED | {"prompt_tokens_details": details[0], "completion_tokens_details": details[1]}
    assert read_usage(usage, request(), "", []) == Usage(10, 2, *counts)


TOTAL, THOUGHT = "total_tokens", "reasoning_tokens"
CACHED, READ, WRITTEN = "cached_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
PARTS = {
    "as OpenAI counts": ({TOTAL: 1_100}, {}, {}, Usage(1_000, 100)),
    "reasoning within": ({TOTAL: 1_100}, {}, {THOUGHT: 60}, Usage(1_000, 100, None, 60)),
    "reasoning beside": ({TOTAL: 1_600}, {}, {THOUGHT: 500}, Usage(1_000, 600, None, 500)),
    "reasoning beside, at the top": ({TOTAL: 1_600, THOUGHT: 500}, {}, {}, Usage(1_000, 600, None, 500)),
    "a cache within": ({}, {CACHED: 600}, {}, Usage(1_000, 100, 600)),
    "a cache within, Anthropic's names": ({READ: 600, WRITTEN: 300}, {}, {}, Usage(1_000, 100, 600, None, False, 300)),
    "a cache within, DeepSeek's name": ({"prompt_cache_hit_tokens": 600}, {}, {}, Usage(1_000, 100, 600)),
    "a cache beside": (
        {TOTAL: 3_300, READ: 2_000, WRITTEN: 200},
        {},
        {},
        Usage(3_200, 100, 2_000, written_input_tokens=200),
    ),
    "all written, all reasoning": ({WRITTEN: 1_000}, {}, {THOUGHT: 100}, Usage(1_000, 100, None, 100, False, 1_000)),
    "cache within, reasoning beside": ({TOTAL: 1_600}, {CACHED: 600}, {THOUGHT: 500}, Usage(1_000, 600, 600, 500)),
    "cache beside, reasoning within": ({TOTAL: 3_100}, {CACHED: 2_000}, {THOUGHT: 60}, Usage(3_000, 100, 2_000, 60)),
    "both beside": ({TOTAL: 3_600}, {CACHED: 2_000}, {THOUGHT: 500}, Usage(3_000, 600, 2_000, 500)),
    "more reasoning than completion": ({}, {}, {THOUGHT: 500}, None),
    "more cached than prompt": ({}, {CACHED: 1_001}, {}, None),
    "more written than prompt": ({WRITTEN: 1_001}, {}, {}, None),
    "cached and written are more than prompt": ({WRITTEN: 600}, {CACHED: 600}, {}, None),
    "a total that is no count": ({TOTAL: "99999"}, {}, {}, None),
    "a part that is no count": ({}, {}, {THOUGHT: "500"}, None),
    "two names of a cache that differ": ({"prompt_cache_hit_tokens": 0}, {CACHED: 600}, {}, None),
    "two names of the prompt that differ": ({"input_tokens": 10_000}, {}, {}, None),
    "a total of something else": ({TOTAL: 1_600}, {}, {}, None),
}


@each("name", PARTS)
def test_the_parts_of_a_usage_add_up_or_its_cost_is_unknown(name):
    """A usage that contradicts itself is replaced by the most that the request allows: no cost, but a bound."""
    top, prompt, completion, counted = PARTS[name]
    usage = {"prompt_tokens": 1_000, "completion_tokens": 100, **top}
    usage |= {"prompt_tokens_details": prompt, "completion_tokens_details": completion}
    result = read_usage(usage, request(), "", [])
    assert result == counted if counted is not None else result.estimated


@pytest.mark.parametrize(("tokens", "believed"), [(10, True), (10**9, False)])
def test_one_run_that_the_request_cannot_have_had_makes_the_usage_unknown(tokens, believed):
    runs = [{"input_tokens": read_tokens, "output_tokens": 2} for read_tokens in (10, tokens)]
    assert read_usage({**USED, "iterations": runs}, request(), "", []).estimated is not believed


ADD = {"name": "add", "arguments": '{"n": 1}'}
ADDED = {"id": "c1", "type": "function", "function": ADD}
CALLS = {
    "arguments as an object": ({**ADDED, "function": {"name": "add", "arguments": {"n": 1}}}, ADDED),
    "no arguments": (
        {**ADDED, "function": {"name": "add", "arguments": None}},
        {**ADDED, "function": {**ADD, "arguments": "{}"}},
    ),
    "no kind": ({"id": "c1", "function": ADD}, ADDED),
    "no id": ({"type": "function", "function": ADD}, {**ADDED, "id": "call_0"}),
    "a number as id": ({**ADDED, "id": 7}, {**ADDED, "id": "7"}),
    "a list as id": ({**ADDED, "id": [7]}, {**ADDED, "id": "[7]"}),  # it was a TypeError, and a 500 to the client
}


@each("name", CALLS)
def test_a_message_has_the_form_that_openai_s_own_types_read(name):
    sent, read_as = CALLS[name]
    message = whole_message({"content": [{"type": "text", "text": "So"}], "tool_calls": [sent]}, request())
    assert message == {"role": "assistant", "content": "So", "tool_calls": [read_as]}
    types = pytest.importorskip("openai.types.chat")
    types.ChatCompletionMessage.model_validate(message, strict=True)


# --- text ---


@each("text", ["", "plain", "naïve 🙂", "\n\t", "x" * (MAX_TEXT_CHARS + 7)])
def test_text_that_can_be_stored_stays_up_to_a_length(text):
    notes: list[str] = []
    assert storable(text, notes) == text[:MAX_TEXT_CHARS] == as_storable(text)[:MAX_TEXT_CHARS]
    assert figures(notes) == ([[len(text), MAX_TEXT_CHARS]] if len(text) > 9 else [])


# --- the echoed name ---


@each(
    "model, echo, noted",
    [
        ("openai/gpt-4o", "gpt-4o", False),
        ("gpt-4o", "gpt-4o-2024-08-06", False),
        ("claude-x", "anthropic/claude-x-20250101", False),
        ("claude-x", "claude-x-latest", False),
        ("gpt-4o", "gpt-4o-mini", True),
        ("gpt-4o-mini", "gpt-4o", True),
        ("gpt-4o", "llama", True),
        ("gpt-4o", "x" * 10_000, True),
    ],
)
def test_another_models_name_is_noted(model, echo, noted):
    completion = read(payload(model=echo), model=model)
    assert (completion.model, bool(completion.notes)) == (echo[:200], noted)
    assert len("".join(completion.notes)) < 300


# --- log-probs ---


def entry(text: Any = "Yes", value: Any = -0.1, **top: Any) -> dict[str, Any]:
    alternatives = [{"token": name, "logprob": other} for name, other in top.items()]
    return {"token": text, "logprob": value, "top_logprobs": alternatives}


TOP = entry(Yes=-0.1, No=-2.5)
YES, BOTH = Token("Yes", -0.1), Token("Yes", -0.1, (("Yes", -0.1), ("No", -2.5)))


@each(
    "content, alternatives, tokens",
    [
        *((content, True, None) for content in (None, [], "x", [7])),
        ([TOP], True, (BOTH,)),
        ([TOP], False, (YES,)),
        *(
            ([{"token": "Yes", "logprob": -0.1, "top_logprobs": shape}], True, (YES,))
            for shape in (None, [], {}, "x")  # alternatives of another shape
        ),
        *(
            ([entry(token)], True, (Token(text, -0.1),))
            for token, text in ((None, ""), (7, ""), ("a\x00b", "a\ufffdb"), ("\ud800", "\ufffd"))
        ),
        ([entry(), entry("")], False, (YES,)),  # an end mark behind the text is no token of it
        ([entry("")], False, (Token("", -0.1),)),
        ([None, entry(), 7], True, (YES,)),
    ],
)
def test_the_tokens_of_a_reply(content, alternatives, tokens):
    assert read_tokens({"content": content}, [], alternatives) == tokens


@each("raw", [None, {}, [], "x"])
def test_without_logprobs_there_are_no_tokens(raw):
    assert read_tokens(raw, [], True) is None


@each("bad", [math.nan, math.inf, "x", None, True, 0.5])
def test_one_bad_alternative_makes_its_place_unknown(bad):
    notes: list[str] = []
    assert read_tokens({"content": [entry(Yes=-0.1, No=bad), entry()]}, notes, True) == (Token("Yes", None), YES)
    assert figures(notes) == [[1, 2]]


@each(
    "value, expected",
    [
        *((value, float(value)) for value in (-0.5, 0.0, 0, -3, -math.inf)),
        (5e-5, 0.0),
        *((value, None) for value in (1e-3, 1, math.inf, math.nan, True, False, "-0.5", None, [])),
        *((value, None) for value in (-(10**400), 10**400)),
    ],
)
def test_a_logprob_is_at_most_0_or_nothing(value, expected):
    assert logprob(value) == expected


@pytest.mark.parametrize(("images", "believed"), [(0, False), (1, True)])
def test_an_image_that_a_request_only_names_may_have_many_tokens(images, believed):
    """gpt-4o-mini counts 25,501 tokens for an image of 1,024 × 1,024, and its address has few bytes."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    chat = ChatRequest([{"role": "user", "content": [{"type": "text", "text": "What?"}, *[image] * images]}])
    call = request(max_tokens=64)._replace(chat=chat)
    counts = {"prompt_tokens": 25_501, "completion_tokens": 10}
    assert read_completion(payload(usage=counts), call, 0.0).usage.estimated is not believed


@each(
    "prompt, completion, reasoning, believed",
    [
        (40, 64, None, True),
        (9_000, 70, None, True),  # a prompt of the server's own before ours
        (40, 1_100, None, True),
        (40, 30_000, 29_900, True),
        (40, 30_000, None, False),
        (40, 10**9, None, False),
        (40, 200_000, 200_000, True),
        (40, 200_001, 200_001, False),
        (40, 10**9, 10**9, False),
        (10**9, 10, None, False),
    ],
)
def test_a_usage_that_the_request_cannot_have_had_is_not_charged(prompt, completion, reasoning, believed):
    """0.5.0 charged 10⁹ tokens at max_tokens 64 as $5,000, exactly."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    usage |= {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    result = read_completion(payload(usage=usage), request(max_tokens=64), 0.0)
    assert (result.usage.estimated, bool(result.notes)) == (not believed, not believed)
    assert believed or (result.usage.input_tokens < 200, result.usage.output_tokens) == (True, 64)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "g"}</tool_call>', ["f", "g"]),
        ('```json\n{"name": "f"}\n``` and ```{"name": "g"}```', ["f", "g"]),
        ('{"name": "f"}, [{"name": "g"}]', ["f", "g"]),
        ('{"name": "f"} is a call', []),
        ('<tool_call>{"name": "other"}</tool_call>', []),
        # a pattern took cubic time, and a copy of the rest quadratic: each of these would take hours
        ("<tool_call>" + "\n" * 1_000_000, []),
        ("<tool_call>" * 200_000, []),
        ("```json" + " " * 1_000_000, []),
        ("{}" * 500_000 + "x", []),
    ],
)
def test_calls_written_as_text_are_read_in_one_pass(text, names):
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    chat = ChatRequest([{"role": "user", "content": "?"}], {"tools": tools})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    message = with_tool_calls({"choices": [choice]}, chat)["choices"][0]["message"]
    assert [call["function"]["name"] for call in message.get("tool_calls", ())] == names
    assert (message["content"] is None) == bool(names)
