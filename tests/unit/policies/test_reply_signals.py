"""The numbers read off a reply."""

from __future__ import annotations

import math

import pytest

from cascade.matching import agreement
from cascade.policies.signals import (
    answer_tokens,
    logprob_signals,
)
from cascade.types import Token, Usage
from unit.made import completion


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
    assert agreement("Danube", [], None) is None
    assert agreement("the danube.", ["Danube", "Rhine", "Inn", "Danube"], None) == 0.5
    assert agreement("Elbe", ["Danube"], None) == 0.0
