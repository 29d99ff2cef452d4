"""`cascade demo`, with scripted models in the place of the real ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from cascade.cli import demo_questions as demo
from cascade.demo import questions as demonstration
from cascade.demo.questions import PAIR, demo_config, demo_questions, fit_ladder
from cascade.episodes.schema import request_digest
from cascade.guarantees.base import Guarantee
from cascade.providers.fake import FakeProvider, reply
from cascade.training.fitting import Fitted
from cascade.types import Request

Cli = Callable[..., Any]
RIGHT = {one.question.text: one.answers[0] for one in demo_questions("live")}


def script(request: Request) -> Any:
    return reply(f"Reasoning: known.\nAnswer: {RIGHT[request.question.text]}", logprobs=[-0.01])


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
    ran = cli("demo", "questions", "-n", "3", *flags)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("✓") == 9  # what was served, the base alone, the guide alone
    assert ("fitted ladder" in ran.out) is not bool(flags)
    assert "guide alone" in ran.out
    assert "100%" in ran.out
    assert "made up" in ran.out
    assert ("This shows the wiring" in ran.out) is bool(flags)
    assert scripted.closed


def test_it_begins_with_the_fitted_ladder_and_what_the_log_says_before_a_model_is_asked(
    cli: Cli, scripted: FakeProvider, fitted: Fitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.5.0: the first row came after the weights, of rounds that end at 1.65 × the guide's cost; the fit came last."""
    printed: list[str] = []
    monkeypatch.setattr(demo, "fetch", lambda _wanted: printed.append("fetched"))
    monkeypatch.setattr(demonstration, "fit_ladder", lambda _config: printed.append("fitted") or fitted)
    ran = cli("demo", "questions", "-n", "3")
    assert printed == ["fitted", "fetched"]
    said = " ".join(ran.out.split())
    first, rest = said.split("2. Serve it")
    assert "if needed: threshold on reply_mean_logprob, certified on 244 of 244 questions in " in first
    assert "With probability at least 85 % over a fresh question, the answer served" in first
    assert "Alpha 0.15 was picked by looking at this very log" in first
    assert "The certificate does not count that choice" in first
    rows = {row.way: row for row in demonstration.on_the_log(fitted)}
    judged, outright = rows[demonstration.JUDGED], rows[demonstration.GUIDE_ALONE]
    times = (judged.cost_usd or 0) / (outright.cost_usd or 1)
    assert f"right on {judged.right:.0%} for {times:.2f} × the guide's cost" in first
    assert "The fitted ladder was wrong never where the guide alone is right, on these 3 questions" in rest
    assert "it promised at most 15% of fresh ones." in rest


def test_no_call_is_made_twice(cli: Cli, scripted: FakeProvider) -> None:
    cli("demo", "questions", "-n", "3")
    outright = {(request.model, request.question.text) for request in scripted.requests if request.role == PAIR[1]}
    assert len(outright) == 3
    assert all(request.purpose == "answer" for request in scripted.requests)
    sent = [request_digest(request) for request in scripted.requests]
    assert len(sent) == len(set(sent)) == 6


def test_a_promise_that_the_log_is_too_small_for_asks_the_guide_alone(
    cli: Cli, scripted: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.5.0 said "Not certified" and went on without a fitted ladder; the guide alone keeps any promise of regret."""
    monkeypatch.setattr(demonstration, "PROMISE", Guarantee("regret", 0.01, 0.01))
    monkeypatch.setattr(demonstration, "fit_ladder", fit_ladder)
    ran = cli("demo", "questions", "-n", "2")
    assert ran.code == 0
    said = " ".join(ran.out.split())
    assert "if needed: the reference alone, certified on 244 of 244 questions" in said
    assert re.search(r"fitted ladder │ 88% │ 1.00 │ [$0-9.]+ │ 1.00", said), said


def test_the_demo_as_json_is_one_document(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "questions", "-n", "3", "--seed", "7", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["seed"], document["wiring_only"]) == (0, 7, False)
    assert len(document["questions"]) == 3
    served = [one["answers"]["fitted ladder"] for one in document["questions"]]
    assert all(one["right"] and one["certified"] and one["cost_usd"] > 0 for one in served)
    assert [row["way"] for row in document["rows"]] == [
        *("fitted ladder", "ladder, set by hand", "base alone", "guide alone")
    ]
    assert {(row["right"], row["questions"]) for row in document["rows"]} == {(1.0, 3)}
    fitted = document["fitted"]
    assert fitted["chosen"] in fitted["compared"]
    assert (fitted["training"], fitted["calibrated"]["n"]) == (0, 244)
    assert fitted["calibrated"]["segments"][0]["certificate"]["kind"] == "regret"
    assert fitted["on_the_log"][0]["way"] == "fitted ladder"
    assert fitted["wrong_where_the_guide_is_right"] == 0
    again = json.loads(cli("demo", "questions", "-n", "3", "--seed", "7", "--json").out)
    assert [one["id"] for one in again["questions"]] == [one["id"] for one in document["questions"]]


def test_more_questions_than_there_are_is_2(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "questions", "-n", "100000")
    assert (ran.code, scripted.requests) == (2, [])
    assert "ask for at most that many" in ran.err


def test_an_interrupted_demo_closes_its_models(cli: Cli, scripted: FakeProvider) -> None:
    def interrupted(_: Request) -> Any:
        raise KeyboardInterrupt

    scripted.script = interrupted
    assert cli("demo", "questions", "-n", "1").code in {1, 130}
    assert scripted.closed
