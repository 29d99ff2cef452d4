"""From an untrusted payload to a completion: every check, alone."""

from __future__ import annotations

import math
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
)
from cascade.types import Completion, Token, Usage
from unit.made import payload, request


def read(given: Any, **fields: Any) -> Completion:
    return read_completion(given, request(**fields), 0.25)


def choice(content: Any = "Danube", **fields: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"content": content}, "finish_reason": "stop", **fields}


def test_a_good_payload_says_everything() -> None:
    made = read(payload(id="req-1", model="small"))
    assert made == Completion("Danube", "stop", Usage(10, 2), None, "small", "req-1", 0.25, ())


@pytest.mark.parametrize("given", [None, [], "text", 7, [payload()]])
def test_what_is_no_object_is_refused(given: Any) -> None:
    with pytest.raises(BadResponseError, match="not an object"):
        read(given)


@pytest.mark.parametrize("choices", [None, {}, "x", 0])
def test_without_a_list_of_choices_it_is_no_completion(choices: Any) -> None:
    with pytest.raises(BadResponseError, match="no list of choices"):
        read(payload(choices=choices))
    with pytest.raises(BadResponseError, match="no list of choices"):
        read({"usage": {}})


@pytest.mark.parametrize("choices", [[], [None], ["x"], [{}], [{"message": None}], [{"message": "x"}]])
def test_without_a_usable_choice_it_is_empty_and_its_usage_is_kept(choices: list[Any]) -> None:
    with pytest.raises(EmptyCompletionError) as caught:
        read(payload(choices=choices))
    assert caught.value.usage == Usage(10, 2)
    assert caught.value.billed == "yes"


# --- errors that come with status 200 ---


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "x", "type": "authentication_error"}, AuthenticationError),
        ({"message": "x", "code": "context_length_exceeded"}, ContextTooLongError),
        ("it broke", ProviderUnavailableError),
        (["it broke"], ProviderUnavailableError),
    ],
)
def test_an_error_inside_is_what_its_code_says(error: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        read(payload(error=error))


@pytest.mark.parametrize("error", [None, "", {}, [], 0])
def test_an_empty_error_field_is_no_error(error: Any) -> None:
    assert read(payload(error=error)).text == "Danube"


def test_an_error_inside_repeats_no_secret() -> None:
    with pytest.raises(AuthenticationError) as caught:
        read_completion({"error": {"message": "bad key hunter2", "code": 401}}, request(), 0.0, ("hunter2",))
    assert "hunter2" not in str(caught.value)
    assert "bad key [redacted]" in str(caught.value)


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
        ({"code": 1.5, "status": "418"}, 418),
        *(({"code": code}, 500) for code in ("²", "9" * 5_000, " 404", "-404", "399", "600", 399, 600, True)),
        *(({"code": code}, int(code)) for code in (400, 599, "400", "599")),
    ],
)
def test_the_status_that_an_error_means(error: dict[str, Any], status: int) -> None:
    assert status_of(error) == status


# --- choices ---


def test_of_several_choices_the_lowest_index_counts() -> None:
    notes: list[str] = []
    found = first_choice([choice("b", index=1), choice("a", index=0)], notes)
    assert found is not None
    assert found["message"]["content"] == "a"
    assert notes == ["2 choices came where 1 was asked for"]


def test_a_choice_without_an_index_comes_last() -> None:
    found = first_choice([choice("none", index=None), choice("word", index="0"), choice("a", index=5)], [])
    assert found is not None
    assert found["message"]["content"] == "a"


def test_unusable_choices_are_noted() -> None:
    made = read(payload(choices=[None, choice()]))
    assert made.text == "Danube"
    assert made.notes == ("1 of 2 choices were unusable",)


# --- refusals ---


