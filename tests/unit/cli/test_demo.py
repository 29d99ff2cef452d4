"""`cascade demo`, with scripted models in the place of the real ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from cascade.api.fitting import FitResult
from cascade.cli import demo
from cascade.cli.demo import fit_requests
from cascade.demo.requests import PAIR, demo_config, demo_requests
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Request

Cli = Callable[..., Any]
TEAM = {one.message: one.team for one in demo_requests("live")}


def script(request: Request) -> Any:
    """The base is not sure of anything about returns."""
    team = TEAM[request.question.text]
    sure = 0.6 if request.model == PAIR[0] and team == "returns" else 0.99999
    return reply(json.dumps({"team": team}), input_tokens=500, output_tokens=8, logprobs=[math.log(sure)] * 4)


@pytest.fixture(scope="module")
def fitted() -> FitResult:
    """What the demo fits: the same each time, so it is fitted once."""
    return fit_requests(demo_config(*PAIR))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, fitted: FitResult) -> FakeProvider:
    provider = FakeProvider(script)
    monkeypatch.setattr("cascade.cli.demo.fit_requests", lambda _config: fitted)
    monkeypatch.setattr(demo, "Local", lambda: provider)
    monkeypatch.setattr(demo, "load_xllamacpp", lambda: None)
    monkeypatch.setattr(demo, "fetch", lambda _wanted: None)
    return provider


def test_the_wiring_alone_promises_nothing(cli, scripted, fitted):
    ran = cli("demo", "-n", "3", "--tiny")
    assert (ran.code, fitted.reports[0].lines[0] in ran.out) == (0, False)
    assert "200%" not in ran.out  # the same model, asked twice


def test_each_message_and_what_the_fit_says_are_printed(cli, scripted, fitted):
    ran = cli("demo", "-n", "3")
    words = " ".join(ran.out.split())
    assert ran.code == 0
    assert [line for line in fitted.reports[0].lines[:-1] if " ".join(line.split()) not in words] == []
    assert [number for number in ("1", "2", "3") if f"\n {number} " not in ran.out] == []


def test_more_messages_than_there_are_is_2(cli, scripted):
    ran = cli("demo", "-n", "1000")
    assert (ran.code, scripted.requests) == (2, [])


def test_an_interrupted_demo_closes_its_models(cli, scripted):
    def interrupted(_: Request) -> Any:
        raise KeyboardInterrupt

    scripted.script = interrupted
    assert cli("demo", "-n", "1").code in {1, 130}
    assert scripted.closed
