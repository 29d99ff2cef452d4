"""Several cascades at one address: each is a model, with its own answers, traces, modes and counts; caps are shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from patience import until

from cascade import Orchestrator
from cascade.chat import ChatRequest
from cascade.config import load
from cascade.errors import ConfigError, ProviderUnavailableError
from cascade.providers.fake import reply
from cascade.resilience.health import FAILURES
from cascade.runtime import AskOptions
from cascade.server.app import Edge, application
from cascade.server.auth import new_key
from cascade.server.lifecycle import together
from cascade.server.metrics import Instruments

from .observed import Answers, settings, settled
from .served import ASK, CONFIG, Gated, living, orchestrator
from .test_contract import SURE
from .test_sight import samples

PATHS = {"/v1/chat/completions": "messages", "/v1/responses": "input", "/v1/messages": "messages"}
CHAT = next(iter(PATHS))
KEY = new_key()


def other(script: Any = None, name: str = "sales", **more: Any) -> Orchestrator:
    """Return a cascade whose second model the first one has, too; by default it says something else."""
    models = {**CONFIG["models"], "base": {"model": "tiny", "price": {"input": 1.0, "output": 2.0}}}
    server = {**more.pop("server", {}), "name": name}
    script = script or (lambda _: reply("The Sale.", logprobs=[-0.01]))
    return orchestrator(script, models=models, server=server, **more)


@asynccontextmanager
async def serving(*served: Orchestrator) -> AsyncIterator[httpx.AsyncClient]:
    async with living(application(*served)) as client:
        yield client


def body(model: str, path: str = CHAT) -> dict[str, Any]:
    more = {"max_tokens": 9} if "messages" in path else {"user": "u"}
    return {"model": model, PATHS[path]: ASK, **more}


def problems(*configs: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        together({f"{number}.yaml": load({**CONFIG, **each}) for number, each in enumerate(configs)})
    parts = [problem.split(": ") for problem in caught.value.problems]
    return [" ".join(words[: 1 + words[0].endswith(".yaml")]) for words in parts]


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_name_chooses_among_those_that_its_key_may_use(path):
    limits = {"models": ["cascade", "sales", "large"]}
    keys = [{"name": "app", "sha256": KEY.sha256, "limits": limits}]
    first = orchestrator(lambda _: SURE, server={"keys": keys})
    async with serving(first, other()) as client:
        client.headers["x-api-key"] = KEY.key
        names = (*limits["models"], "tiny", "no")
        answers = {name: await client.post(path, json=body(name, path)) for name in names}
        assert [each.status_code for each in answers.values()] == [200, 200, 200, 403, 403]
        assert ["Danube" in answers[name].text for name in limits["models"]] == [True, False, True]  # the first's large
        assert "The Sale." in answers["sales"].text
        assert [each["id"] for each in (await client.get("/v1/models")).json()["data"]] == ["cascade", "large", "sales"]


@pytest.mark.parametrize(
    ("scopes", "seen"), [(["ask", "view", "feedback"], ["sales"]), (["ask", "admin"], ["cascade", "sales", "plain"])]
)
async def test_a_key_of_some_models_learns_of_their_cascades_alone(scopes, seen, tmp_path):
    keys = [{"name": "app", "sha256": KEY.sha256, "scopes": scopes, "limits": {"models": ["sales", "tiny"]}}]
    modes = {"modes": settings(tmp_path)["modes"], "traces": {"store": f"sqlite:///{tmp_path}/a.db"}}
    ours = {"plain": {"model": "plain-1"}, "guide": {"model": "plain-2"}}
    third = {"models": ours, "strategy": {"kind": "ladder", "models": ["plain", "guide"]}, "server": {"name": "plain"}}
    served = [orchestrator(server={"keys": keys}, **modes), other(server={"keys": keys}), orchestrator(**third)]
    every = {"cascade", "cascade-", "small", "large", "plain", "plain-1", "plain-2"}
    async with serving(*served) as client:
        client.headers["x-api-key"] = KEY.key
        for name in [*every, "", None, 7, ["sales"]]:
            response = await client.post(CHAT, json={**body("sales"), "model": name})
            assert (response.status_code, response.json()["error"]["param"]) == (403, "model")
            assert every.isdisjoint(response.json()["error"]["message"].replace(",", " ").split())
        pages = {name: (await client.get(f"/ui?cascade={name}")) for name in ("cascade", "sales", "plain")}
        assert [name for name, page in pages.items() if page.status_code == 200] == seen
        assert {page.status_code for page in pages.values()} <= {200, 404}
        first = await client.get("/ui")
        linked = [name for name in pages if f"/ui?cascade={name}" in first.text]
        assert linked == [name for name in pages if len(seen) > 1]
        listed = (await client.get("/v1/cascades")).json()["data"]
        assert [each["cascade"] for each in listed] == [name for name in seen if name == "cascade"]
        await served[0].runtime.start(ChatRequest(ASK), AskOptions(trace_id="another's")).answer()
        judged = await client.post("/v1/feedback", json={"trace_id": "another's", "right": True})
        assert (judged.status_code == 200) is ("cascade" in seen)


def test_what_the_server_has_is_said_once_and_what_differs_is_told_at_once(tmp_path):
    keys, caps = [{"name": "app", "sha256": KEY.sha256}], {"caps": [{"window": "day", "usd": 2.0}], "per_question": 1.0}
    first = {"server": {"port": 1, "keys": keys}, "budget": caps}
    merged = together({
        "a": load({**CONFIG, **first}),
        "b": load({**CONFIG, "server": {"name": "sales", "port": 1}, "budget": {"per_question": 0.5}}),
    })  # fmt: skip
    assert [each.server.keys == merged[0].server.keys for each in merged] == [True, True]
    assert [(each.budget.caps[0].usd, each.budget.per_question) for each in merged] == [(2.0, 1.0), (2.0, 0.5)]
    store = {"traces": {"store": f"sqlite:///{tmp_path}/t.db"}}
    wrong = {"server": {"port": 2, "keys": [], "max_requests": 9}, "budget": {"caps": []}}
    assert problems({**first, **store}, {**wrong, **store}) == [
        "1.yaml server.port", "1.yaml server.keys", "1.yaml server.max_requests", "1.yaml budget.caps", "server.name",
        "1.yaml traces.store",
    ]  # fmt: skip
    models = {"base": CONFIG["models"]["base"], "guide": "other"}
    assert problems(first, {"server": {"name": "large"}, "models": models}) == ["server.name"]  # a model of the first


@pytest.mark.parametrize("store", [False, True])
async def test_caps_and_limits_are_of_all_cascades_together_also_after_a_reload(tmp_path, store):
    place = {"store": f"sqlite:///{tmp_path}/money.db"} if store else {}
    gated = Gated(lambda _: SURE)

    def both(cap: float) -> list[Orchestrator]:
        budget = {"caps": [{"usd": cap}], "wait_s": 0, **place}
        return [orchestrator(lambda _: SURE, budget=budget), other(gated, budget=budget)]

    tools, first = Instruments(), both(1.0)
    gateway = application(*first, instruments=tools)
    async with living(gateway) as client:
        request = asyncio.create_task(client.post(CHAT, json=body("tiny")))
        await asyncio.to_thread(until, lambda: bool(gated._calls))
        holds = [each.runtime.balances()["all"][1].held for each in first]
        assert holds[0] == holds[1] > 0
        second = both(holds[0] / 10**9)
        await gateway.swap(Edge(second, tools))
        gated.go()
        assert (await request).status_code == 200
        await asyncio.to_thread(until, lambda: all(each.runtime._closed for each in first))
        spent = [each.runtime.balances()["all"][1].spent for each in second]
        assert spent[0] == spent[1] > 0
        assert [(await client.post(CHAT, json=body(name))).status_code for name in ("cascade", "sales")] == [429, 429]
        counts = samples((await client.get("/metrics")).text)
        assert counts['cascade_budget_spent_usd{account="all"}'] == spent[0] / 10**9
        assert counts['cascade_call_seconds_count{cascade="sales",model="tiny"}'] == 1
        if store:
            assert counts["cascade_budget_unasked_total"] == 0


async def test_a_cap_on_a_model_is_on_the_one_that_the_first_file_calls_so():
    budget, each = {"caps": [{"per": "model", "name": "base", "usd": 1e-9}]}, {"caps": [{"usd": 1}]}
    models = {"cheap": CONFIG["models"]["base"], "guide": "other"}
    ladder = {"kind": "ladder", "models": ["cheap", "guide"]}
    third = orchestrator(lambda _: SURE, models=models, strategy=ladder, server={"name": "help"}, budget=each)
    served = [orchestrator(lambda _: SURE, budget=budget), other(budget=budget), third]
    async with serving(*served) as client:
        codes = [(await client.post(CHAT, json=body(name))).status_code for name in ("small", "tiny", "help")]
    assert codes == [422, 200, 422]  # tiny is called base in the second file alone, small is called cheap in the third


async def test_counts_have_the_cascade_and_one_that_works_is_enough_to_be_ready():
    down = ProviderUnavailableError("gone", billed="no")
    first, second = orchestrator(lambda _: down), other()
    for guard in first.runtime.guards.values():
        guard.sleep = lambda _: asyncio.sleep(0)
    async with serving(first, second) as client:
        for _ in range(FAILURES):
            assert (await client.post(CHAT, json=body("cascade"))).status_code == 503
        await client.post(CHAT, json=body("sales"))
        ready, counts = await client.get("/readyz"), samples((await client.get("/metrics")).text)
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "models": "degraded"})
    assert counts['cascade_requests_total{cascade="sales",model="sales",served_by="tiny",status="200"}'] == 1
    opened = [counts[f'cascade_breaker_open{{cascade="{name}",model="large"}}'] for name in ("cascade", "sales")]
    assert opened == [1, 0]
    assert (counts["cascade_in_flight"], counts['cascade_cost_usd_total{cascade="cascade"}']) == (0, 0)


async def test_feedback_and_modes_and_pages_are_of_the_cascade_that_they_name(tmp_path):
    stores = [{"traces": {"store": f"sqlite:///{tmp_path}/{name}.db"}} for name in ("a", "b")]
    modes = {"modes": settings(tmp_path)["modes"]}
    served = [orchestrator(Answers(), **stores[0], **modes), other(Answers(), **stores[1], **modes)]
    async with serving(*served, other(name="plain")) as client:
        traces = [
            (await client.post(CHAT, json=body(name))).headers["x-cascade-trace-id"] for name in ("cascade", "sales")
        ]
        await settled(client)
        for trace, status in ((traces[0], 200), (traces[1], 200), ("0197", 404)):
            response = await client.post("/v1/feedback", json={"trace_id": trace, "right": True})
            assert response.status_code == status
        change = {"mode": "fallback"}
        assert (await client.post("/v1/cascades", json=change)).status_code == 400
        assert (await client.post("/v1/cascades", json={**change, "cascade": "sales"})).status_code == 200
        listed = (await client.get("/v1/cascades")).json()["data"]
        assert [(each["cascade"], each["mode"]) for each in listed] == [("cascade", "observe"), ("sales", "fallback")]
        joint, changed = {"strategy": {"kind": "base_guide"}}, {"models": {**CONFIG["models"], "guide": "other"}}
        refused = [orchestrator(**stores[0], **modes, **changed), other(**stores[1], **modes, **joint)]
        with pytest.raises(ConfigError):
            Edge(refused, Instruments())
        await asyncio.gather(*(each.aclose() for each in refused))
        assert (await client.get("/v1/cascades")).json()["data"] == listed  # those that it goes on to observe
        pages = [(await client.get(f"/ui?cascade={name}")) for name in ("cascade", "sales", "plain", "nobody")]
        assert [page.status_code for page in pages] == [200, 200, 200, 404]
        assert ['<p class="figure">fallback' in page.text for page in pages[:3]] == [False, True, False]