@pytest.mark.parametrize(
    "one",
    [
        choice("", message={"content": None, "refusal": "I cannot"}),
        choice(message={"content": "text", "refusal": "I cannot"}),
        choice("text", finish_reason="content_filter"),
        choice(""),
        choice(" \n"),
        choice(None),
        choice(7),
        choice([7]),
        choice(None, finish_reason="tool_calls"),
    ],
)
def test_a_refusal_is_never_an_answer_and_keeps_its_usage(one: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as caught:
        read(payload(choices=[one]))
    assert caught.value.usage == Usage(10, 2)


@pytest.mark.parametrize("refusal", [None, "", "  ", 0, []])
def test_an_empty_refusal_is_none(refusal: Any) -> None:
    assert read(payload(choices=[choice(message={"content": "Danube", "refusal": refusal})])).text == "Danube"


def test_an_empty_text_cut_at_the_limit_is_a_cut_text() -> None:
    made = read(payload(choices=[choice("", finish_reason="length")]))
    assert (made.text, made.truncated) == ("", True)


@pytest.mark.parametrize("finish", [None, 7, {}])
def test_a_finish_reason_that_is_no_word_is_unknown(finish: Any) -> None:
    assert read(payload(choices=[choice(finish_reason=finish)])).finish_reason == "unknown"


# --- usage ---


@each(
    "usage",
    [
        None,
        {},
        [],
        "10",
        {"prompt_tokens": 10},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": 10, "completion_tokens": -2},
        {"prompt_tokens": "10", "completion_tokens": 2},
        {"prompt_tokens": 10.0, "completion_tokens": 2},
        {"prompt_tokens": True, "completion_tokens": 2},
        {"prompt_tokens": MAX_TOKEN_COUNT + 1, "completion_tokens": 2},
        {"prompt_tokens": math.nan, "completion_tokens": 2},
    ],
)
def test_what_is_no_count_is_estimated_high_and_says_so(usage: Any) -> None:
    made = read(payload(usage=usage))
    assert made.usage.estimated
    assert made.usage.input_tokens is not None
    assert made.usage.input_tokens > 8
    assert made.usage.output_tokens is not None
    assert made.usage.output_tokens >= 1
    assert made.notes == ("usage missing or not a count: estimated",)


def test_no_tokens_for_a_reply_with_text_are_estimated_and_said() -> None:
    made = read(payload(usage={"prompt_tokens": 10, "completion_tokens": 0}))
    assert (made.usage.input_tokens, made.usage.estimated) == (10, True)
    assert made.usage.output_tokens is not None
    assert made.usage.output_tokens >= 1
    assert made.notes == ("usage of 0 tokens for a reply with text: estimated",)


def test_what_the_reply_says_beside_its_choices_is_kept() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"audio_tokens": 3, "odd": "x"},
        "completion_tokens_details": {"accepted_prediction_tokens": 1, "audio_tokens": None},
    }
    made = read(payload(usage=usage, service_tier="flex", system_fingerprint="fp_1"))
    assert (made.tier, made.fingerprint) == ("flex", "fp_1")
    assert made.details == {
        "prompt_tokens_details": {"audio_tokens": 3},
        "completion_tokens_details": {"accepted_prediction_tokens": 1},
    }


@pytest.mark.parametrize(
    ("cached", "reasoning", "kept"),
    [
        (4, 1, (4, 1)),
        (0, 0, (0, 0)),
        (10, 2, (10, 2)),
        (None, None, (None, None)),
    ],
)
def test_a_part_of_a_count_is_kept_if_it_is_one(cached: Any, reasoning: Any, kept: tuple[Any, Any]) -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    assert read_usage(usage, request(), "", []) == Usage(10, 2, *kept)


