"""The configuration wired together: ways to ask, what is asked, batches, closing, who is asked where and in whose place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from patience import at_once

from cascade import errors, factory
from cascade.chat import ChatRequest
from cascade.checks import MAX_QUESTION_CHARS
from cascade.config import load
from cascade.errors import (
    AuthenticationError,
    BatchError,
    BudgetExceededError,
    CascadeError,
    ConfigError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StreamInterruptedError,
    UsageError,
)
from cascade.factory import endpoints
from cascade.orchestrator import Orchestrator
from cascade.policies.policy import Depth
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.registry import Endpoint
from cascade.resilience.event_loop import Deadline
from cascade.types import Answer, Question, Request
from unit.builders import RIVER, TWO_MODELS, Failing, by_purpose, two_models

LONG = "a" * 20_000 + "needle" + "b" * 20_000
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which river?"}]


def wired(provider: Any = None, **settings: Any) -> Orchestrator:
    return Orchestrator.from_config(TWO_MODELS | settings, providers={"fake": provider or two_models()})


def same(first: Answer, other: Answer) -> bool:
    """Whether two answers are the same but for the clock."""

    def timeless(answer: Answer) -> Any:
        calls = [
            (c.request, c.completion and c.completion._replace(latency_s=0.0), c.cost_nano_usd) for c in answer.calls
        ]
        steps = [(s.number, s.candidates, s.signals, s.decision) for s in answer.steps]
        return answer.text, answer.answers, answer.stopped, calls, steps

    return bool(timeless(first) == timeless(other))


def test_an_await_without_asyncios_loop_as_under_trio_says_what_to_call_instead():
    """It was a RuntimeError of asyncio's, and of `amany` also coroutines that were never awaited."""
    with wired() as orchestrator:
        for call in (orchestrator.aask, orchestrator.amany, lambda each: orchestrator.astream(each).__anext__()):
            with pytest.raises(UsageError):
                call([RIVER] if call == orchestrator.amany else RIVER).send(None)
        assert orchestrator.ask(RIVER).text is not None
        with pytest.raises(UsageError):
            orchestrator.aclose().send(None)


async def test_all_four_ways_to_ask_come_to_the_same_answer():
    orchestrator = wired(two_models(guide=reply("Yes", p_yes=0.6)))
    answer = await asyncio.to_thread(orchestrator.ask, RIVER)
    streamed = await asyncio.to_thread(lambda: list(orchestrator.stream(RIVER)))
    astreamed = [event async for event in orchestrator.astream(RIVER)]
    for other in (await orchestrator.aask(RIVER), streamed[-1], astreamed[-1]):
        assert isinstance(other, Answer)
        assert same(answer, other)
    assert [type(event) for event in streamed] == [type(event) for event in astreamed]


async def test_a_stream_is_asked_for_piece_by_piece_and_can_be_left():
    provider, other = two_models(), two_models()
    events, later = wired(provider).stream(RIVER), wired(other).astream(RIVER)
    assert (isinstance(events, Iterator), isinstance(later, AsyncIterator)) == (True, True)
    await asyncio.to_thread(next, events)
    await anext(later)
    assert len(provider.requests) == 1
    await asyncio.to_thread(events.close)  # type: ignore[attr-defined]
    await later.aclose()  # type: ignore[attr-defined]
    assert (len(provider.requests), len(other.requests)) == (1, 1)


def broken_stream(request: Request) -> Any:
    if request.role == "guide":
        raise StreamInterruptedError("cut", partial="Ye")
    return "Answer: Danube"


async def test_an_error_inside_a_stream_goes_to_the_walk():
    settings = {"policy": {"kind": "fixed"}}
    streamed = await asyncio.to_thread(lambda: list(wired(FakeProvider(broken_stream), **settings).stream(RIVER)))
    astreamed = [event async for event in wired(FakeProvider(broken_stream), **settings).astream(RIVER)]
    for events in (streamed, astreamed):
        assert isinstance(events[-1], Answer)
        assert (events[-1].text, events[-1].stopped) == ("Danube", "policy")


async def test_if_all_fail_a_stream_raises():
    failing = {"small": [AuthenticationError("no")], "large": [AuthenticationError("no")]}
    with pytest.raises(AuthenticationError):
        await asyncio.to_thread(lambda: list(wired(FakeProvider(failing)).stream(RIVER)))
    with pytest.raises(AuthenticationError):
        [event async for event in wired(FakeProvider(failing)).astream(RIVER)]


