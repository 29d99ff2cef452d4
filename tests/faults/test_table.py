"""Each fault of a call, over both clients, plain and streamed: how it ends, who is billed, how often it was tried."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any, NamedTuple

import pytest

from cascade.chat import ChatRequest
from cascade.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    CascadeError,
    ContextTooLongError,
    EmptyCompletionError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    QuotaError,
    RateLimitedError,
    RefusedError,
    StreamInterruptedError,
)
from cascade.types import Call, TextDelta

from .bench import KEY, PROVIDERS, SMALL_COST, Bench
from .bodies import QUESTION
from .server import bomb

Outcome = tuple[type[ProviderError] | str | None, str, int]
"""The error, or the text that is served; what is billed: "no", "yes", "maybe" or "estimated"; HTTP requests."""

DOWN: Outcome = (ProviderUnavailableError, "no", 3)
LOST: Outcome = (ProviderUnavailableError, "maybe", 3)
BAD: Outcome = (BadResponseError, "maybe", 2)
CUT: Outcome = (StreamInterruptedError, "maybe", 1)
LATE: Outcome = (ProviderTimeoutError, "maybe", 1)
REFUSED: Outcome = (RefusedError, "yes", 1)
INVALID: Outcome = (BadRequestError, "no", 1)
NO_KEY: Outcome = (AuthenticationError, "no", 1)
TOO_LONG: Outcome = (ContextTooLongError, "no", 1)
NO_CREDIT: Outcome = (QuotaError, "no", 1)
TOO_FAST: Outcome = (RateLimitedError, "no", 3)
EMPTY: Outcome = (EmptyCompletionError, "yes", 1)
SERVED: Outcome = ("Danube", "yes", 1)
UNSURE: Outcome = ("Danube", "estimated", 1)
UNSERVED: Outcome = (None, "yes", 1)


class Fault(NamedTuple):
    """The number of a fault and its outcomes; a stream, and litellm, are given where they end otherwise."""

    number: str
    plain: Outcome
    stream: Outcome | None = None
    litellm: Outcome | None = None
    litellm_stream: Outcome | None = None

    def outcome(self, provider: str, way: str) -> Outcome:
        """Return how a call ends."""
        own = (self.stream if way == "stream" else None) or self.plain
        if provider != "litellm":
            return own
        return (self.litellm_stream or self.stream if way == "stream" else None) or self.litellm or own


FAULTS = {
    "500": Fault("F01", DOWN),
    "503": Fault("F01", DOWN),
    "529": Fault("F01", DOWN),
    "502": Fault("F10", LOST),
    "504": Fault("F10", LOST),
    "429": Fault("F02", TOO_FAST),
    "quota": Fault("L11", NO_CREDIT),
    "400": Fault("F03", INVALID),
    "404": Fault("F03", INVALID),
    "named_invalid": Fault("F03", INVALID),
    "422": Fault("F03", INVALID),
    "413": Fault("F03", TOO_LONG),
    "401": Fault("F04", NO_KEY),
    "403": Fault("F04", NO_KEY),
    "reset": Fault("F05", LOST),
    "silent": Fault("F10", LOST),
    "cut_short": Fault("F05", CUT, litellm=LOST, litellm_stream=CUT),
    "hang": Fault("F06", LATE),
    "slow_drip": Fault("F07", LATE),
    "slow_headers": Fault("F07", LATE),
    "flood_of_heads": Fault("F07", LATE),
    "huge_head": Fault("F29", LOST),
    "html_200": Fault("F12", BAD, litellm_stream=CUT),
    "empty_choices": Fault("F14", EMPTY, CUT),
    "no_choices": Fault("F15", BAD, CUT),
    "null_choices": Fault("F15", BAD, CUT),
    "null_content_filter": Fault("F16", REFUSED),
    "blank": Fault("F16", REFUSED),
    "refusal": Fault("F16", REFUSED),
    "length": Fault("F17", UNSERVED),
    "length_in_capitals": Fault("L2", UNSERVED),
    "bad_json": Fault("F18", BAD, litellm_stream=CUT),
    "not_an_object": Fault("F18", BAD, litellm_stream=CUT),
    "wrong_content_type": Fault("F18", BAD, SERVED, litellm_stream=REFUSED),
    "json_as_html": Fault("F18", BAD, SERVED, litellm=SERVED, litellm_stream=CUT),
    "whole": Fault("F12", SERVED, litellm_stream=CUT),
    "invalid_utf8": Fault("F25", BAD, litellm_stream=CUT),
    "error_429_in_200": Fault("F19", TOO_FAST, litellm_stream=CUT),
    "error_400_in_200": Fault("F19", TOO_LONG, litellm=DOWN, litellm_stream=CUT),
    "error_401_in_200": Fault("F19", NO_KEY, litellm=DOWN, litellm_stream=CUT),
    "error_503_in_200": Fault("F19", DOWN, litellm_stream=CUT),
    "echo_key_in_200": Fault("F19", NO_KEY, litellm=INVALID, litellm_stream=CUT),
    "no_usage": Fault("F20", UNSURE),
    "null_usage": Fault("F20", UNSURE),
    "negative_usage": Fault("F21", UNSURE),
    "text_usage": Fault("F21", UNSURE, litellm=SERVED, litellm_stream=SERVED),
    "float_usage": Fault("F21", UNSURE, litellm=BAD, litellm_stream=CUT),
    "nan_usage": Fault("F21", UNSURE, litellm=BAD, litellm_stream=CUT),
    "huge_usage": Fault("F21", UNSURE),
    "bool_usage": Fault("F21", UNSURE),
    "list_usage": Fault("F21", UNSURE, litellm=BAD, litellm_stream=UNSURE),
    "believed_by_nobody": Fault("F21", UNSURE),
    "parts_above_the_whole": Fault("L1", UNSURE),
    "reasoning_beside": Fault("L1", ("Danube", "yes", 1)),
    "cache_beside_the_details": Fault("L9", SERVED),
    "wrong_model_echo": Fault("F22", SERVED),
    "near_model_echo": Fault("F22", SERVED),
    "dated_model_echo": Fault("F22", SERVED),
    "no_logprobs": Fault("F24", SERVED),
    "nan_logprob": Fault("F25", SERVED),
    "positive_logprob": Fault("F25", SERVED),
    "minus_inf_logprob": Fault("F25", SERVED),
    "missing_logprob": Fault("F25", SERVED),
    "text_logprob": Fault("F25", SERVED),
    "gigantic_logprob": Fault("F25", SERVED),
    "finish_error": Fault("L2", BAD, CUT),
    "finish_abort": Fault("L2", BAD, CUT),
    "finish_cancelled": Fault("L2", BAD, CUT),
    "finish_safety": Fault("L2", REFUSED),
    "error_in_choice": Fault("F27", DOWN),
    "huge": Fault("F29", BAD, litellm=SERVED),
    "bomb": Fault("F29", BAD, litellm_stream=CUT),
    "nested_bomb": Fault("F29", BAD, litellm_stream=CUT),
    "million_lists": Fault("F29", BAD),
    "newlines": Fault("F29", SERVED),
    "odd_characters": Fault("F29", SERVED),
    "odd_names": Fault("F29", SERVED),
    "token_marks": Fault("F29", SERVED),
    "unordered_choices": Fault("F30", SERVED, litellm=BAD, litellm_stream=CUT),
    "duplicate_choices": Fault("F30", SERVED),
    "odd_indices": Fault("F30", SERVED, litellm=("Elbe", "yes", 1), litellm_stream=SERVED),
}
STREAMS = {
    "stream_reset": Fault("F26", CUT),
    "stream_error_inside": Fault("F26", CUT),
    "stream_no_finish": Fault("F27", CUT),
    "stream_finish_error": Fault("F27", CUT),
    "stream_error_in_choice": Fault("F27", CUT),
    "stream_text_after_finish": Fault("F27", SERVED),
    "stream_text_after_done": Fault("F27", SERVED),
    "stream_refusal": Fault("F16", REFUSED),
    "stream_no_usage": Fault("F20", UNSURE),
    "stream_usage_doubled": Fault("F28", SERVED),
    "stream_usage_with_choices": Fault("F28", SERVED),
    "stream_usage_before_finish": Fault("F28", SERVED),
    "stream_empty_chunks": Fault("F28", SERVED, litellm=CUT),
    "stream_odd_characters": Fault("F29", ("ube", "yes", 1)),
    "stream_halves": Fault("L12", SERVED),
    "stream_two_choices": Fault("F30", SERVED),
}
ONE_CALL: Outcome = ('add{"n": 1}', "yes", 1)
TWO_CALLS: Outcome = ('add{"n": 1}; add{"n": 2}', "yes", 1)
CALLED = {
    "call_arguments_object": Fault("L8", ONE_CALL),
    "call_arguments_null": Fault("L8", ("add{}", "yes", 1), litellm=("add", "yes", 1)),
    "call_no_type": Fault("L8", ONE_CALL),
    "call_no_id": Fault("L8", ONE_CALL),
    "call_integer_id": Fault("L8", ONE_CALL, litellm=ONE_CALL, litellm_stream=("", "yes", 1)),
    "call_content_parts": Fault(
        "L8", ('Danubeadd{"n": 1}', "yes", 1), litellm=BAD, litellm_stream=('Danubeadd{"n": 1}', "yes", 1)
    ),
    "call_no_role": Fault("L8", ONE_CALL),
    "call_in_text": Fault("L8", ONE_CALL, ('{"name": "add", "arguments": {"n": 1}}', "yes", 1)),  # it was shown
}
"""Faults of a message that calls a tool; litellm itself empties or loses some, which is a fault of the message."""
CALLED_IN_PIECES = {
    "calls_in_turn": Fault("L7", TWO_CALLS),
    "calls_same_index": Fault("L7", TWO_CALLS),
    "calls_no_index": Fault("L7", TWO_CALLS),
    "calls_index_drift": Fault("L7", TWO_CALLS),
    "calls_without_ids": Fault("L7", TWO_CALLS),
}
CHATS = CALLED | CALLED_IN_PIECES
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SLOW = {mode for mode, fault in FAULTS.items() if fault.plain is LATE}
COSTS = {"reasoning_beside": SMALL_COST + 500 * 2_000}


def called(
    bench: Bench, mode: str | list[str], provider: str, way: str, question: str = QUESTION, **settings: Any
) -> tuple[Any, Call, str]:
    """Ask a lone model that misbehaves; return its text or the class of its error, the call, and the error in words."""
    orchestrator = bench.alone(mode, provider, **settings)
    try:
        if str(mode) in CHATS:
            request = ChatRequest([{"role": "user", "content": question}], {"tools": TOOLS})
            answer = list(orchestrator.stream(request))[-1] if way == "stream" else orchestrator.chat(request)
            return written_out(answer.message), answer.calls[0], ""
        *events, answer = orchestrator.stream(question, raw=True) if way == "stream" else [orchestrator.ask(question)]
        streamed = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert way == "ask" or mode == "huge" or streamed == answer.calls[0].completion.text
    except CascadeError as error:
        return type(error), error.calls[0], f"{error!r} {vars(error)}"
    written = json.dumps(answer.to_dict(), ensure_ascii=False).encode()
    assert b"\\u0000" not in written
    return answer.text, answer.calls[0], ""


def written_out(message: Any) -> str:
    """Return the text and the tool calls of a message, which OpenAI's own types accept."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    for call in message.get("tool_calls") or ():
        assert {name: type(value) for name, value in call.items()} == {"id": str, "type": str, "function": dict}
    assert (message["role"], type(message.get("content"))) in {("assistant", str), ("assistant", type(None))}
    return (message.get("content") or "") + "; ".join(f"{call['name']}{call['arguments']}" for call in calls)


