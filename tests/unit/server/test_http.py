"""The application over HTTP, without a socket: what a client sends and what it reads."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cascade import engine
from cascade.chat import ChatRequest
from cascade.config import load
from cascade.conformal.certificate import Certificate
from cascade.conformal.scope import PLAIN, kind_of, seen
from cascade.errors import ProviderUnavailableError, RateLimitedError, StoreError, StreamInterruptedError
from cascade.providers.fake import FakeProvider, reply
from cascade.records.database import Database
from cascade.records.traces import Store
from cascade.resilience.health import RetryPolicy
from cascade.server import app
from cascade.server.auth import new_key
from cascade.serving.conditions import made_for
from cascade.types import Answer
from unit.certified import SURE as SURE_ENOUGH
from unit.certified import certificate, directory

from .served import ASK, CONFIG, Gated, asgi, living, orchestrator, post
from .test_contract import SURE, UNSURE, chunks

CHAT, PATHS = "/v1/chat/completions", ("messages", "responses")
BODY = {"model": "cascade", "messages": ASK}
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
ON = {"x-cascade-explain": "1"}


# --- answers ---


async def test_a_kept_base_is_served_with_its_receipt_in_the_headers():
    response = await post({"small": [SURE]})
    headers = response.headers
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"] == {"role": "assistant", "content": "The Danube."}
    assert response.json()["model"] == headers["x-cascade-served-by"] == headers["x-cascade-asked"] == "small"
    assert headers["x-cascade-cost-usd"] == "0.000120000"
    assert response.json()["id"] == f"chatcmpl-{headers['x-cascade-trace-id']}"
    assert "x-cascade-certificate" not in headers
    assert "cascade" not in response.json()


async def test_what_happened_is_explained_on_request_in_one_sentence_and_by_steps():
    response = await post({"small": [UNSURE], "large": [SURE]}, **ON)
    fields = response.json()["cascade"]
    assert fields["served_by"] == response.headers["x-cascade-served-by"] == "large"
    assert ", ".join(fields["asked"]) == response.headers["x-cascade-asked"] == "small, large"
    assert fields["summary"] == "small and large answered; large is served"
    assert [(step["step"], step["models"]) for step in fields["steps"]] == [(1, ["small"]), (2, ["large"])]
    assert "Rhine" not in response.text  # no text of a candidate
    assert fields["stopped"] == "horizon"


PARTS = [{"type": "text", "text": "What is it?"},
         {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "model", "sent"),
    [
        ({"model": "large"}, "large", {}),
        ({"model": "small", "seed": 1}, "small", {"seed": 1}),  # passes through, though the policy would go on
        ({"messages": [{"role": "user", "content": PARTS}], "seed": 7, "stop": ["."]}, "large",
         {"seed": 7, "stop": ["."]}),
    ],
)  # fmt: skip
async def test_who_is_asked_and_with_what(body, model, sent):
    fake = FakeProvider({"small": [UNSURE], "large": [SURE]})
    response = await post(fake, body)
    assert response.headers["x-cascade-served-by"] == fake.requests[-1].model == model
    assert fake.requests[-1].chat is not None
    assert fake.requests[-1].chat.body() == {"messages": body.get("messages", ASK), **sent}


@pytest.mark.parametrize("bad", [reply("", tool_calls=[("get_weather", {"days": "3"})], logprobs=[-0.01]), reply("")])
async def test_a_fault_is_served_only_where_no_other_model_is_left(bad):
    good = reply("", tool_calls=[("get_weather", {"days": 3})], logprobs=[-0.01])
    response = await post({"small": [bad], "large": [good]}, {"tools": TOOLS})
    assert response.headers["x-cascade-served-by"] == "large"
    assert response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"days": 3}'
    last = await post({"small": [bad], "large": [bad]}, {"tools": TOOLS})
    assert (last.status_code, last.headers["x-cascade-served-by"]) == (200, "large")


@pytest.mark.parametrize(
    ("script", "model", "cost"),
    [({"small": [SURE]}, "small", "0.000120000"), ({"small": [UNSURE], "large": [SURE]}, "large", "0.001320000")],
)
async def test_a_stream_is_the_same_message_in_pieces(script, model, cost):
    response = await post(script, {"stream": True, "stream_options": {"include_usage": True}})
    events = chunks(response.content)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-cascade-served-by"] == model
    assert response.headers.get("x-cascade-cost-usd") == (cost if model == "small" else None)  # as far as it is known
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert text == "The Danube."
    assert events[-1]["usage"] == {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    assert events[-2]["cascade"]["cost_usd"] == cost


@pytest.mark.parametrize(
    ("name", "shown"), [("small\r\nset-cookie: a=1", "small??set-cookie: a=1"), ("gro\u00df", "gro?")]
)
async def test_models_with_odd_names_break_no_header(name, shown):
    response = await post({}, {"model": name}, settings={"models": {"base": name, "guide": "large"}})
    assert response.headers["x-cascade-served-by"] == shown
    assert "set-cookie" not in response.headers
    assert response.json()["model"] == name


# --- refusals ---


class Breaks(FakeProvider):
    """Ends its streams after a word."""

    async def stream(self, request: Any, timeout_s: float) -> Any:
        async for chunk in super().stream(request, timeout_s):
            yield chunk
            raise StreamInterruptedError("it broke", partial="The")


@pytest.mark.parametrize(("path", "name"), [(CHAT, ""), *((f"/v1/{each}", "event: error\n") for each in PATHS)])
async def test_an_error_before_the_first_text_is_a_status_and_after_it_an_event(path, name, monkeypatch):
    monkeypatch.setattr(RetryPolicy, "delay_s", lambda *_: None)  # no second try: it would come after 7 s
    body = {"model": "large", "stream": True, **({"input": "Hi"} if "responses" in path else {"messages": ASK})}
    slow = FakeProvider({"large": [RateLimitedError("slow down", retry_after_s=7)]})
    answers = list[Any]()
    for provider in (slow, Breaks({"large": [SURE]})):
        async with orchestrator(provider) as served, asgi(served) as client:
            answers.append(await client.post(path, json=body))
    assert [(answer.status_code, answer.headers.get("retry-after")) for answer in answers] == [(429, "7"), (200, None)]
    last = answers[1].text.split("\n\n")[-2]
    assert ("The" in answers[1].text, "stream_interrupted" in last) == (True, True)
    assert last.startswith(f"{name}data: {{")


@pytest.mark.parametrize("stream", [False, True])
async def test_where_no_step_gives_an_answer_nothing_is_served(stream):
    async with orchestrator({"small": [SURE]}) as served, asgi(served) as client:
        answer = await served.achat(ASK)

        async def answers() -> AsyncGenerator[Answer, None]:
            yield replace(answer, text=None, answers=(), stopped="horizon")

        pending: Any = SimpleNamespace(answer=lambda: anext(answers()), served=answers)
        served.runtime.start = lambda *_, **__: pending  # type: ignore[method-assign]
        response = await client.post(CHAT, json={**BODY, "stream": stream})
    assert (response.status_code, response.json()["error"]["code"]) == (422, "no_answer")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "cascad"}, 404, "model_not_found"),
        ({"model": "cascade:low"}, 404, "model_not_found"),
        ({"n": 2}, 400, "invalid_request"),
        ({"messages": []}, 400, "invalid_request"),
        ({"messages": [{"role": "martian"}]}, 400, "invalid_request"),
        ({"max_tokens": 0}, 400, "invalid_request"),
        ({"messages": "hi"}, 400, "invalid_request"),
        ({"tools": "all"}, 400, "invalid_request"),
        ({"stream": "yes"}, 400, None),
        ({"stream": True, "stream_options": [1]}, 400, None),
    ],
)
async def test_a_wrong_request_is_refused_in_openai_s_form(body, status, code):
    response = await post(None, body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.headers["x-cascade-trace-id"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", CHAT, 405), ("POST", "/chat/completions", 404)]
)
async def test_a_path_that_is_not_there_says_what_to_use_instead(method, path, status):
    async with orchestrator() as served, asgi(served) as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["message"].startswith(f"{method} {path}")
    assert (CHAT in response.json()["error"]["message"].partition(": ")[2]) is (status == 404)


async def test_a_mistake_is_logged_without_keys_and_its_text_shown_to_nobody(caplog, monkeypatch):
    def broken(*given: Any) -> Any:
        raise ZeroDivisionError("with sk-0123456789abcdefghij")

    monkeypatch.setattr(engine, "decide", broken)
    response = await post({"small": [SURE]})
    assert (response.status_code, "with " in response.text) == (500, False)
    assert ("ZeroDivisionError" in caplog.text, "sk-0123456789abcdefghij" in caplog.text) == (True, False)


@pytest.mark.parametrize(("content", "quoted"), [("full", 2), ("hash", 0), ("none", 0), (None, 0)])
async def test_the_log_has_what_a_provider_writes_where_texts_are_kept(content, quoted, tmp_path, caplog):
    errors = [ProviderUnavailableError("Asked: Who?", max_retries=0), ValueError("Asked: Who?")]
    traces = "off" if content is None else {"store": f"sqlite:///{tmp_path}/t.db", "content": content}
    async with orchestrator({"small": [*errors]}, traces=traces) as served, asgi(served) as client:
        texts = [(await client.post(CHAT, json={**BODY, "model": "small"})).text for _ in errors]
    assert (caplog.text.count("Who?"), ["Who?" in each for each in texts]) == (quoted, [True, False])


async def test_a_request_that_takes_too_long_ends():
    for limit_s in (0.05, 1.0, 20.0):  # on a busy machine the call may not have begun by the shortest
        gated = Gated()
        response = await post(gated, settings={"server": {"request_s": limit_s}})
        if gated.waiting.is_set():
            break
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    assert gated.cancelled.is_set()


# --- keys ---


async def test_each_path_needs_a_key_and_its_scope(tmp_path):
    scopes = ("ask", "feedback", "review", "view", "metrics", "admin")
    new_keys = {scope: new_key() for scope in scopes}
    listed = [{"name": scope, "sha256": key.sha256, "scopes": [scope]} for scope, key in new_keys.items()]
    headers = {scope: {"authorization": f"Bearer {key.key}"} for scope, key in new_keys.items()}
    paths = {
        "GET /healthz": None,
        "GET /readyz": None,
        "GET /": {*scopes},
        "GET /v1/models": {*scopes},
        "GET /nope": {*scopes},
        "GET /metrics": {"metrics", "admin"},
        "GET /v1/cascades": {"view", "admin"},
        "POST /v1/cascades": {"admin"},
        "GET /v1/budgets": {"admin"},
        "POST /v1/budgets": {"admin"},
        "POST /ui/review/press": {"review", "admin"},
        "POST /v1/feedback": {"ask", "feedback", "admin"},
        f"POST {CHAT}": {"ask"},
    }
    budget = {"caps": [{"usd": 1}]}
    settings = {"server": {"keys": listed}, "budget": budget, "modes": {}, "traces": f"sqlite:///{tmp_path}/traces.db"}
    async with living(orchestrator({"small": [SURE]}, **settings)) as client:
        for path, allowed in paths.items():
            method, _, where = path.partition(" ")
            body = {"json": {"mode": "observe"}} if method == "POST" else {}
            bare = await client.request(method, where, **body)
            assert (bare.status_code == 401) is (allowed is not None), path
            for scope in scopes:
                response = await client.request(method, where, headers=headers[scope], **body)
                refused = allowed is not None and scope not in allowed
                assert (response.status_code == 403) is refused, f"{path} with {scope}: {response.text}"
        state = (await client.get("/v1/cascades", headers=headers["admin"])).json()["data"][0]
        assert state["changes"][-1][1] == "admin"  # by the name of the key


# --- budgets ---


@pytest.mark.parametrize(
    ("cap", "statuses"), [({"per": "key"}, [200, 429, 200, 429]), ({"window": "day"}, [200, 429, 429, 429])]
)
async def test_a_key_has_a_budget_of_its_own_and_reads_what_no_other_spent(cap, statuses):
    new_keys = {name: new_key() for name in ("app", "batch")}
    keys = [{"name": name, "sha256": key.sha256} for name, key in new_keys.items()]
    settings = {"server": {"keys": keys}, "budget": {"caps": [{**cap, "usd": 0.0002}], "wait_s": 0}}
    async with living(orchestrator({"small": [SURE]}, **settings)) as client:
        responses = [
            await client.post(CHAT, json={**BODY, "max_tokens": 5}, headers={"x-api-key": key.key})
            for key in new_keys.values()
            for _ in range(2)
        ]
    assert [response.status_code for response in responses] == statuses
    error = responses[-1].json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert (0 <= float(responses[-1].headers.get("retry-after", "nan")) <= 86_400) is ("window" in cap)
    assert responses[-1].headers["x-should-retry"] == "false"
    assert all(
        word in error["message"] for word in ("small", "$0.00011", "key batch" if "per" in cap else " ends at 2")
    )
    assert ("$0.0002" in error["message"]) is ("per" in cap)


async def test_a_request_too_dear_for_an_untouched_cap_is_not_told_to_wait():
    settings = {"budget": {"caps": [{"window": "day", "usd": 0.0002}], "wait_s": 0}}
    response = await post({"small": [SURE]}, {"max_tokens": 4_000}, settings=settings)
    assert (response.status_code, response.json()["error"]["code"]) == (422, "budget_exceeded")
    assert "retry-after" not in response.headers


# --- health, counts, models ---


async def test_models_are_listed_and_each_is_there():
    async with orchestrator(server={"name": "support"}) as served, asgi(served) as client:
        page = (await client.get("/v1/models")).json()
        listed = page["data"]
        assert [model["id"] for model in listed] == ["support", "small", "large", "base", "guide"]
        assert (page["has_more"], listed[0]["type"], listed[0]["display_name"]) == (False, "model", "support")
        assert (await client.get("/v1/models/large")).json() == listed[2]
        assert (await client.get("/v1/models/huge")).status_code == 404
    async with orchestrator(server={"limits": {"models": ["cascade"]}}) as served, asgi(served) as client:
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["cascade"]
        assert (await client.get("/v1/models/large")).status_code == 403


async def test_counts_of_what_was_served_and_refused():
    async with orchestrator({"small": [SURE]}) as served, asgi(served) as client:
        for model in ("cascade", "nope"):
            await client.post(CHAT, json={**BODY, "model": model})
        response = await client.get("/metrics")
        assert (await client.get("/readyz")).status_code == 503  # it has not begun
        assert served.runtime.spending is None  # no cap, no ledger
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'cascade_requests_total{model="cascade",served_by="small",status="200"} 1' in response.text
    assert 'cascade_requests_total{model="",served_by="",status="404"} 1' in response.text
    assert "cascade_in_flight 0" in response.text


@pytest.mark.parametrize("strict", [False, True])
async def test_health_metrics_and_strict_streams_say_that_traces_fail_and_what_is_lost(tmp_path, monkeypatch, strict):
    failures, whole = [StoreError("the store is broken")], Store.append

    def append(store: Store, rows: Any) -> int:
        if failures:
            raise failures.pop()
        return whole(store, rows)

    monkeypatch.setattr(Store, "append", append)
    served = orchestrator({"small": [SURE, SURE]}, traces={"store": f"sqlite:///{tmp_path}/t.db", "strict": strict})
    async with living(served) as client:
        queue = served.runtime.traces._queue
        for fails in (strict, False):
            streamed = await client.post(CHAT, json={**BODY, "model": "small", "stream": True})
            assert ("store_unavailable" in streamed.text) is ("[DONE]" not in streamed.text) is fails
            await asyncio.to_thread(served.runtime.flush_traces)
            assert (await client.get("/readyz")).json() == {"status": "ready", "traces": "ok", "models": "ok"}
            assert "cascade_traces_lost_total 1\n" in (await client.get("/metrics")).text
        queue.problem, queue._accepted = "the disk is full", queue._accepted + 1
        state, queue._accepted = (await client.get("/readyz")).json(), queue._accepted - 1
        assert (state["status"], state["traces"]) == ("failing" if strict else "ready", "failing")


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, 200),  # what is not recorded stops no request
        ({"modes": {}}, 200),  # the guide serves
        ({"budget": {"caps": [{"window": "day", "usd": 1}], "store": "sqlite:///{}/traces.db"}}, 503),
        ({"traces": {"store": "sqlite:///{}/traces.db", "strict": True}}, 503),
    ],
)
async def test_a_server_whose_store_is_locked_says_so(tmp_path, monkeypatch, more, status):
    more = {"traces": "sqlite:///{}/traces.db", "timeouts": {"per_store_s": 5}, **more}
    settings, limits, shared = json.loads(json.dumps(more).replace("{}/", f"{tmp_path}/")), set(), Database.shared
    async with living(orchestrator({}, **settings)) as client:
        free = await client.get("/readyz")
        monkeypatch.setattr(Database, "shared", lambda url, limit_s: limits.add(limit_s) or shared(url, 0.01))
        with closing(sqlite3.connect(tmp_path / "traces.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            locked = await client.get("/readyz")
            other.execute("ROLLBACK")
    assert (free.status_code, locked.status_code, limits) == (200, status, {5})
    assert {*free.json().values()} == {"ready", "ok"}
    assert (locked.json().pop("status"), free.json()["models"]) == ("ready" if status == 200 else "failing", "ok")
    assert {state for name, state in locked.json().items() if name not in {"status", "models"}} == {"failing"}
    assert str(tmp_path) not in locked.text


# --- certificates ---


def level(threshold: float, risk: float, requests: Mapping[str, Any] | None = None, **fields: Any) -> Certificate:
    """Return the certificate of a policy that keeps the base's reply where its doubt is below a threshold."""
    conditions = {**made_for(load(CONFIG)), "requests": requests}
    return certificate(risk=risk, kappa=threshold, made_for=conditions, **fields)