PARTS = {
    "as OpenAI counts": ({"total_tokens": 1_100}, {}, {}, Usage(1_000, 100)),
    "reasoning within": ({"total_tokens": 1_100}, {}, {"reasoning_tokens": 60}, Usage(1_000, 100, None, 60)),
    "reasoning beside": ({"total_tokens": 1_600}, {}, {"reasoning_tokens": 500}, Usage(1_000, 600, None, 500)),
    "reasoning beside, at the top": (
        {"total_tokens": 1_600, "reasoning_tokens": 500},
        {},
        {},
        Usage(1_000, 600, None, 500),
    ),
    "a cache within": ({}, {"cached_tokens": 600}, {}, Usage(1_000, 100, 600)),
    "a cache within, Anthropic's names": (
        {"cache_read_input_tokens": 600, "cache_creation_input_tokens": 300},
        {},
        {},
        Usage(1_000, 100, 600, written_input_tokens=300),
    ),
    "a cache within, DeepSeek's name": ({"prompt_cache_hit_tokens": 600}, {}, {}, Usage(1_000, 100, 600)),
    "a cache beside": (
        {"total_tokens": 3_300, "cache_read_input_tokens": 2_000, "cache_creation_input_tokens": 200},
        {},
        {},
        Usage(3_200, 100, 2_000, written_input_tokens=200),
    ),
    "more reasoning than completion": ({}, {}, {"reasoning_tokens": 500}, None),
    "more cached than prompt": ({}, {"cached_tokens": 1_001}, {}, None),
    "more written than prompt": ({"cache_creation_input_tokens": 1_001}, {}, {}, None),
    "cached and written are more than prompt": ({"cache_creation_input_tokens": 600}, {"cached_tokens": 600}, {}, None),
    "a total that is no count": ({"total_tokens": "99999"}, {}, {}, None),
    "a part that is no count": ({}, {}, {"reasoning_tokens": "500"}, None),
    "two names of a cache that differ": ({"prompt_cache_hit_tokens": 0}, {"cached_tokens": 600}, {}, None),
    "two names of the prompt that differ": ({"input_tokens": 10_000}, {}, {}, None),
    "a total of something else": ({"total_tokens": 1_600}, {}, {}, None),
}


@each("name", PARTS)
def test_the_parts_of_a_usage_add_up_or_its_cost_is_unknown(name: str) -> None:
    """A usage that contradicts itself is replaced by the most that the request allows: no cost, but a bound."""
    top, prompt, completion, counted = PARTS[name]
    usage = {"prompt_tokens": 1_000, "completion_tokens": 100, **top}
    usage |= {"prompt_tokens_details": prompt, "completion_tokens_details": completion}
    made = read_usage(usage, request(), "", [])
    assert made == counted if counted is not None else made.estimated


@each("finish", ["error", "abort", "cancelled", "IMAGE_OTHER", "pause"])
def test_an_end_that_is_not_known_to_be_good_is_no_answer(finish: str) -> None:
    with pytest.raises(BadResponseError):
        read(payload(choices=[choice(finish_reason=finish)]))


@each("finish", {"MAX_TOKENS": "length", "end_turn": "stop", "STOP": "stop", "tool_use": "tool_calls"}.items())
def test_an_end_has_openai_s_word(finish: tuple[str, str]) -> None:
    assert read(payload(choices=[choice(finish_reason=finish[0])])).finish_reason == finish[1]


def test_an_error_inside_the_choice_is_an_error() -> None:
    with pytest.raises(ProviderUnavailableError):
        read(payload(choices=[choice(error={"message": "overloaded", "code": 503})]))


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
}


@each("name", CALLS)
def test_a_message_has_the_form_that_openai_s_own_types_read(name: str) -> None:
    sent, read_as = CALLS[name]
    message = whole_message({"content": [{"type": "text", "text": "So"}], "tool_calls": [sent]}, request())
    assert message == {"role": "assistant", "content": "So", "tool_calls": [read_as]}
    types = pytest.importorskip("openai.types.chat")
    types.ChatCompletionMessage.model_validate(message, strict=True)


def test_an_account_without_credit_is_asked_once() -> None:
    said = {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}
    with pytest.raises(QuotaError) as caught:
        read(payload(error=said))
    assert (caught.value.retryable, caught.value.billed) == (False, "no")


@pytest.mark.parametrize("details", [None, [], "x", 7])
def test_details_of_another_shape_are_unknown(details: Any) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    usage |= {"prompt_tokens_details": details, "completion_tokens_details": details}
    assert read_usage(usage, request(), "", []) == Usage(10, 2)


# --- text ---