def bill(call: Call, cost_nano_usd: int) -> str:
    """Return in a word what a call costs, and check that its figures agree with it."""
    figures = {"no": 0, "yes": cost_nano_usd, "maybe": None}
    estimated = call.billed == "yes" and call.completion is not None and call.completion.usage.estimated
    assert call.cost_nano_usd == (None if estimated else figures[call.billed])
    assert call.cost_nano_usd is not None or (call.cost_bound_nano_usd or 0) > 0
    return "estimated" if estimated else call.billed


def check(bench: Bench, mode: str, provider: str = "openai_http", way: str = "ask") -> None:
    """Compare a fault with its row."""
    fault = (FAULTS | STREAMS | CHATS)[mode]
    ends, billed, requests = fault.outcome(provider, way)
    for limit_s in (0.4, 4.0, 40.0) if mode in SLOW else (120.0,):  # a busy machine may not send it in the shortest
        question = f"{QUESTION} Within {limit_s} s."  # the request of a try before may come late
        actual, call, words = called(bench, mode, provider, way, question, timeouts={"per_question_s": limit_s})
        if count := sum(question in str(request) for request in bench.server.requests):
            break
    if mode in CHATS:
        assert actual == ends, words
    elif isinstance(ends, str):
        assert mode == "huge" or (isinstance(actual, str) and ends.removeprefix("D") in actual), (actual, words)
        assert ("Elbe" in actual) is (ends == "Elbe"), "a second choice, or what comes after the end"
    else:
        assert actual is ends, words
    assert (bill(call, COSTS.get(mode, SMALL_COST)), count) == (billed, requests)
    assert KEY not in words
    assert len(bench.waits) == requests - 1
    assert all(0 <= wait <= 8 for wait in bench.waits)


