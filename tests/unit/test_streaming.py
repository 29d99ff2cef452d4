"""Streams show the answers of the models, and everything that they write where that is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.orchestrator import Orchestrator
from cascade.plans.reply import AnswerText, split_reply
from cascade.providers.fake import FakeProvider, reply
from cascade.types import TextDelta
from unit.made import TWO_MODELS

FORM = "Reasoning: It flows there.\nAnswer: The Danube"


def wired(base: Any, guide: Any, **settings: Any) -> Orchestrator:
    config = TWO_MODELS | {"strategy": {"kind": "base_guide", "rounds": 1}} | settings
    return Orchestrator.from_config(config, providers={"fake": FakeProvider({"small": [base], "large": [guide]})})


def shown(events: Any) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_a_stream_shows_the_answer_alone_unless_asked() -> None:
    """0.5.0: "Reasoning: It flows there. Answer: The Danube", and the guide's "Yes" behind it."""
    orchestrator = wired(FORM, reply("Yes", p_yes=0.99))
    assert shown([event async for event in orchestrator.astream("Which river?")]) == "The Danube"
    raw = shown([event async for event in orchestrator.astream("Which river?", raw=True)])
    assert raw == f"{FORM}Yes"


def test_so_does_a_blocking_one() -> None:
    orchestrator = wired(FORM, reply("Yes", p_yes=0.99))
    assert shown(orchestrator.stream("Which river?")) == "The Danube"
    assert shown(orchestrator.stream("Which river?", raw=True)) == f"{FORM}Yes"


@pytest.mark.parametrize(
    ("said", "finish", "text"),
    [
        ("The Danube, of course.", "stop", "The Danube, of course."),
        ("Reasoning: It flows there.\nThe Danube", "stop", "The Danube"),
        ("Reasoning: It flows and flows", "length", ""),
        ("**Answer:**\n- Danube\n- Rhine", "stop", "- Danube\n- Rhine"),
        ("A", "stop", "A"),
        ("", "length", ""),
    ],
)
def test_a_reply_in_another_form_is_shown_as_it_is_read(said: str, finish: str, text: str) -> None:
    orchestrator = wired(reply(said, finish_reason=finish), reply("Yes", p_yes=0.99))
    events = list(orchestrator.stream("Which river?"))
    assert "".join(e.text for e in events if isinstance(e, TextDelta) and e.role == "base").strip() == text


PIECES = st.sampled_from(["Reasoning:", "Answer:", "\n", " ", "so it is", "Danube", "**", "- ", "an", "reason", "1"])


@given(st.lists(PIECES, max_size=12).map("".join), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_however_a_reply_is_cut_the_same_is_shown(text: str, sizes: list[int]) -> None:
    def run(cuts: list[int]) -> str:
        passing, said, place = AnswerText(), "", 0
        while place < len(text):
            size = cuts[place % len(cuts)]
            said += passing.add(text[place : place + size])
            place += size
        return said + passing.rest()

    assert run([1]) == run(sizes)


@given(st.text(alphabet="abc xyz.", max_size=20), st.text(alphabet="defg hij\n-", max_size=30))
def test_in_the_form_that_is_asked_for_the_answer_is_shown_whole(reasoning: str, answer: str) -> None:
    text = f"Reasoning: {reasoning}\nAnswer: {answer}"
    passing = AnswerText()
    said = "".join(passing.add(char) for char in text) + passing.rest()
    assert said.strip() == answer.strip()
    assert "\n" not in answer.strip() or split_reply(text)[1].strip() == said.strip()