def test_nul_and_lone_surrogates_are_replaced() -> None:
    made = read(payload("Da\x00nube\ud800 🙂"))
    assert made.text == "Da\ufffdnube\ufffd 🙂"
    assert made.notes == ("NUL or lone surrogates replaced",)


def test_a_text_too_long_is_cut() -> None:
    notes: list[str] = []
    assert len(storable("x" * (MAX_TEXT_CHARS + 7), notes)) == MAX_TEXT_CHARS
    assert notes == [f"text cut from {MAX_TEXT_CHARS + 7} to {MAX_TEXT_CHARS} characters"]


@pytest.mark.parametrize("text", ["", "plain", "naïve 🙂", "\n\t"])
def test_text_that_can_be_stored_stays(text: str) -> None:
    assert as_storable(text) == text


# --- the echoed name ---


@pytest.mark.parametrize(
    ("asked", "echo", "noted"),
    [
        ("openai/gpt-4o", "gpt-4o", False),
        ("gpt-4o", "gpt-4o-2024-08-06", False),
        ("claude-x", "anthropic/claude-x-20250101", False),
        ("claude-x", "claude-x-latest", False),
        ("gpt-4o", "gpt-4o-mini", True),
        ("gpt-4o-mini", "gpt-4o", True),
        ("gpt-4o", "llama", True),
    ],
)
def test_another_models_name_is_noted(asked: str, echo: str, noted: bool) -> None:
    made = read(payload(model=echo), model=asked)
    assert made.model == echo
    assert bool(made.notes) is noted


@pytest.mark.parametrize("echo", [None, "", 7, []])
def test_no_name_is_none(echo: Any) -> None:
    assert read(payload(model=echo)).model is None


def test_an_echo_is_bounded() -> None:
    made = read(payload(model="x" * 10_000))
    assert len(made.model or "") == 200
    assert len(made.notes[0]) < 300


@pytest.mark.parametrize("identity", [None, 7, {}])
def test_an_id_that_is_no_text_is_none(identity: Any) -> None:
    assert read(payload(id=identity)).request_id is None


# --- log-probs ---


def entry(text: Any = "Yes", value: Any = -0.1, **top: Any) -> dict[str, Any]:
    alternatives = [{"token": name, "logprob": other} for name, other in top.items()]
    return {"token": text, "logprob": value, "top_logprobs": alternatives}


@pytest.mark.parametrize(
    "raw", [None, {}, [], "x", {"content": None}, {"content": []}, {"content": "x"}, {"content": [7]}]
)
def test_without_logprobs_there_are_no_tokens(raw: Any) -> None:
    assert read_tokens(raw, [], 20) is None


def test_tokens_come_with_their_alternatives_where_more_than_one_was_wanted() -> None:
    raw = {"content": [entry(Yes=-0.1, No=-2.5)]}
    assert read_tokens(raw, [], 20) == (Token("Yes", -0.1, (("Yes", -0.1), ("No", -2.5))),)
    assert read_tokens(raw, [], 1) == read_tokens(raw, []) == (Token("Yes", -0.1),)


@pytest.mark.parametrize("bad", [math.nan, math.inf, "x", None, True, 0.5])
def test_one_bad_alternative_makes_its_place_unknown(bad: Any) -> None:
    notes: list[str] = []
    assert read_tokens({"content": [entry(Yes=-0.1, No=bad), entry()]}, notes, 20) == (
        Token("Yes", None),
        Token("Yes", -0.1),
    )
    assert notes == ["1 of 2 log-probs are not log-probabilities"]