WAYS = [(mode, way) for mode in FAULTS | CALLED for way in ("ask", "stream")] + [
    (mode, "stream") for mode in STREAMS | CALLED_IN_PIECES
]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("mode", "way"), WAYS)
def test_a_fault_ends_as_its_row_says(bench, mode, way, provider):
    if mode == "million_lists" and provider == "litellm":
        pytest.skip("litellm reads it whole: it takes 2 GB and minutes (SECURITY.md)")
    check(bench, mode, provider, way)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("way", ["ask", "stream"])
@pytest.mark.parametrize("mode", ["502", "reset", "html_200"])
def test_f10_under_a_cap_what_may_be_billed_is_not_repeated(bench, mode, way, provider):
    """0.5.0 made it three times, and twice passed a cap of $0.0018."""
    _, call, _ = called(bench, mode, provider, way, budget={"per_question": 0.05})
    assert (call.billed, bench.server.count()) == ("maybe", 1)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("way", ["ask", "stream"])
@pytest.mark.parametrize(("mode", "lost"), [("503", 0), ("429", 0), ("502", 1), ("reset", 1)])
def test_f01_f10_what_earlier_tries_may_cost_counts(bench, mode, lost, way, provider):
    text, call, _ = called(bench, [mode, "ok"], provider, way)
    assert (text, bench.server.count()) == ("Danube", 2)
    assert (call.cost_nano_usd is None, (call.cost_bound_nano_usd or 0) >= (1 + lost) * SMALL_COST) == (lost > 0, True)


@pytest.mark.parametrize("way", ["ask", "stream"])
@pytest.mark.parametrize(("mode", "layers"), [("bomb", 1), ("nested_bomb", 2)])
def test_f29_a_bomb_takes_no_memory(bench, mode, layers, way):
    """0.5.0: a nested bomb of 3.5 KB took 4.1 GB and half a minute; a 16 MB reply was parsed on the event loop."""
    bomb(layers)  # packed before the memory is measured
    tracemalloc.start()
    try:
        called(bench, mode, "openai_http", way)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 40_000_000
