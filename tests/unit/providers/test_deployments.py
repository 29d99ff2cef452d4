"""Several deployments of one model: shares, conversations that stay, what is passed over, what is never asked twice."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cascade import errors
from cascade.chat import ChatRequest
from cascade.config import load
from cascade.factory import build_fields, build_guards, endpoints
from cascade.modes.state import CascadeState, signs_of
from cascade.orchestrator import Orchestrator
from cascade.providers.deployments import ranked
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.guard import Guard, Pace, sort_of
from cascade.providers.openai_http import OpenAIHTTP
from cascade.resilience.event_loop import Deadline
from cascade.resilience.health import FAILURES, FIRST_PAUSE_S, SHARED_CAPACITY, Health
from cascade.server.metrics import Metrics
from cascade.serving.conditions import made_for
from cascade.types import Question, Request
from unit.builders import request
from unit.modes.test_store import CERTIFICATE, promoted

WEIGHTS = {"east": 3.0, "west": 1.0, "north": 1.0}
DOWN, SLOW = errors.ProviderUnavailableError("down"), errors.RateLimitedError("slow down", retry_after_s=30.0)
FREE = [DOWN, errors.RateLimitedError("slow"), SLOW, errors.AuthenticationError("key"), errors.QuotaError("no credit")]
MAYBE = [errors.ProviderTimeoutError("x"), errors.BadResponseError("x"), errors.StreamInterruptedError("x")]


def chat(*texts: Any, group: str | None = None) -> Request:
    roles = zip(("system", "user", "assistant", "user"), texts, strict=False)
    body = ChatRequest([{"role": role, "content": text} for role, text in roles], group=group)
    return request(chat=body, question=Question.of_chat(body))


def order(request: Request, weights: Any = WEIGHTS) -> list[str | None]:
    return [at.deployment for at in ranked(request, weights)]


ALL = [chat("Be kind.", f"conversation {number}") for number in range(2_000)]
HOME = next(conversation for conversation in ALL if order(conversation) == ["east", "west", "north"])


def test_each_deployment_has_its_share_and_one_that_goes_moves_its_own_conversations_which_stay_together():
    first = Counter(order(call)[0] for call in ALL)
    for name, weight in WEIGHTS.items():
        assert abs(first[name] / 2_000 - weight / 5) < 4 * math.sqrt(weight / 5 * (1 - weight / 5) / 2_000)
    assert all(order(call, {"east": 3, "north": 1}) == [name for name in order(call) if name != "west"] for call in ALL)
    after = Counter(order(call)[1] for call in ALL if order(call)[0] == "west")
    assert abs(after["east"] / first["west"] - 0.75) < 4 * math.sqrt(0.75 * 0.25 / first["west"])
    marked = [{"type": "text", "text": "conversation 7", "cache_control": {"type": "ephemeral"}}]
    turns = [chat("Be kind.", "conversation 7", "Hello", f"turn {turn}") for turn in range(50)]
    assert {order(call)[0] for call in (*turns, chat("Be kind.", marked))} == {order(ALL[7])[0]}
    assert len({order(chat("Be kind.", f"question {number}", group="g"))[0] for number in range(50)}) == 1


class Sites(FakeProvider):
    def __init__(self, failing: Any, opening: str = "") -> None:
        super().__init__(lambda request: failing.get(request.deployment) or reply("Danube"), keep=100_000)
        self.failing, self.opening, self.timeouts = failing, opening, list[float]()

    async def stream(self, request: Request, timeout_s: float) -> Any:
        self.timeouts.append(timeout_s)
        if self.opening and request.deployment in self.failing:
            yield {"choices": [{"index": 0, "delta": {"content": self.opening}}]}
        async for chunk in super().stream(request, timeout_s):
            yield chunk

    @property
    def order(self) -> list[str | None]:
        return [request.deployment for request in self.requests]


def guarded(failing: Any, opening: str = "", **settings: Any) -> tuple[Guard, Sites, Any]:
    sites, now = Sites(failing, opening), [0.0]
    health = {f"small at {name}": Health(shared=True, clock=lambda: now[0]) for name in WEIGHTS}
    settings = {"deployments": {"small": WEIGHTS}, "shared": True, "health": health, **settings}
    return Guard(sites, sleep=lambda _: asyncio.sleep(0), **settings), sites, now


async def ask(guard: Guard, call: Request = HOME, *, stream: bool = False) -> Any:
    never = Deadline()
    return [event async for event in guard.stream(call, never)][-1] if stream else await guard.complete(call, never)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("error", FREE + MAYBE)
async def test_the_next_deployment_answers_for_one_that_fails_but_none_is_billed_twice_under_a_cap(
    error, capped, stream
):
    (guard, sites, _), request, billed = guarded({"east": error}), HOME._replace(at_most_once=capped), error in MAYBE
    if capped and billed:
        with pytest.raises(type(error)):
            await ask(guard, request, stream=stream)
        assert sites.order == ["east"]
        return
    answer = await ask(guard, request, stream=stream)
    assert (answer.text, answer.deployment, answer.maybe_billed) == ("Danube", "west", billed)
    assert answer.notes[0].endswith(f"{type(error).__name__} at east")
    assert (sites.order, guard.retried["small"]) == (["east", "west"], 1)
    assert guard.tried == {("small", "east", type(error).__name__): 1, ("small", "west", "answered"): 1}


@pytest.mark.parametrize("way", ["request", "text", "third"])
async def test_errors_of_the_request_and_text_that_was_shown_end_a_call_and_so_does_the_third_try(way):
    error = {"request": errors.BadRequestError("no"), "text": errors.StreamInterruptedError("x")}.get(way, DOWN)
    failing, opening = dict.fromkeys(WEIGHTS, error), "Dan" if way == "text" else ""
    guard, sites, _ = guarded(failing, opening, deployments={"small": {**WEIGHTS, "south": 1e-9}})
    with pytest.raises(type(error)) as caught:
        await ask(guard, stream=True)
    assert (sites.order, caught.value.deployment) == ([*WEIGHTS][: 3 if way == "third" else 1], sites.order[-1])


async def test_an_open_circuit_is_passed_over_until_it_has_rested_and_only_all_of_them_are_an_outage():
    guard, sites, now = guarded(failing := {"east": FREE[-2]})  # its key
    answers = [(await ask(guard, request)).deployment for request in (*[HOME] * 2 * FAILURES, *ALL)]
    assert sites.order.count("east") == FAILURES
    assert answers[2 * FAILURES :] == [next(name for name in order(request) if name != "east") for request in ALL]
    failing["east"], now[0] = None, FIRST_PAUSE_S
    assert [(await ask(guard, request)).deployment for request in ALL] == [order(request)[0] for request in ALL]
    failing.update(dict.fromkeys(WEIGHTS, DOWN))
    for _ in range(FAILURES + 1):
        calls = len(sites.requests)
        with pytest.raises(errors.ProviderUnavailableError) as caught:
            await ask(guard)
    assert (len(sites.requests), caught.value.retry_after_s, caught.value.billed) == (calls, FIRST_PAUSE_S, "no")


async def test_one_that_names_a_time_is_asked_last_until_then_and_another_takes_no_token_of_the_retries():
    guard, sites, now = guarded({"east": SLOW})
    for now[0] in (0.0, 0.0, 29.0, 31.0):
        await ask(guard)
    assert sites.order == ["east", "west", "west", "west", "east", "west"]
    guard, _, _ = guarded(failing := dict[str, Any]())
    for number in range(4 * SHARED_CAPACITY):  # never so often in a row that the circuit opens
        failing |= {"east": DOWN if number % 2 else None}
        assert (await ask(guard)).deployment == ("west" if number % 2 else "east")


async def test_each_deployment_has_the_time_of_a_call_and_is_sent_what_it_takes():
    guard, sites, _ = guarded({"east": DOWN}, per_call_s=1e6, pace=Pace(1e6, 1e6, 3e3))
    guard._refused[sort_of(HOME._replace(deployment="east"))] = frozenset({"seed"}), math.inf
    guard._unread["small at west", None] = None
    assert (await ask(guard, stream=True)).deployment == "north"  # west refused the history of this conversation
    assert [request.without for request in sites.requests] == [("seed",), ()]
    assert [timeout_s > 9e5 for timeout_s in sites.timeouts] == [True, False]  # within the time of a whole stream


BASE = {"model": (MODEL := "openai/gpt-4o-mini"), "price": {"input": 1, "output": 2}, "api_base": "http://west/v1"}
TWO = {"east": {"api_base": "http://east/v1", "api_key_env": "KEY_EAST", "weight": 3}, "west": {"model": "org/mini"}}
OPENAI = {name: {"api_base": "https://api.openai.com/v1", "api_key_env": name} for name in ("A", "B")}
ALL_WRONG = [
    ({"a b": {}, "east": {"weight": 0, "price": {"input": 1}}}, ["a b.[key]", "east.weight", "east.price"]),
    ({"one": {}, "two": {"weight": 2}, "large": {"model": "openai/gpt-4o"}}, ["two", "large.model"]),
]


def config(deployments: Any = TWO, entry: Any = None, **more: Any) -> Any:
    models = {"only": {**BASE, "deployments": deployments, **(entry or {})}, "spare": {**BASE, "model": "spare"}}
    return {"models": models, "provider": "fake", "strategy": {"kind": "ladder", "models": ["only"]}, **more}


def test_a_deployment_has_its_own_address_key_and_name_and_the_model_those_it_leaves_out(monkeypatch):
    monkeypatch.setenv("KEY_EAST", "sk-east")
    by_name = endpoints(read := load(config(provider="openai_http")), "openai_http", [read.models["only"]])
    assert {name: (at.base_url, at.api_key, at.model) for name, at in by_name.items()} == {
        f"{MODEL} at east": ("http://east/v1", "sk-east", MODEL),
        f"{MODEL} at west": ("http://west/v1", None, "org/mini"),
    }
    exchange = OpenAIHTTP(by_name)._exchange(request(model=MODEL, deployment="west"), 1.0, stream=False)
    assert (exchange.url, b'"model": "org/mini"' in exchange._value) == ("http://west/v1/chat/completions", True)
    for deployments, knows in ((TWO, {"user"}), (OPENAI, {"user", "store"})):
        both = load(config(deployments, provider="openai_http"))
        fields = build_fields(both, build_guards(both, {})[0], both.prices()).models[MODEL]
        assert (fields.knows("") & {"user", "store"}) == knows
    shown = [made_for(load(config(TWO | more)))["served_by"][MODEL]["address"] for more in ({}, {"west": {}})]
    assert shown == ["http://east/v1, http://west/v1 as org/mini", "http://east/v1, http://west/v1"]


def test_all_that_is_wrong_with_deployments_is_said_at_once():
    for deployments, named in ALL_WRONG:
        with pytest.raises(errors.ConfigError) as caught:
            load(config(deployments, {"price": None}))
        paths = [problem.partition(": ")[0] for problem in caught.value.problems]
        assert paths == [f"models.only.deployments.{name}" for name in named]


async def test_one_deployment_down_is_counted_and_paid_once_and_both_down_are_a_fallback():
    failing, document = (
        {"east": DOWN},
        config(entry={"fallbacks": ["spare"]}, budget={"caps": [{"usd": 1.0}]}, traces="off"),
    )
    async with Orchestrator.from_config(document, providers={"fake": Sites(failing)}) as served:
        for guard in served.runtime.guards.values():
            guard.shared = True
        answers = [await served.achat([{"role": "user", "content": f"conversation {n}"}]) for n in range(60)]
        assert {answer.calls[-1].completion.deployment for answer in answers if answer.calls[-1].completion} == {"west"}
        spent = [account.spent for _, account in served.runtime.balances().values()]
        assert spent == [sum(answer.cost_nano_usd or 0 for answer in answers)]
        text, name = await Metrics().text(served.runtime), f'model="{MODEL}"'
        assert f'cascade_deployment_open{{{name},deployment="east"}} 1' in text
        assert f'cascade_deployment_tries_total{{{name},deployment="west",outcome="answered"}} 60' in text
        assert (f"cascade_breaker_open{{{name}}} 0" in text, served.runtime.models_state) == (True, "degraded")
        failing["west"] = DOWN
        assert (await served.achat([{"role": "user", "content": "x"}])).calls[-1].request.model == "spare"


def test_names_and_builds_are_known_by_deployment():
    state = CascadeState("c")
    for site, build in (("east", "fp_1"), ("west", "fp_2"), ("east", "fp_1")):
        state = state.replied("small", "small", build, site, "now")
    assert (state.era, state.replied("small", "small", "fp_2", "east", "now").era) == (0, 1)  # east had another
    seen = {**signs_of("small", "small", "fp_1", "east"), **signs_of("small", "small", "fp_1")}
    certified = replace(CERTIFICATE, signs={sign: (value,) for sign, value in seen.items()})
    for build, mode in (("fp_1", "enforce"), ("fp_2", "fallback")):  # no certifying request reached west
        under = replace(promoted(state), in_force=certified).replied("small", "small", build, "west", "now")
        assert under.mode == mode