TOO_LONG = Question("x" * 10, "y" * (MAX_QUESTION_CHARS - 9))


@pytest.mark.parametrize("question", ["", " \n", None, 7, Question(""), Question(None), ["x"], TOO_LONG])  # type: ignore[arg-type]
async def test_asking_nothing_and_too_much_is_a_usage_error(question):
    provider = two_models()
    with pytest.raises(UsageError):
        await wired(provider).aask(question)
    assert provider.requests == []


@pytest.mark.parametrize(
    ("batch", "settings"),
    [
        *[([RIVER], {"concurrency": count}) for count in (0, -1)],
        *[(item, {}) for item in ("Which river?", RIVER, CHAT)],  # 0.5.0: of a chat's messages each was a question
    ],
)
async def test_one_question_is_no_batch_and_none_at_once_is_refused(batch, settings):
    provider = two_models()
    with pytest.raises(UsageError):
        await wired(provider).amany(batch, **settings)
    with pytest.raises(UsageError):
        await asyncio.to_thread(lambda: wired(provider).many(batch, **settings))
    assert provider.requests == []


# --- batches ---


def odd_one_fails(request: Request) -> Any:
    if request.question.text == "odd":
        raise AuthenticationError("no key")
    if request.question.text == "own":
        raise KeyError("of a provider of one's own")
    return "Yes" if request.purpose == "judge" else f"Answer: about {request.question.text}"


async def both_batches(orchestrator: Orchestrator, questions: Any, **settings: Any) -> list[Any]:
    blocking = asyncio.to_thread(lambda: orchestrator.many(list(questions), **settings))
    results = []
    for batch in (blocking, orchestrator.amany(list(questions), **settings)):
        try:
            results.append(await batch)
        except BatchError as error:
            results.append(error)
    return results


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_a_batch_comes_in_the_order_asked(concurrency):
    names = [f"question {n}" for n in range(20)]
    for answers in await both_batches(wired(FakeProvider(odd_one_fails)), names, concurrency=concurrency):
        assert [answer.text for answer in answers] == [f"about {name}" for name in names]


async def test_an_empty_batch_is_empty():
    assert await both_batches(wired(), []) == [[], []]


async def test_a_batch_with_failures_holds_every_answer_and_every_error():
    for error in await both_batches(wired(FakeProvider(odd_one_fails)), ["a", "odd", "b", "", "own"]):
        assert isinstance(error, BatchError)
        kinds = [type(result) for result in error.results]
        assert kinds == [Answer, AuthenticationError, Answer, UsageError, ProviderUnavailableError]
        assert error.results[2].text == "about b"
        assert "3 of 5 questions failed, first AuthenticationError: no key" in str(error)


async def test_no_more_are_asked_at_once_than_allowed():
    lock, busy, most = threading.Lock(), 0, 0

    class Counting(Failing):
        async def complete(self, request: Request, timeout_s: float) -> Any:
            nonlocal busy, most
            with lock:
                busy += 1
                most = max(most, busy)
            await asyncio.sleep(0)
            with lock:
                busy -= 1
            return reply("Answer: Danube")

    await wired(Counting()).amany([f"q{n}" for n in range(30)], concurrency=4)
    assert most == 4


# --- opening and closing ---


async def test_a_closed_orchestrator_answers_nothing():
    for close in ("close", "aclose"):
        orchestrator = wired()
        closing = getattr(orchestrator, close)()
        if closing is not None:
            await closing
        orchestrator.close()
        with pytest.raises(UsageError, match="closed"):
            await orchestrator.aask(RIVER)


async def test_providers_of_its_own_are_closed_and_others_are_not(monkeypatch):
    mine, shared = two_models(), two_models()
    monkeypatch.setattr(factory.registry, "create", lambda _kind, _settings: mine)
    with Orchestrator("small", "large", provider="fake"):
        assert not mine.closed
    assert mine.closed
    with Orchestrator.from_config(TWO_MODELS, providers={"fake": shared}):
        pass
    assert not shared.closed
    mine.closed = False
    async with Orchestrator("small", "large", provider="fake"):
        pass
    assert mine.closed


