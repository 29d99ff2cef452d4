"""`cascade demo`, with scripted models in the place of the real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cascade import demo as demonstration
from cascade.cli import demo
from cascade.conformal.guarantee import Guarantee
from cascade.demo import PAIR, demo_config, demo_questions, fit_ladder
from cascade.episodes.schema import request_digest
from cascade.providers.fake import FakeProvider, reply
from cascade.training.fitting import Fitted
from cascade.types import Request

Cli = Callable[..., Any]
RIGHT = {one.question.text: one.answers[0] for one in demo_questions("live")}


def script(request: Request) -> Any:
    if request.purpose == "judge":
        return reply("Yes", p_yes=0.95)
    return reply(f"Reasoning: known.\nAnswer: {RIGHT[request.question.text]}")


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    """What the demo fits: the same each time, so it is fitted once."""
    return fit_ladder(demo_config(*PAIR))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, fitted: Fitted) -> FakeProvider:
    provider = FakeProvider(script)
    monkeypatch.setattr(demonstration, "fit_ladder", lambda _config: fitted)
    monkeypatch.setattr(demo, "Local", lambda: provider)
    monkeypatch.setattr(demo, "load_xllamacpp", lambda: None)
    monkeypatch.setattr(demo, "fetch", lambda _wanted: None)
    return provider


@pytest.mark.parametrize("flags", [(), ("--tiny",)])
def test_the_demo_prints_each_question_and_a_table(cli: Cli, scripted: FakeProvider, flags: tuple[str, ...]) -> None:
    ran = cli("demo", "-n", "3", *flags)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("✓") == 6
    assert ("fitted ladder" in ran.out) is not bool(flags)
    assert "guide only" in ran.out
    assert "100%" in ran.out
    assert "made up" in ran.out
    assert ("This shows the wiring" in ran.out) is bool(flags)
    assert scripted.closed


def test_it_ends_with_a_fitted_ladder_what_it_promises_and_how_it_kept_that(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "-n", "3")
    said = " ".join(ran.out.split())
    assert "policies compared on 171 questions" in said
    assert "certified on 73 others: With probability at least 85 % over a fresh question, the answer served" in said
    assert "Alpha 0.15 was picked by looking at this very log" in said
    assert "The certificate does not count that choice" in said
    assert "fitted ladder: wrong never where the guide alone is right, on these 3 questions" in said
    assert "promised: at most 15% of fresh ones." in said


def test_the_fitted_ladder_makes_no_call_again(cli: Cli, scripted: FakeProvider) -> None:
    cli("demo", "-n", "3")
    outright = {(request.model, request.question.text) for request in scripted.requests if request.role == PAIR[1]}
    assert len(outright) == 3
    sent = [request_digest(request) for request in scripted.requests]
    assert len(sent) == len(set(sent))


def test_a_log_too_small_for_the_promise_is_said_and_the_rest_is_shown(
    cli: Cli, scripted: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "PROMISE", Guarantee("regret", 0.01, 0.01))
    monkeypatch.setattr(demonstration, "fit_ladder", fit_ladder)
    ran = cli("demo", "-n", "2")
    assert ran.code == 0
    assert "cascade fit" in ran.out
    assert "Not certified (regret, alpha 0.01, delta 0.01)" in " ".join(ran.out.split())
    assert "fitted ladder" not in ran.out
    assert "guide only" in ran.out


def test_the_demo_as_json_is_one_document(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "-n", "3", "--seed", "7", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["seed"], document["wiring_only"]) == (0, 7, False)
    assert len(document["questions"]) == 3
    assert all(one["served_right"] and one["cost_usd"] > 0 for one in document["questions"])
    assert {row["accuracy"] for row in document["rows"]} == {1.0}
    fitted = document["fitted"]
    assert fitted["chosen"] in fitted["compared"]
    assert (fitted["training"], fitted["calibrated"]["n"]) == (171, 73)
    assert fitted["calibrated"]["groups"][0]["certificate"]["kind"] == "regret"
    assert fitted["wrong_where_the_guide_is_right"] == 0
    assert [one["id"] for one in fitted["questions"]] == [one["id"] for one in document["questions"]]
    assert all(one["certified"] and one["served_right"] and one["cost_usd"] > 0 for one in fitted["questions"])
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