@pytest.mark.parametrize("top", [None, [], {}, "x"])
def test_alternatives_of_another_shape_are_none(top: Any) -> None:
    raw = {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": top}]}
    assert read_tokens(raw, [], 20) == (Token("Yes", -0.1),)


@pytest.mark.parametrize(("token", "text"), [(None, ""), (7, ""), ("a\x00b", "a\ufffdb"), ("\ud800", "\ufffd")])
def test_the_text_of_a_token_can_be_stored(token: Any, text: str) -> None:
    assert read_tokens({"content": [entry(token)]}, [], 20) == (Token(text, -0.1),)


def test_an_end_mark_behind_the_text_is_no_token_of_it() -> None:
    assert read_tokens({"content": [entry(), entry("")]}, []) == (Token("Yes", -0.1),)
    assert read_tokens({"content": [entry("")]}, []) == (Token("", -0.1),)


def test_two_alternatives_are_kept_where_two_were_wanted() -> None:
    raw = {"content": [entry(Yes=-0.1, No=-2.5)]}
    assert len((read_tokens(raw, [], 2) or ())[0].top) == 2


def test_entries_that_are_no_objects_are_left_out() -> None:
    assert read_tokens({"content": [None, entry(), 7]}, [], 20) == (Token("Yes", -0.1),)


@each(
    "value, kept",
    [
        (-0.5, -0.5),
        (0.0, 0.0),
        (0, 0.0),
        (-3, -3.0),
        (-math.inf, -math.inf),
        (5e-5, 0.0),
        (1e-3, None),
        (1, None),
        (math.inf, None),
        (math.nan, None),
        (True, None),
        (False, None),
        ("-0.5", None),
        (None, None),
        ([], None),
        (-(10**400), None),
        (10**400, None),
    ],
)
def test_a_logprob_is_at_most_0_or_nothing(value: Any, kept: float | None) -> None:
    assert logprob(value) == kept


def test_content_as_a_list_of_parts_is_joined() -> None:
    """0.5.0 read it as an empty answer and refused it."""
    parts = [{"type": "text", "text": "Answer: "}, {"type": "image_url"}, {"type": "text", "text": "Danube"}]
    made = read_completion(payload(parts), request(), 0.0)
    assert made.text == "Answer: Danube"
    assert made.notes == ("1 of 3 parts of the content are not text and were left out",)


def test_a_refusal_among_the_parts_is_a_refusal() -> None:
    with pytest.raises(RefusedError):
        read_completion(payload([{"type": "refusal", "refusal": "I cannot help with that."}]), request(), 0.0)


@pytest.mark.parametrize(("images", "believed"), [(0, False), (1, True)])
def test_an_image_that_a_request_only_names_may_have_many_tokens(images: int, believed: bool) -> None:
    """gpt-4o-mini counts 25,501 tokens for an image of 1,024 × 1,024, and its address has few bytes."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    chat = ChatRequest([{"role": "user", "content": [{"type": "text", "text": "What?"}, *[image] * images]}])
    asked = request(max_tokens=64)._replace(chat=chat)
    told = {"prompt_tokens": 25_501, "completion_tokens": 10}
    assert read_completion(payload(usage=told), asked, 0.0).usage.estimated is not believed


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        ({"prompt_tokens": 40, "completion_tokens": 64}, True),
        ({"prompt_tokens": 9_000, "completion_tokens": 70}, True),  # a prompt of the server's own before ours
        ({"prompt_tokens": 40, "completion_tokens": 1_100}, True),
        (
            {
                "prompt_tokens": 40,
                "completion_tokens": 30_000,
                "completion_tokens_details": {"reasoning_tokens": 29_900},
            },
            True,
        ),
        ({"prompt_tokens": 40, "completion_tokens": 10**9}, False),
        ({"prompt_tokens": 10**9, "completion_tokens": 10}, False),
        ({"prompt_tokens": 40, "completion_tokens": 30_000}, False),
        (
            {"prompt_tokens": 40, "completion_tokens": 10**9, "completion_tokens_details": {"reasoning_tokens": 10**9}},
            False,
        ),
    ],
)
def test_a_usage_that_the_request_cannot_have_had_is_not_charged(told: dict[str, Any], believed: bool) -> None:
    """0.5.0 charged 10⁹ tokens at max_tokens 64 as $5,000, exactly."""
    made = read_completion(payload(usage=told), request(max_tokens=64), 0.0)
    assert made.usage.estimated is not believed
    assert any("not believable" in note for note in made.notes) is not believed
    if not believed:
        assert made.usage.input_tokens is not None
        assert made.usage.input_tokens < 200
        assert made.usage.output_tokens == 64
