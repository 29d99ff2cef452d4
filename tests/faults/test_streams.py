"""F26-F29: an answer comes in pieces, or it comes in masses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from steps import superlinear

from cascade.errors import StreamInterruptedError
from cascade.types import Answer, TextDelta

from .bench import PROVIDERS, SMALL_COST, Bench
from .bodies import QUESTION, chat, choice

PARTIAL = "Reasoning: It is on t"
"""The first three pieces of seven characters."""


def _told(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.role != "guide")


def _streamed(bench: Bench, mode: str, provider: str = "openai_http") -> tuple[str, Answer]:
    """Return what was written on the way, and the answer."""
    *events, answer = bench.alone(mode, provider).stream(QUESTION, raw=True)
    assert isinstance(answer, Answer)
    return _told(events), answer


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["stream_reset", "stream_no_finish", "stream_finish_error", "stream_error_in_choice"])
def test_f26_f27_what_came_of_a_broken_stream_is_kept(bench, mode, provider):
    with pytest.raises(StreamInterruptedError) as caught:
        list(bench.alone(mode, provider).stream(QUESTION))
    assert caught.value.partial == PARTIAL


def test_f26_the_part_that_came_stands_in_the_trace(bench):
    bench.server.modes["small"] = "stream_reset"
    *_, answer = bench.served().stream(QUESTION)
    assert isinstance(answer, Answer)
    assert answer.text == "Danube"
    assert PARTIAL in json.dumps(answer.to_dict())


@pytest.mark.parametrize("mode", ["stream_text_after_finish", "stream_text_after_done"])
def test_f27_what_comes_after_the_end_of_a_stream_is_not_served(bench, mode):
    told, answer = _streamed(bench, mode)
    assert "Elbe" not in told
    assert answer.text == "Danube"
    assert answer.cost_nano_usd == SMALL_COST


def test_f30_a_second_choice_in_a_stream_is_not_mixed_in(bench):
    told, answer = _streamed(bench, "stream_two_choices")
    assert "Elbe" not in told
    assert answer.text == "Danube"


def test_f29_every_piece_of_a_stream_can_be_shown(bench):
    told, answer = _streamed(bench, "stream_odd_characters")
    assert b"\x00" not in told.encode()
    json.dumps(answer.to_dict(), ensure_ascii=False).encode()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f29_the_question_may_hold_anything(bench, provider):
    assert bench.served(provider).ask("Which \ud800 river \x00 \u202e?").text == "Danube"


@pytest.mark.parametrize("mode", ["huge", "newlines", "token_marks"])
def test_f29_a_huge_text_of_the_base_leaves_an_answer(bench, mode):
    assert bench.answer(mode).text


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        ("", "\n"), ("", "final\n"), ("final ", " "), ("", "-"), ("reasoning", ":"), ("answer", "*"), ("Answer: ", '"*'),
        ("", "a "), ("", "<|"), ("No ", "the answer is "), ("Yes", " "), ("", "{"), ("", "\u200b"),
    ],
)  # fmt: skip
def test_f29_no_reader_of_text_is_slow(bench, start, piece):
    """Base and guide both say it; nothing that reads text may be superlinear (ReDoS)."""
    said = [""]
    orchestrator, _ = bench.scripted(lambda _request: chat(choice(said[0])))

    def ask(text: str) -> None:
        said[0] = f"{start}{text}"
        assert orchestrator.ask(QUESTION).text

    ask(piece * (200_000 // len(piece)) + "\nAnswer: Danube")
    assert superlinear(ask, piece, "\nAnswer: Danube") == []
