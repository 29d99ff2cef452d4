"""`cascade demo`, with scripted models in the place of the real ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from cascade.cli import demo
from cascade.demo import requests as demonstration
from cascade.demo.pair import PAIR, demo_config
from cascade.demo.requests import demo_requests, fit_requests
from cascade.providers.fake import FakeProvider, reply
from cascade.training.fitting import Fitted
from cascade.types import Request

Cli = Callable[..., Any]
TEAM = {one.message: one.team for one in demo_requests("live")}


def script(request: Request) -> Any:
    """The base is not sure of anything about returns."""
    team = TEAM[request.question.text]
    sure = 0.6 if request.model == PAIR[0] and team == "returns" else 0.99999
    return reply(json.dumps({"team": team}), input_tokens=500, output_tokens=8, logprobs=[math.log(sure)] * 4)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    """What the demo fits: the same each time, so it is fitted once."""
    return fit_requests(demo_config(*PAIR))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, fitted: Fitted) -> FakeProvider:
    provider = FakeProvider(script)
    monkeypatch.setattr(demonstration, "fit_requests", lambda _config: fitted)
    monkeypatch.setattr(demo, "Local", lambda: provider)
    monkeypatch.setattr(demo, "load_xllamacpp", lambda: None)
    monkeypatch.setattr(demo, "fetch", lambda _wanted: None)
    return provider


def test_it_ends_with_one_sentence_of_cost_sameness_and_promise(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "-n", "40")
    assert (ran.code, ran.err) == (0, "")
    said = " ".join(ran.out.split())
    unsure = sum(team == "returns" for team in TEAM.values())
    share = (40 * 0.1 + unsure) / 40
    assert f"{100 * share:.0f} % of the guide's cost, 100 % the same answer; promised: at most 5 % different." in said
    assert ran.out.count("guide; base 60.0 % sure") == unsure
    assert ran.out.count("base, 100.0 % sure") == 40 - unsure
    assert ran.out.count("same ") >= 40
    assert "made up" in said
    assert scripted.closed


def test_the_fit_comes_before_the_weights_and_says_the_rule(
    cli: Cli, scripted: FakeProvider, fitted: Fitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(demo, "fetch", lambda _wanted: order.append("fetched"))
    monkeypatch.setattr(demonstration, "fit_requests", lambda _config: order.append("fitted") or fitted)
    ran = cli("demo", "-n", "3")
    assert order == ["fitted", "fetched"]
    first = " ".join(ran.out.split("2. Serve")[0].split())
    assert (
        "on at least 95 % of such messages, the team is the one that the guide would name (with 90 % confidence)"
        in first
    )
    assert f"the base decides where it is {100 * (demonstration.needed(fitted) or 0):.1f} % sure or more" in first


def test_the_wiring_alone_promises_nothing(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "-n", "3", "--tiny")
    said = " ".join(ran.out.split())
    assert ran.code == 0
    assert "100 % the same answer." in said
    assert "promised" not in said
    assert "no policy is fitted" in said


def test_the_demo_as_json_is_one_document(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "-n", "5", "--seed", "7", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["seed"], document["wiring_only"], document["same_as_guide"]) == (0, 7, False, 1.0)
    assert all(one["certified"] and one["cost_usd"] > 0 and one["same"] for one in document["messages"])
    assert document["fitted"]["calibrated"]["segments"][0]["certificate"]["kind"] == "agreement"
    assert (document["right"], document["guide_right"]) == (1.0, 1.0)


def test_more_messages_than_there_are_is_2(cli: Cli, scripted: FakeProvider) -> None:
    ran = cli("demo", "-n", "1000")
    assert (ran.code, scripted.requests) == (2, [])
    assert "ask for at most that many" in ran.err


def test_an_interrupted_demo_closes_its_models(cli: Cli, scripted: FakeProvider) -> None:
    def interrupted(_: Request) -> Any:
        raise KeyboardInterrupt

    scripted.script = interrupted
    assert cli("demo", "-n", "1").code in {1, 130}
    assert scripted.closed
