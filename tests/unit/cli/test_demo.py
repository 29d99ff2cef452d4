"""`cascade demo`, with scripted models in the place of the real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cascade.cli import demo
from cascade.demo import demo_questions
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Request

Cli = Callable[..., Any]
RIGHT = {one.question.text: one.answers[0] for one in demo_questions("live")}


def script(request: Request) -> Any:
    if request.purpose == "judge":
        return reply("Yes", p_yes=0.95)
    return reply(f"Reasoning: known.\nAnswer: {RIGHT[request.question.text]}")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    provider = FakeProvider(script)
    monkeypatch.setattr(demo, "Local", lambda: provider)
    monkeypatch.setattr(demo, "load_xllamacpp", lambda: None)
    monkeypatch.setattr(demo, "fetch", lambda _wanted: None)
    return provider


@pytest.mark.parametrize("flags", [(), ("--tiny",)])
def test_the_demo_prints_each_question_and_a_table(cli: Cli, scripted: FakeProvider, flags: tuple[str, ...]) -> None:
    ran = cli("demo", "-n", "3", *flags)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("✓") == 6
    assert "guide only" in ran.out
    assert "100%" in ran.out
    assert "made up" in ran.out
    assert ("This shows the wiring" in ran.out) is bool(flags)
    assert scripted.closed


def test_the_demo_as_json_is_one_document(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "-n", "3", "--seed", "7", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["seed"], document["wiring_only"]) == (0, 7, False)
    assert len(document["questions"]) == 3
    assert all(one["served_right"] and one["cost_usd"] > 0 for one in document["questions"])
    assert {row["accuracy"] for row in document["rows"]} == {1.0}
    again = json.loads(cli("demo", "-n", "3", "--seed", "7", "--json").out)
    assert [one["id"] for one in again["questions"]] == [one["id"] for one in document["questions"]]


def test_more_questions_than_there_are_is_2(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "-n", "100000")
    assert (ran.code, scripted.requests) == (2, [])
    assert "ask for at most so many" in ran.err


def test_an_interrupted_demo_closes_its_models(cli: Cli, scripted: FakeProvider) -> None:
    def interrupted(_: Request) -> Any:
        raise KeyboardInterrupt

    scripted.script = interrupted
    assert cli("demo", "-n", "1").code in {1, 130}
    assert scripted.closed