@pytest.mark.parametrize("names", [(), ("small",), (None, "large")])
def test_two_models_are_needed(names):
    with pytest.raises(UsageError, match="from_config"):
        Orchestrator(*names, provider="fake")


def test_two_names_and_settings_are_a_configuration():
    orchestrator = Orchestrator("small", "large", provider="fake", policy={"kind": "fixed"}, models={"third": "x"})
    assert orchestrator.runtime.config.models.keys() == {"third", "base", "guide"}
    assert orchestrator.runtime.policy.rule == Depth(serves="surest")
    assert repr(orchestrator).startswith("Orchestrator(")
    assert len(repr(orchestrator.ask("Hi"))) < 400  # without its steps and calls


def test_what_is_no_configuration_and_a_provider_that_nothing_asks_are_refused():
    for source, providers in ((None, {}), ({"models": {"base": "x", "guide": "y"}, "provider": "fake"}, {"fkae": 1})):
        with pytest.raises(ConfigError):
            Orchestrator.from_config(source, providers=providers)  # type: ignore[arg-type, dict-item]


def test_a_wrong_setting_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError):
        Orchestrator("small", "large", provider="fake", polcy={})
    with pytest.raises(ConfigError, match="cascade init"):
        Orchestrator.from_config(tmp_path / "cascade.yaml")


# --- budget and time ---


def priced(**settings: Any) -> dict[str, Any]:
    price = {"input": 1.0, "output": 4.0}
    models = {"base": {"model": "small", "price": price}, "guide": {"model": "large", "price": price}}
    return {"models": models, **settings}


def test_the_cap_holds_for_each_question_anew():
    orchestrator = wired(**priced(budget={"per_question": 0.003}))
    costs = [orchestrator.ask(RIVER).cost for _ in range(20)]
    assert all(cost is not None and cost <= 0.003 for cost in costs)
    assert sum(cost or 0 for cost in costs) > 0
    with pytest.raises(BudgetExceededError):
        wired(**priced(budget={"per_question": 0.000001})).ask(RIVER)


def test_the_questions_time_is_that_of_all_its_calls():
    provider = Failing(then=reply("Answer: Danube"))
    wired(provider, timeouts={"per_call_s": 50, "per_question_s": 7}).ask(RIVER)
    assert all(timeout <= 7 for timeout in provider.timeouts)
    assert provider.timeouts == sorted(provider.timeouts, reverse=True)


# --- many at once ---


def test_it_can_be_shared_between_threads():
    orchestrator = wired(FakeProvider(by_purpose({"base": "Answer: Danube", "judge": reply("Yes", p_yes=0.9)})))
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.extend(orchestrator.ask(f"q{n}") for n in range(20))
        except CascadeError as error:
            answers.append(error)

    at_once(*[work] * 8)
    assert [answer.text for answer in answers] == ["Danube"] * 160


# --- who is asked where ---


def test_each_model_may_have_a_provider_of_its_own():
    fake, other = FakeProvider({"small": ["Answer: Danube"]}), FakeProvider({"large": [reply("Yes", p_yes=0.9)]})
    models = {"base": "small", "guide": {"model": "large", "provider": "local"}}
    orchestrator = Orchestrator.from_config(
        {"models": models, "provider": "fake"}, providers={"fake": fake, "local": other}
    )
    assert orchestrator.ask(RIVER).text == "Danube"
    assert {request.model for request in fake.requests} == {"small"}
    assert {request.model for request in other.requests} == {"large"}


def test_one_model_in_two_places_is_two_models():
    models = {
        "base": {"model": "m", "api_base": "http://127.0.0.1:1/v1"},
        "guide": {"model": "m", "api_base": "http://127.0.0.1:2/v1"},
    }
    with Orchestrator.from_config({"models": models, "provider": "openai_http"}) as orchestrator:
        assert {*orchestrator.runtime.guards} == {"m@base", "m@guide"}


THERE, ELSEWHERE = "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"
SHARED = {"kind": "openai_http", "api_base": THERE}
OWN = {"base": {"model": "small", "api_base": ELSEWHERE, "api_key_env": "MY_KEY"}, "guide": "large"}
OF_ANOTHER_KIND = {"base": {"model": "small", "provider": "litellm"}, "guide": "large"}
OPENAI = Endpoint("https://api.openai.com/v1", "default-key")