async def test_each_level_is_an_alias_of_the_cascade(tmp_path):
    both = [level(2.5, 0.2, covers="level", name="low"), level(0.5, 0.1, covers="level", name="high")]
    directory(tmp_path / "policy", *both, policy=SURE_ENOUGH, default="high")
    served = orchestrator({"small": [UNSURE], "large": [SURE]}, policy=str(tmp_path / "policy"))
    async with served, asgi(served) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        by = {}
        for name in ("cascade", "cascade:low", "cascade:high"):
            headers = (await client.post(CHAT, json={**BODY, "model": name})).headers
            by[name] = headers["x-cascade-served-by"], headers["x-cascade-certificate"]
    assert [model["id"] for model in listed] == [*by, "small", "large", "base", "guide"]
    assert [served_by for served_by, _ in by.values()] == ["large", "small", "large"]
    assert by["cascade"] == by["cascade:high"] != by["cascade:low"]


@pytest.mark.parametrize(("calibrated", "covers"), [(kind_of(ChatRequest(ASK)), True), (PLAIN, False)])
async def test_a_certificate_made_from_questions_covers_no_chat_request(tmp_path, calibrated, covers, caplog):
    """The request is one message without a setting: nothing but the lack of cascade's prompt tells it from them."""
    directory(tmp_path / "policy", level(2.5, 0.1, seen([calibrated] * 99)), policy=SURE_ENOUGH)
    served = orchestrator({"small": [UNSURE], "large": [SURE]}, policy=str(tmp_path / "policy"))
    async with served, asgi(served) as client:
        response = await client.post(CHAT, json=BODY, headers=ON)
    warned = any("no certificate" in warning for warning in response.json()["cascade"]["warnings"])
    assert ("x-cascade-certificate" in response.headers) is covers
    assert ("x-cascade-uncovered" in response.headers) is warned is not covers
    assert ("none covers a chat request" in caplog.text) is warned


