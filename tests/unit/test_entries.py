"""Entries of one model that differ in settings are two models: on the wire, in logs, prices and certificates."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cascade.api.collecting import collect
from cascade.chat import ChatRequest
from cascade.collection import CollectSettings
from cascade.config import load
from cascade.episodes.reading import mispriced
from cascade.errors import ConfigError, ProviderUnavailableError
from cascade.factory import build_fields, build_guards
from cascade.logs.files import read_rows
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import rows, uncached_nano_usd
from cascade.money import PriceTable, Usage
from cascade.orchestrator import Orchestrator
from cascade.plans.base import ModelUse
from cascade.providers.fake import FakeProvider
from cascade.providers.fields import Fields, wire_body
from cascade.providers.replay import Replay
from cascade.resilience.health import RetryPolicy
from cascade.serving.conditions import made_for
from cascade.types import Completion, Question
from unit.server.served import asgi

MODEL, LOW, HIGH = "openai/gpt-4o", "openai/gpt-4o@low", "openai/gpt-4o@high"
PRICE = {"input": 1, "output": 4, "tiers": {"flex": {"input": 0.5, "output": 2}}}


def entries(low: dict[str, Any], high: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    of = {name: {"model": MODEL, "price": PRICE, "settings": own} for name, own in (("low", low), ("high", high or {}))}
    plan = {"strategy": {"kind": "ladder", "models": ["low", "high"]}}
    plan["policy"] = {"kind": "fixed", "depth": 2, "serves": "newest"}
    return {"models": of, "provider": "fake", "traces": None, **plan, **more}


EFFORTS = entries({"reasoning_effort": "low"}, {"reasoning_effort": "high"})


def test_a_ladder_of_one_model_is_asked_logged_and_priced_by_entry():
    fake = FakeProvider({LOW: ["Answer: Danube"], HIGH: ["Answer: Rhine"]})
    with Orchestrator.from_config(EFFORTS, providers={"fake": fake}) as orchestrator:
        answer = orchestrator.ask("Which river?")
    assert [request.model for request in fake.requests] == [LOW, HIGH]
    bodies = [wire_body(request, request.wire_model) for request in fake.requests]
    assert [(body["model"], body["reasoning_effort"]) for body in bodies] == [(MODEL, "low"), (MODEL, "high")]
    assert answer.text == "Rhine"
    assert [call.cost_nano_usd for call in answer.calls] == [call.cost_bound_nano_usd for call in answer.calls]


def test_a_log_and_a_certificate_tell_entries_apart(tmp_path):
    questions, settings = [AskedQuestion("q", Question("Which river?"), ("Rhine",))], CollectSettings(baselines=())
    collect(questions, tmp_path / "log.jsonl", settings, config=load(EFFORTS))
    assert {row["model"] for row in read_rows(tmp_path / "log.jsonl")} == {LOW, HIGH}
    before, after = made_for(load(EFFORTS)), made_for(load(entries({"reasoning_effort": "medium"})))
    assert before["models"][LOW] != after["models"][LOW]


def test_equal_entries_are_one_model_and_differing_ones_two():
    assert [entry.id for entry in load(entries({})).models.values()] == [MODEL, MODEL]
    assert [entry.id for entry in load(EFFORTS).models.values()] == [LOW, HIGH]


@pytest.mark.parametrize(("stream", "left"), [({"reasoning_effort": "high"}, 1), ({"top_p": 0.5}, 0)])
def test_the_operators_setting_counts_before_the_clients(stream, left):
    fake = FakeProvider()
    config = entries({"reasoning_effort": "low"})
    with Orchestrator.from_config(config, providers={"fake": fake}) as orchestrator:
        answer = orchestrator.chat([{"role": "user", "content": "Hi"}], **stream)
    body = wire_body(fake.requests[0], MODEL)
    assert body["reasoning_effort"] == "low"
    assert len(answer.warnings) == left


def test_a_tier_and_a_thinking_budget_of_an_entry_are_in_its_price_and_its_bound():
    from cascade.budget.charges import bound_of, cost_of

    config = load(entries({"service_tier": "flex", "thinking": {"type": "enabled", "budget_tokens": 1_000}}))
    fake, price = FakeProvider(), config.prices()[LOW]
    with Orchestrator.from_config(config, providers={"fake": fake}) as orchestrator:
        answer = orchestrator.ask("Which river?")
    request = fake.requests[0]._replace(max_tokens=100)
    assert price is not None
    logged = [each for each in rows(answer) if each["model"] == LOW]
    assert mispriced(logged, {LOW: price}) == (1, {})
    assert mispriced([{**each, "signals": {}} for each in logged], {LOW: price})[1]
    assert cost_of(request, Completion("", "stop", Usage(1_000, 100)), price).nano_usd == 700_000
    assert bound_of(request, price, 0).nano_usd == 1_100 * 4_000
    by_itself = request._replace(sends={**request.sends, "thinking": {"budget_tokens": -1}})
    assert bound_of(by_itself, price, 0).nano_usd == 100 * 4_000


@pytest.mark.parametrize("name", ["api_base", "max_tokens", "tools", "reasoning_efort", "thinking"])
def test_only_listed_settings_are_sent(name):
    with pytest.raises(ConfigError) as caught:  # YAML reads 5e4 as a text, which a cap cannot count
        load(entries({name: {"budget_tokens": "5e4"} if name == "thinking" else "low"}))
    assert caught.value.problems[0].startswith("models.low.settings")


def fields_of(settings: dict[str, Any]) -> Fields:
    config = load({**settings, "provider": "litellm"})
    return build_fields(config, build_guards(config, {})[0], config.prices())


def test_a_setting_that_the_model_is_known_not_to_take_is_an_error_by_name():
    with pytest.raises(ConfigError) as caught:
        fields_of(EFFORTS)
    names = [problem.split(":")[0] for problem in caught.value.problems]
    assert names == ["models.low.settings.reasoning_effort", "models.high.settings.reasoning_effort"]


def test_thinking_becomes_an_effort_unless_the_model_is_known_to_refuse_efforts():
    models = {"low": {"model": MODEL}, "high": {"model": "openai/gpt-5-mini"}, "own": {"model": "openai/not-listed"}}
    fields = fields_of({**EFFORTS, "models": models})
    chat = ChatRequest([{"role": "user", "content": "Hi"}], {"thinking": {"type": "adaptive"}})
    assert [fields.unsent(chat, [at["model"]]) for at in models.values()] == [("thinking",), (), ()]


def test_a_fallback_is_asked_with_its_own_settings():
    config = load(EFFORTS)
    fake = FakeProvider()
    with Orchestrator.from_config(config, providers={"fake": fake}) as orchestrator:
        orchestrator.ask("Which river?")
        sent = orchestrator.runtime.fields.sent(fake.requests[0]._replace(model=HIGH))
    assert (sent.sends["reasoning_effort"], sent.wire_model) == ("high", MODEL)
    chat = ChatRequest([{"role": "user", "content": "Hi"}], {"reasoning_effort": "high"})
    assert "reasoning_effort" in orchestrator.runtime.fields.unsent(chat)


@pytest.mark.parametrize("chat", [False, True])
def test_a_fallback_has_its_own_limit_temperature_and_seed_and_the_clients_limit_counts_before_them(chat):
    low, high = ModelUse(LOW, 100, 0.0, 1, chat_max_tokens=1_000), ModelUse(HIGH, 200, 0.7, 2, chat_max_tokens=2_000)
    body = ChatRequest([{"role": "user", "content": "Hi"}])
    request = low.request((), "low", "answer", 1, Question("Hi"))
    if chat:
        request = request._replace(chat=body, max_tokens=1_000)
    limit = 2_000 if chat else 200
    assert high.in_place_of(low, request) == request._replace(model=HIGH, max_tokens=limit, temperature=0.7, seed=2)
    of_node = request._replace(max_tokens=8, temperature=1.0, seed=5)
    assert high.in_place_of(low, of_node) == of_node._replace(model=HIGH)
    of_client = request._replace(chat=ChatRequest(body.messages, {"max_tokens": 1_000}), max_tokens=1_000)
    assert high.in_place_of(low, of_client).max_tokens == 1_000


def test_a_fallback_is_sent_what_its_entry_says():
    spare = {"model": MODEL, "price": PRICE, "max_tokens": 77, "temperature": 0.5, "seed": 9}
    config = entries({"reasoning_effort": "low"})
    config["models"] = {**config["models"], "spare": spare}
    config["models"]["high"] = {**config["models"]["high"], "max_tokens": 300, "fallbacks": ["spare"]}
    fake = FakeProvider(lambda request: ProviderUnavailableError("down") if request.model == HIGH else "Answer: Rhine")
    with Orchestrator.from_config(config, providers={"fake": fake}) as orchestrator:
        for guard in orchestrator.runtime.guards.values():
            guard.retry = RetryPolicy(0)
        orchestrator.ask("Which river?")
    body = wire_body(fake.requests[-1], fake.requests[-1].wire_model)
    assert (body["model"], body["max_tokens"], body["temperature"], body["seed"]) == (MODEL, 77, 0.5, 9)


@pytest.mark.parametrize("model", [MODEL, "vertex_ai/claude-3-5-sonnet@20240620"])
def test_the_price_of_an_entry_is_its_models_in_the_table_and_without_a_cache(model):
    price = PriceTable.bundled().price(model)
    assert price is not None
    assert PriceTable.bundled().price(f"{model}@low") == price
    usage = Usage(1_000, 10, cached_input_tokens=600)
    row = {"model": f"{model}@low", "cost_nano_usd": price.cost_nano_usd(usage), "cached_input_tokens": 600}
    row |= {"input_tokens": 1_000, "output_tokens": 10, "reasoning_tokens": None, "signals": {}}
    assert uncached_nano_usd(row) == price.cost_nano_usd(Usage(1_000, 10))


@pytest.mark.parametrize(("logged", "answers"), [(LOW, MODEL), ("openai/gpt-5", "openai/gpt-5")])
async def test_a_replayed_entry_answers_as_its_model_and_another_model_as_itself(logged, answers):
    sent = ModelUse(LOW).request((), "low", "answer", 1, Question("Which river?"))._replace(sends={"model": MODEL})
    row = dict.fromkeys(("input_tokens", "output_tokens", "signals", "context"))
    row |= {"question": "Which river?", "step": 1, "source": "low", "model": logged, "answer": "Rhine"}
    payload = await Replay.of([row]).complete(sent, 1.0)
    assert payload["model"] == answers


async def test_metrics_and_served_headers_tell_entries_apart():
    fake = FakeProvider({LOW: ["Danube"], HIGH: ["Rhine"]})
    async with Orchestrator.from_config(EFFORTS, providers={"fake": fake}) as served, asgi(served) as client:
        for name in ("low", "low", "high"):
            body = {"model": name, "messages": [{"role": "user", "content": "Which river?"}]}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        lines = (await client.get("/metrics")).text.splitlines()
    counts = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines if "requests_total{" in line}
    assert {tuple(re.findall('"([^"]*)"', name)): count for name, count in counts.items()} == {
        ("low", LOW, "200"): "2",
        ("high", HIGH, "200"): "1",
    }


def test_a_judge_of_the_same_model_leaves_the_names_of_those_that_answer():
    priced = {"model": MODEL, "price": PRICE}
    judge = {**priced, "kind": "decision", "dialect": "logprobs"}
    ladder = {"kind": "ladder", "models": ["base", "guide"], "judge": "judge"}
    entries = {"base": {"model": "openai/gpt-4o-mini"}, "judge": judge, "guide": {**priced, "max_tokens": 9}}
    config = load({"models": entries, "strategy": ladder, "policy": {"kind": "fixed"}})
    assert [config.models[name].id for name in ("judge", "guide")] == [f"{MODEL}@judge", MODEL]