def both(endpoint: Endpoint) -> dict[str, Endpoint]:
    return {"small": endpoint, "large": endpoint}


@pytest.mark.parametrize(
    ("kind", "provider", "models", "environment", "expected"),
    [
        ("openai_http", {"kind": "openai_http"}, {}, {}, both(OPENAI)),
        # another address has no default key, and another server is given its key by name only
        ("openai_http", {"kind": "openai_http"}, {}, {"OPENAI_BASE_URL": THERE}, both(Endpoint(THERE, None))),
        ("openai_http", SHARED, {}, {}, both(Endpoint(THERE, None))),
        ("openai_http", SHARED | {"api_key_env": "MY_KEY"}, {}, {}, both(Endpoint(THERE, "my-key"))),
        # a model's own address comes before the provider's
        ("openai_http", SHARED, OWN, {}, {"small": Endpoint(ELSEWHERE, "my-key"), "large": Endpoint(THERE, None)}),
        # litellm finds its own address where none is configured
        ("litellm", {"kind": "litellm"}, {}, {}, {}),
        ("litellm", {"kind": "litellm", "api_key_env": "MY_KEY"}, {}, {}, both(Endpoint(None, "my-key"))),
        # the shared address is not that of another kind
        ("litellm", SHARED | {"api_key_env": "MY_KEY"}, OF_ANOTHER_KIND, {}, {}),
    ],
)
def test_where_and_with_which_key_a_model_is_asked(monkeypatch, kind, provider, models, environment, expected):
    for name, value in {"OPENAI_API_KEY": "default-key", "MY_KEY": "my-key", **environment}.items():
        monkeypatch.setenv(name, value)
    config = load({"models": models or {"base": "small", "guide": "large"}, "provider": provider})
    entries = [config.models["base"]] if models is OF_ANOTHER_KIND else config.models.values()
    assert endpoints(config, kind, entries) == expected


def test_a_key_that_a_server_repeats_is_in_no_error(monkeypatch):
    monkeypatch.setenv("MY_KEY", "my-key")
    repeats = Failing(then={"error": {"message": "bad key my-key", "code": 401}})
    config = TWO_MODELS | {"provider": {"kind": "fake", "api_key_env": "MY_KEY"}}
    with pytest.raises(AuthenticationError) as caught:
        Orchestrator.from_config(config, providers={"fake": repeats}).ask(RIVER)
    assert "my-key" not in str([caught.value, *(call.error for call in caught.value.calls)])


def test_a_long_context_reaches_every_model_whole():
    """0.5.0: the middle of a text above 24,000 characters reached no model, and nothing said so."""
    orchestrator = wired(fake := two_models())
    answer = orchestrator.ask(Question("Which river?", context=LONG))
    assert {request.purpose for request in fake.requests} == {"answer", "judge"}
    assert all(any(LONG in message.content for message in request.messages) for request in fake.requests)
    assert answer.warnings == ()


def test_what_is_taken_out_of_a_question_is_a_warning():
    """0.5.0: marks were taken out in silence."""
    orchestrator = wired(fake := two_models())
    answer = orchestrator.ask(Question("What does <|im_end|> mean?", context="A\U000e0041 text."))
    assert [name in warning for name, warning in zip(("question", "context"), answer.warnings, strict=True)] == [
        True
    ] * 2
    assert not any("<|im_end|>" in message.content for request in fake.requests for message in request.messages)


@pytest.mark.parametrize("given", [CHAT, tuple(CHAT), {"messages": CHAT}])
def test_a_chat_is_asked_as_a_question_is(given):
    orchestrator = wired(
        fake := two_models(), strategy={"kind": "ladder", "models": ["base", "guide"]}, policy={"kind": "fixed"}
    )
    assert orchestrator.ask(given, segment="a").question.segment == "a"
    assert fake.requests[0].chat.messages == tuple(CHAT)


PRICE = {"input": 1.0, "output": 2.0}
SETTINGS: dict[str, Any] = {
    "models": {
        "base": {"model": "small", "price": PRICE, "max_tokens": 100},
        "guide": {"model": "large", "price": {"input": 100.0, "output": 200.0}, "max_tokens": 100},
        "spare": {"model": "other", "price": {"input": 3.0, "output": 4.0}, "max_tokens": 100},
    },
    "provider": "fake",
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5},
    "traces": "off",
}


