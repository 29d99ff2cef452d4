"""One model's answer a step, cheapest first."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.errors import ProviderUnavailableError, RateLimitedError
from cascade.plans.base import ModelUse
from cascade.plans.presets import ladder as ladder_of
from unit.made import completion, walked

RUNGS = (ModelUse("small", 10, 0.1, 1), ModelUse("middle", 20), ModelUse("large", 30))
LADDER = ladder_of(RUNGS)
DOWN = ProviderUnavailableError("down")


def test_it_says_what_it_will_use() -> None:
    assert (ladder_of(RUNGS).horizon, ladder_of(RUNGS).models) == (3, ("small", "middle", "large"))


def test_every_rung_is_asked_the_same_as_configured() -> None:
    asked, steps = walked(LADDER, "Answer: Rhine", "Answer: Danube", "Answer: Danube")
    assert [(one.model, one.role, one.purpose, one.step) for one in asked] == [
        ("small", "small", "answer", 1),
        ("middle", "middle", "answer", 2),
        ("large", "large", "answer", 3),
    ]
    assert [one.max_tokens for one in asked] == [10, 20, 30]
    assert (asked[0].temperature, asked[0].seed, asked[0].top_logprobs) == (0.1, 1, 1)
    assert len({one.messages for one in asked}) == 1
    assert [[(made.text, made.source) for made in step.candidates] for step in steps] == [
        [("Rhine", "small")],
        [("Danube", "middle")],
        [("Danube", "large")],
    ]
    assert [step.signals["agrees_with_earlier"] for step in steps] == [None, 0.0, 0.5]


@pytest.mark.parametrize("reply", [":", completion("Answer: Dan", finish_reason="length")])
def test_a_reply_without_a_whole_answer_is_no_candidate(reply: Any) -> None:
    _, steps = walked(LADDER, reply, "Answer: Danube", "Answer: Danube")
    assert steps[0].candidates == ()
    assert steps[0].notes == ("the reply of small has no complete answer",)
    assert steps[1].signals["agrees_with_earlier"] is None


def test_a_rung_that_fails_is_climbed_over() -> None:
    _, steps = walked(LADDER, DOWN, "Answer: Danube", DOWN)
    assert [len(step.candidates) for step in steps] == [0, 1, 0]
    assert steps[0].notes == ("small failed: ProviderUnavailableError: down",)


def test_if_every_rung_failed_the_last_error_comes_out() -> None:
    with pytest.raises(RateLimitedError):
        walked(LADDER, DOWN, DOWN, RateLimitedError("slow down"))


def test_an_earlier_rung_without_an_answer_does_not_hide_the_error() -> None:
    with pytest.raises(ProviderUnavailableError):
        walked(ladder_of(RUNGS[:2]), ":", DOWN)
