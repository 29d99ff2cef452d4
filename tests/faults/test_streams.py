"""F26-F29: an answer comes in pieces, or it comes in masses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from steps import superlinear

from cascade.errors import BadResponseError, StreamInterruptedError
from cascade.matching.text import normalize_answer
from cascade.types import Answer, TextDelta

from .bench import PROVIDERS, SMALL_COST, Bench, needs_litellm
from .bodies import QUESTION, chat, choice

PARTIAL = "Reasoning: It is on t"
"""The first three pieces of seven characters."""
USAGES = [
    "stream_usage_doubled",
    "ok",
    "stream_usage_with_choices",
    "stream_usage_before_finish",
    "stream_empty_chunks",
]


def _told(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.role != "guide")


def _streamed(bench: Bench, mode: str, provider: str = "openai_http") -> tuple[str, Answer]:
    """Return what was written on the way, and the answer."""
    *events, answer = bench.alone(mode, provider).stream(QUESTION, raw=True)
    assert isinstance(answer, Answer)
    return _told(events), answer


def _interrupted(bench: Bench, mode: str, provider: str) -> None:
    orchestrator = bench.alone(mode, provider)
    told: list[Any] = []
    with pytest.raises(StreamInterruptedError) as caught:
        told.extend(orchestrator.stream(QUESTION))
    error = caught.value
    assert error.partial == PARTIAL
    assert bench.server.count() == 1, "text was already shown, so there is no second try"
    (call,) = error.calls
    assert (call.billed, call.cost_nano_usd) == ("maybe", None)
    assert call.cost_bound_nano_usd > 0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f26_a_stream_that_is_reset_keeps_what_came(bench: Bench, provider: str) -> None:
    _interrupted(bench, "stream_reset", provider)


def test_f26_the_part_that_came_stands_in_the_trace(bench: Bench) -> None:
    bench.server.modes["small"] = "stream_reset"
    *_, answer = bench.served().stream(QUESTION)
    assert isinstance(answer, Answer)
    assert answer.text == "Danube"
    assert PARTIAL in json.dumps(answer.to_dict())


async def test_f26_without_blocking(bench: Bench) -> None:
    async with bench.alone("stream_reset") as orchestrator:
        with pytest.raises(StreamInterruptedError) as caught:
            [event async for event in orchestrator.astream(QUESTION)]
    assert caught.value.partial == PARTIAL


def test_f26_an_error_inside_a_stream_interrupts_it(bench: Bench) -> None:
    with pytest.raises(StreamInterruptedError, match="overloaded") as caught:
        list(bench.alone("stream_error_inside").stream(QUESTION))
    assert caught.value.partial == PARTIAL[:14]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f27_a_stream_that_just_ends_was_cut(bench: Bench, provider: str) -> None:
    _interrupted(bench, "stream_no_finish", provider)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["stream_finish_error", "stream_error_in_choice"])
def test_f27_a_stream_that_ends_with_an_error_was_cut(bench: Bench, mode: str, provider: str) -> None:
    _interrupted(bench, mode, provider)


@pytest.mark.parametrize("mode", ["stream_text_after_finish", "stream_text_after_done"])
def test_f27_what_comes_after_the_end_of_a_stream_is_not_served(bench: Bench, mode: str) -> None:
    told, answer = _streamed(bench, mode)
    assert "Elbe" not in told
    assert answer.text == "Danube"
    assert answer.cost_nano_usd == SMALL_COST


@pytest.mark.parametrize(
    ("mode", "provider"),
    [
        *((mode, PROVIDERS[0]) for mode in USAGES),
        *(pytest.param(mode, "litellm", marks=needs_litellm) for mode in USAGES[:3]),
    ],
)
def test_f28_usage_wherever_it_stands_is_counted_once(bench: Bench, mode: str, provider: str) -> None:
    told, answer = _streamed(bench, mode, provider)
    assert told == "Reasoning: It is on the river.\nAnswer: Danube"
    assert answer.text == "Danube"
    assert answer.cost_nano_usd == SMALL_COST


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f20_a_stream_without_usage_is_estimated(bench: Bench, provider: str) -> None:
    _, answer = _streamed(bench, "stream_no_usage", provider)
    completion = answer.calls[0].completion
    assert completion is not None
    assert completion.usage.estimated
    assert answer.cost is None
    assert answer.cost_bound is not None


def test_f30_a_second_choice_in_a_stream_is_not_mixed_in(bench: Bench) -> None:
    told, answer = _streamed(bench, "stream_two_choices")
    assert "Elbe" not in told
    assert answer.text == "Danube"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["odd_characters", "odd_names", "newlines"])
def test_f29_every_text_can_be_stored(bench: Bench, mode: str, provider: str) -> None:
    answer = bench.alone(mode, provider).ask(QUESTION)
    assert answer.text is not None
    assert normalize_answer(answer.text).startswith("danube")
    stored = json.dumps(answer.to_dict(), ensure_ascii=False).encode()
    assert b"\\u0000" not in stored


def test_f29_every_piece_of_a_stream_can_be_shown(bench: Bench) -> None:
    told, answer = _streamed(bench, "stream_odd_characters")
    assert b"\x00" not in told.encode()
    json.dumps(answer.to_dict(), ensure_ascii=False).encode()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f29_the_question_may_hold_anything(bench: Bench, provider: str) -> None:
    assert bench.served(provider).ask("Which \ud800 river \x00 \u202e?").text == "Danube"


def test_f29_ten_megabytes_are_refused_before_they_are_parsed(bench: Bench) -> None:
    """0.5.0 read and parsed any reply of up to 16 MiB, whatever was asked for."""
    assert "is longer than" in str(bench.error("huge", BadResponseError))


@pytest.mark.parametrize("mode", ["huge", "newlines", "token_marks"])
def test_f29_a_huge_text_of_the_base_leaves_an_answer(bench: Bench, mode: str) -> None:
    assert bench.answer(mode).text


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        ("", "\n"), ("", "final\n"), ("final ", " "), ("", "-"), ("reasoning", ":"), ("answer", "*"), ("Answer: ", '"*'),
        ("", "a "), ("", "<|"), ("No ", "the answer is "), ("Yes", " "), ("", "{"), ("", "\u200b"),
    ],
)  # fmt: skip
def test_f29_no_reader_of_text_is_slow(bench: Bench, start: str, piece: str) -> None:
    """Base and guide both say it; nothing that reads text may be superlinear (ReDoS)."""
    said = [""]
    orchestrator, _ = bench.scripted(lambda _request: chat(choice(said[0])))

    def ask(text: str) -> None:
        said[0] = f"{start}{text}"
        assert orchestrator.ask(QUESTION).text

    ask(piece * (200_000 // len(piece)) + "\nAnswer: Danube")
    assert superlinear(ask, piece, "\nAnswer: Danube") == []