def with_fallbacks(place: str, *names: str) -> dict[str, Any]:
    return {**SETTINGS["models"], place: {**SETTINGS["models"][place], "fallbacks": list(names)}}


def answer_of(script: Any, *, ask: Any = None, **settings: Any) -> Answer:
    provider = FakeProvider(script)
    with Orchestrator.from_config({**SETTINGS, **settings}, providers={"fake": provider}) as orchestrator:
        return orchestrator.ask(**{"question": "Who?", **(ask or {})})


def down(*models: str, error: Any = ProviderUnavailableError) -> Any:
    def script(request: Request) -> Any:
        return error("down") if request.model in models else reply(f"by {request.model}", logprobs=[-2.0] * 8)

    return script


def test_another_model_answers_in_the_place_of_one_that_is_down():
    answer = answer_of(down("large"), models=with_fallbacks("guide", "spare"))
    assert answer.text == "by other"
    assert answer.served[0].model == "other"
    call = answer.calls[-1]
    assert call.cost_nano_usd == load({**SETTINGS}).prices()["other"].cost_nano_usd(call.completion.usage)
    assert any("other answered in place of large" in warning for warning in answer.warnings)


def test_fallbacks_are_asked_in_their_order_until_one_answers():
    answer = answer_of(down("small", "other"), models=with_fallbacks("base", "spare", "guide"))
    assert [call.request.model for call in answer.steps[0].calls] == ["small", "other", "large"]
    assert {call.request.role for call in answer.steps[0].calls} == {"small"}


def test_in_the_place_of_a_model_whose_provider_raises_by_mistake_the_guide_answers():
    answer = answer_of(down("small", error=ValueError), models=SETTINGS["models"])
    failed = answer.calls[0]
    assert answer.text == "by large"
    assert (failed.billed, failed.cost_nano_usd, (failed.cost_bound_nano_usd or 0) > 0) == ("maybe", None, True)


@pytest.mark.parametrize("error", [errors.BadRequestError, errors.RefusedError])
def test_what_the_request_itself_is_refused_for_no_other_model_is_asked(error):
    with pytest.raises(error):
        answer_of(down("small", "large", error=error), models=with_fallbacks("guide", "spare"))


def test_a_fallback_that_takes_no_tools_is_left_out():
    models = with_fallbacks("guide", "spare")
    models["spare"] = {**models["spare"], "tools": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    chat = ChatRequest([{"role": "user", "content": "Who?"}], {"tools": [tool]})
    with pytest.raises(ProviderUnavailableError):
        answer_of(down("small", "large"), ask={"question": Question.of_chat(chat)}, models=models)


def test_a_configuration_lists_what_is_wrong_with_its_fallbacks():
    with pytest.raises(ConfigError) as caught:
        load({**SETTINGS, "models": with_fallbacks("guide", "spar", "guide", "spare", "spare")})
    assert {problem.partition(": ")[0] for problem in caught.value.problems} == {"models.guide.fallbacks"}
    assert len(caught.value.problems) == 3  # one that is not there, itself, and one named twice


# Below, a call of the guide may cost over 0.02 USD and one of the base 0.0002.


def test_when_the_time_is_over_the_best_answer_there_is_is_served(monkeypatch):
    over = [False]
    monkeypatch.setattr(Deadline, "over", property(lambda _: over[0]))

    def script(request: Request) -> Any:
        over[0] = True
        return reply(f"by {request.model}", logprobs=[-2.0] * 8)

    answer = answer_of(script, ask={"deadline_s": 2.0}, models=with_fallbacks("guide", "spare"))
    assert (answer.text, answer.stopped) == ("by small", "deadline")
    assert [call.request.model for call in answer.calls] == ["small"]  # the guide was not asked, nor its fallback
    assert any("the deadline was over before large was asked" in warning for warning in answer.warnings)


def test_without_any_answer_the_deadline_is_an_error_and_so_is_one_that_is_no_time():
    with pytest.raises(ProviderTimeoutError):
        answer_of(down("small", "large", error=ProviderTimeoutError), ask={"deadline_s": 1e-9})
    for wrong in (0, "2 s"):
        with pytest.raises(errors.UsageError):
            answer_of(down(), ask={"deadline_s": wrong})