@pytest.mark.parametrize(
    ("lapsed", "prices"),
    [
        ({}, {}),
        ({"created": "2019-12-01", "expires": "2020-01-01"}, {}),
        ({}, {"price": {"input": 7.0, "output": 7.0}}),
    ],
)
def test_a_server_says_at_its_start_which_certificate_does_not_hold(lapsed, prices, tmp_path, caplog):
    directory(
        tmp_path / "policy", level(2.5, 0.1, seen([kind_of(ChatRequest(ASK))] * 99), **lapsed), policy=SURE_ENOUGH
    )
    models = {**CONFIG["models"], "base": {**CONFIG["models"]["base"], **prices}}
    served = orchestrator(policy=str(tmp_path / "policy"), models=models)
    app.application(served)
    service = served.runtime.service
    assert (service.holding[0][0].id in caplog.text) is bool(lapsed or prices)
    served.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_guide_answers_what_no_certificate_covers_and_a_header_says_why(tmp_path, stream):
    directory(tmp_path / "policy", level(2.5, 0.1, seen([kind_of(ChatRequest(ASK))] * 99)), policy=SURE_ENOUGH)
    served = orchestrator({"small": [SURE], "large": [SURE]}, policy=str(tmp_path / "policy"))
    async with served, asgi(served) as client:
        for extra, model in (({}, "small"), ({"tools": TOOLS}, "large")):
            response = await client.post(CHAT, json={**BODY, "stream": stream, **extra}, headers=ON)
            assert response.headers["x-cascade-served-by"] == model
            assert ("x-cascade-uncovered" in response.headers) is bool(extra)
            assert ('"uncovered":null' in response.text, '"uncovered":"' in response.text) == (not extra, bool(extra))
    assert (served.runtime.service.monitors.status.answered, served.runtime.service.monitors.status.certified) == (2, 1)
