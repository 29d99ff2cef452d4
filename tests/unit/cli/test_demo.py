"""`cascade demo`, with scripted models in the place of the real ones: it counts what was really served, paid and the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cascade.api.fitting import FitResult
from cascade.cli import demo
from cascade.cli.demo import fit_requests
from cascade.demo.requests import (
    ALPHA,
    EXAMPLES,
    PAIR,
    TEAMS,
    DemoRequest,
    Outcome,
    demo_config,
    demo_requests,
    drawn,
    figures,
    run_requests,
    team_of,
)
from cascade.episodes.opening import DEMO_REQUESTS, open_log
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.replay import Memo
from cascade.types import Request

Cli = Callable[..., Any]
TEAM = {entry.message: entry.team for entry in demo_requests("live")}


def script(request: Request) -> Any:
    """The base is not sure of anything about returns."""
    team = TEAM[request.question.text]
    sure = 0.6 if request.model == PAIR[0] and team == "returns" else 0.99999
    return reply(json.dumps({"team": team}), input_tokens=500, output_tokens=8, logprobs=[math.log(sure)] * 4)


@pytest.fixture(scope="module")
def fitted() -> FitResult:
    """What the demo fits: the same each time, so it is fitted once."""
    return fit_requests(CONFIG)


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


CONFIG = demo_config(*PAIR)
MESSAGES = [
    DemoRequest("m1", "live", "Where is my parcel?", "delivery"),  # the base is sure, and says the same
    DemoRequest("m2", "live", "I want my money back.", "returns"),  # the base is not sure
    DemoRequest("m3", "live", "Is it broken?", "advice"),  # the base is sure, and differs from the guide
]
ANSWERS = {"m1": ("delivery", "delivery"), "m2": ("payment", "returns"), "m3": ("repair", "advice")}


def tells(request: Request) -> Any:
    entry = next(entry for entry in MESSAGES if entry.message == request.question.text)
    base, guide = ANSWERS[entry.request_id]
    if request.model == PAIR[0]:
        sure = math.log(0.5) if entry.request_id == "m2" else math.log(0.99999)
        return reply(json.dumps({"team": base}), input_tokens=100, output_tokens=10, logprobs=[sure] * 3)
    return reply(json.dumps({"team": guide}), input_tokens=100, output_tokens=10, logprobs=[-0.1])


@pytest.fixture
def outcomes() -> list[Outcome]:
    return list(run_requests(CONFIG, None, FakeProvider(tells), MESSAGES))


def test_the_demo_set_is_whole_and_no_message_is_an_example_of_the_prompt():
    every = demo_requests()
    assert len({entry.request_id for entry in every}) == len({entry.message for entry in every}) == len(every) >= 300
    assert {entry.split for entry in every} == {"log", "live"}
    assert {entry.team for entry in demo_requests("live")} == set(TEAMS) == {team for _, team in EXAMPLES}
    assert not {entry.message for entry in every} & {message for message, _ in EXAMPLES}


def test_the_log_is_of_the_messages_that_are_to_be_logged_sent_as_the_demo_sends_them():
    by_id = {entry.request_id: entry for entry in demo_requests("log")}
    rows = list(open_log(DEMO_REQUESTS).rows())
    assert {row["episode_id"] for row in rows} == set(by_id)
    assert all(row["context"] == by_id[row["episode_id"]].chat.canonical for row in rows)
    assert {row["model"] for row in rows} == set(PAIR)


def test_a_message_is_drawn_once():
    assert len({message.request_id for message in drawn(20)}) == 20


def test_what_is_counted_is_what_was_served_paid_and_the_same(outcomes):
    assert [(team_of(outcome.answer), team_of(outcome.guide)) for outcome in outcomes] == [
        ("delivery", "delivery"),
        ("returns", "returns"),
        ("repair", "advice"),
    ]
    base, guide = 100 * 100 + 10 * 400, 100 * 1_000 + 10 * 4_000
    assert figures(outcomes) == pytest.approx(((3 * base + guide) / (3 * guide), 2 / 3, 2 / 3, 2 / 3, 1.0))


def test_an_answer_that_names_no_team_is_never_the_same(outcomes):
    silent = replace(outcomes[0].answer, text=None, answers=(), steps=())
    both = replace(outcomes[0], answer=silent, guide=silent)
    assert (team_of(silent), both.same, figures([both]).right) == (None, False, 0)


def test_a_cost_that_is_not_known_makes_no_share():
    free = {name: model.model_copy(update={"price": None}) for name, model in CONFIG.models.items()}
    unpriced = CONFIG.model_copy(update={"models": free})
    assert figures(list(run_requests(unpriced, None, FakeProvider(tells), MESSAGES))).cost_of_guide is None


def test_the_fitted_policy_keeps_its_promise_on_the_log_and_saves(fitted):
    (certificate,) = fitted.certificates
    assert (certificate.promise.kind, certificate.promise.risk, certificate.comparator) == ("agreement", ALPHA, "label")
    assert float(certificate.losses) <= ALPHA * certificate.n
    assert certificate.n == len(demo_requests("log"))
    assert (fitted.done.saving.cost_share or 1) < 0.9


def test_it_serves_certified_answers_and_makes_no_call_twice(fitted):
    provider = FakeProvider(tells)
    outcomes = list(run_requests(CONFIG, fitted.directory, Memo(provider), MESSAGES))
    assert len(provider.requests) == 6
    assert all(outcome.answer.certificate is not None and not outcome.answer.warnings for outcome in outcomes)
