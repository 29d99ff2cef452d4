"""LLM-exit: one model answers and says when to stop."""

from __future__ import annotations

from typing import Any

import pytest
from cases import each

from cascade.budget.charges import most_nano_usd
from cascade.errors import BudgetExceededError
from cascade.money import Price, usd
from cascade.orchestrator import Orchestrator
from cascade.plans.base import ModelUse
from cascade.plans.verdict import read_exit
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Answer
from unit.made import RIVER, exits, walked

SMALL = ModelUse("small", 64, 0.3, 11)


# --- what a reply says ---


@each(
    "text, says",
    [
        ("EXIT", True),
        ("[EXIT]", True),
        ("exit.", True),
        ("**Exit**", True),
        ("I would exit", True),
        ("EXIT EXIT", True),
        ("CONTINUE", False),
        ("continue, please", False),
        ("\nContinue\n", False),
        ("EXIT or CONTINUE", None),
        ("Continue. No, exit.", None),
        ("", None),
        ("yes", None),
        ("EXITED", None),
        ("discontinue", None),
        ("existing", None),
        ("…" * 200 + "EXIT", None),
    ],
)
def test_a_reply_says_stop_go_on_or_nothing(text: str, says: bool | None) -> None:
    assert read_exit(text) is says


# --- the plan ---


def test_all_rounds_are_planned_whatever_it_says() -> None:
    _, steps = walked(exits(SMALL, rounds=3), *["Answer: Danube", "EXIT"] * 3)
    assert [(step.number, step.signals["says_exit"]) for step in steps] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert [step.signals["agrees_with_earlier"] for step in steps] == [None, 1.0, 1.0]


# --- live ---

EXIT = {
    "models": {"guide": {"model": "large", "price": {"input": 1, "output": 4}}},
    "provider": "fake",
    "strategy": {"kind": "exit", "rounds": 3},
}


def live(*said: Any, **settings: Any) -> tuple[Answer, FakeProvider]:
    fake = FakeProvider({"large": list(said)})
    with Orchestrator.from_config(EXIT | settings, providers={"fake": fake}) as orchestrator:
        return orchestrator.ask(RIVER), fake


def test_it_stops_when_the_model_says_so() -> None:
    answer, fake = live("Answer: Rhine", "CONTINUE", "Answer: Danube", "EXIT")
    assert (answer.stopped, len(answer.steps), len(fake.requests)) == ("policy", 2, 4)
    assert answer.answers == ("Danube", "Rhine")
    assert [step.decision.keep for step in answer.steps if step.decision] == [(0,), (0,)]


def test_a_reply_that_says_neither_goes_on_to_the_horizon() -> None:
    answer, fake = live("Answer: Danube", "Well")
    assert (answer.stopped, len(answer.steps), len(fake.requests)) == ("horizon", 3, 6)


def test_an_answer_is_served_where_the_money_ends_at_the_decision() -> None:
    said = reply("Answer: Danube", input_tokens=200, output_tokens=256)
    _, fake = live(said, "EXIT")
    cap = most_nano_usd(fake.requests[0], Price.per_million(input=1, output=4)).nano_usd
    budget = {"per_question": str(usd(cap)), "on_exhausted": "serve_best"}
    answer, fake = live(said, budget=budget)
    assert [one.purpose for one in fake.requests] == ["answer"]
    assert (answer.text, answer.stopped) == ("Danube", "budget")
    with pytest.raises(BudgetExceededError):
        live(said, budget=budget | {"on_exhausted": "refuse"})
