"""The base-guide strategy with a model that is asked each round what to do: LLM-as-policy."""

from __future__ import annotations

from typing import Any

import pytest
from cases import each

from cascade.errors import ConfigError
from cascade.orchestrator import Orchestrator
from cascade.plans.base import ModelUse
from cascade.plans.verdict import read_action
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Answer, Request
from unit.made import RIVER

SMALL, LARGE = ModelUse("small", 64, 0.0, 11), ModelUse("large", 32, 0.2, 22)


@each(
    "text, action",
    [
        ("1", 1.0),
        ("2", 2.0),
        ("3", 3.0),
        (" 2.", 2.0),
        ("**3** - neither", 3.0),
        ("(1)", 1.0),
        ("[2]", 2.0),
        ("1 = the small model's answer is right", 1.0),
        ("2\n", 2.0),
        ("0", None),
        ("4", None),
        ("12", None),
        ("1.5", None),
        ("2,000", None),
        ("1..2", None),
        ("Action 1", None),
        ("one", None),
        ("", None),
        ("²", None),
        (" " * 60 + "1", None),
    ],
)
def test_a_reply_is_an_action_or_none(text: str, action: float | None) -> None:
    assert read_action(text) == action


# --- live ---

MODELS = {
    "base": {"model": "small", "price": {"input": 0.1, "output": 0.4}},
    "guide": {"model": "large", "price": {"input": 1, "output": 4}},
}
LIVE = {
    "models": MODELS,
    "provider": "fake",
    "strategy": {"rounds": 3, "decider": "guide"},
    "policy": {"kind": "prompted"},
}


def live(decisions: list[str], **settings: Any) -> tuple[Answer, list[Request]]:
    left = list(decisions)

    def script(request: Request) -> Any:
        if request.purpose == "decide":
            return reply(left.pop(0) if len(left) > 1 else left[0], input_tokens=50, output_tokens=1)
        if request.purpose == "judge":
            return reply("No, Danube", p_yes=0.2, input_tokens=30, output_tokens=3)
        return reply("Answer: Rhine", input_tokens=40, output_tokens=4)

    fake = FakeProvider(script)
    with Orchestrator.from_config(LIVE | settings, providers={"fake": fake}) as orchestrator:
        return orchestrator.ask(RIVER), fake.requests


@pytest.mark.parametrize(
    ("decisions", "text", "steps", "stopped"),
    [
        (["1"], "Rhine", 1, "policy"),
        (["2"], "Danube", 1, "policy"),
        (["3", "1"], "Rhine", 2, "policy"),
        (["hm", "2"], "Danube", 2, "policy"),
        (["3"], "Danube", 3, "horizon"),
    ],
)
def test_what_it_decides_is_done(decisions: list[str], text: str, steps: int, stopped: str) -> None:
    answer, _ = live(decisions)
    assert (answer.text, answer.answers, len(answer.steps), answer.stopped) == (text, (text,), steps, stopped)


def test_the_decisions_are_paid_for() -> None:
    answer, asked = live(["3", "2"])
    assert [one.purpose for one in asked] == ["answer", "judge", "decide"] * 2
    base, judge, decide = 40 * 100 + 4 * 400, 30 * 1_000 + 3 * 4_000, 50 * 1_000 + 1 * 4_000
    assert answer.cost_nano_usd == 2 * (base + judge + decide)


def test_a_prompted_policy_without_a_model_that_decides_is_refused_with_all_else_that_is_wrong() -> None:
    config = {
        "models": {"base": "small"},
        "provider": "fake",
        "strategy": {"rounds": 2},
        "policy": {"kind": "prompted"},
    }
    with pytest.raises(ConfigError) as caught:
        Orchestrator.from_config(config)
    said = str(caught.value)
    assert "policy: prompted needs a model that decides: strategy.decider: guide" in said
    assert "models.guide: the base_guide strategy needs it" in said


def test_a_ladder_has_nobody_who_decides() -> None:
    config = {
        "models": {"a": "x"},
        "provider": "fake",
        "strategy": {"kind": "ladder", "models": ["a"]},
        "policy": {"kind": "prompted"},
    }
    with pytest.raises(ConfigError, match="prompted needs a model that decides"):
        Orchestrator.from_config(config)


@pytest.mark.parametrize("decider", ["judge", "small", 1])
def test_the_decider_is_the_base_or_the_guide(decider: Any) -> None:
    with pytest.raises(ConfigError, match="decider"):
        Orchestrator.from_config(LIVE | {"strategy": {"decider": decider}})
