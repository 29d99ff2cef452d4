"""What a reply says, and the numbers read off it."""

from __future__ import annotations

import math

import pytest

from cascade.strategies.signals import (
    MAX_ANSWER_CHARS,
    agreement,
    answer_tokens,
    is_answer,
    logprob_signals,
    split_reply,
    tidy,
)
from cascade.types import Token, Usage
from unit.made import completion


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("Reasoning: It flows.\nAnswer: Danube", "It flows.", "Danube"),
        ("It flows.\nFinal Answer: **Danube**.", "It flows.", "Danube"),
        ("**Answer:** Danube", "", "Danube"),
        ("- answer : Danube", "", "Danube"),
        ("Answer: Rhine\nWait.\nAnswer: Danube", "Answer: Rhine\nWait.", "Danube"),
        ("Answer:\nDanube\nbecause", "", "Danube"),
        ("Answer:", "", ""),
        ("Danube", "", "Danube"),
        ("Reasoning: Danube", "", "Danube"),
        ("It flows.\nDanube", "It flows.", "Danube"),
        ("", "", ""),
        (" \n ", "", ""),
    ],
)
def test_a_reply_is_reasoning_and_answer(text: str, reasoning: str, answer: str) -> None:
    assert split_reply(text) == (reasoning, answer)


def test_an_answer_is_tidied_and_bounded() -> None:
    assert tidy(' "`Danube`." ') == "Danube"
    assert tidy("3.5") == "3.5"
    assert tidy("x" * 5_000) == "x" * MAX_ANSWER_CHARS


@pytest.mark.parametrize("text", ["Danube", "42", "no", "日本", "None of them", "Answer B", "x"])
def test_what_can_be_an_answer(text: str) -> None:
    assert is_answer(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "...",
        "_",
        "Thought process:",
        "Reasoning",
        "Answer:",
        "Let's think step by step",
        "N/A",
        "none",
        "Unknown.",
    ],
)
def test_what_cannot_be_an_answer(text: str) -> None:
    assert not is_answer(text)


def spelled(*pairs: tuple[str, float | None]) -> tuple[Token, ...]:
    return tuple(Token(text, logprob) for text, logprob in pairs)


REPLY = spelled(("Answer", -0.1), (":", -0.2), (" Dan", -0.3), ("ube", -0.5), (".", -0.9))


def test_the_answers_own_tokens_are_told_from_the_rest() -> None:
    assert {token.text for token in answer_tokens(REPLY, "Danube")} == {" Dan", "ube"}


def test_the_last_occurrence_of_the_answer_counts() -> None:
    tokens = spelled(("Danube", -5.0), ("? ", -0.1), ("Danube", -0.2))
    assert [token.logprob for token in answer_tokens(tokens, "Danube")] == [-0.2]


@pytest.mark.parametrize(("tokens", "answer"), [((), "Danube"), (REPLY, ""), (REPLY, "Rhine")])
def test_an_answer_that_cannot_be_found_has_no_tokens(tokens: tuple[Token, ...], answer: str) -> None:
    assert not answer_tokens(tokens, answer)


def test_means_and_minima_are_in_nats_per_token() -> None:
    made = completion(tokens=REPLY, usage=Usage(10, 5))
    assert logprob_signals(made, "Danube") == {
        "reply_tokens": 5.0,
        "reply_mean_logprob": pytest.approx(-0.4),
        "reply_min_logprob": -0.9,
        "answer_mean_logprob": pytest.approx(-0.4),
        "answer_min_logprob": -0.5,
    }


@pytest.mark.parametrize("hole", [None, -math.inf])
def test_one_token_that_is_not_known_makes_the_mean_unknown(hole: float | None) -> None:
    tokens = spelled(("Dan", -0.1), ("ube", hole))
    found = logprob_signals(completion(tokens=tokens, usage=Usage(10, 2)), "Danube")
    assert {name: value for name, value in found.items() if value is not None} == {"reply_tokens": 2.0}


def test_without_logprobs_and_usage_all_is_unknown() -> None:
    found = logprob_signals(completion(usage=Usage(None, None)), "Danube")
    assert set(found.values()) == {None}


def test_agreement_is_the_share_of_earlier_answers_that_are_the_same() -> None:
    assert agreement("Danube", []) is None
    assert agreement("the danube.", ["Danube", "Rhine", "Inn", "Danube"]) == 0.5
    assert agreement("Elbe", ["Danube"]) == 0.0
