"""The application over HTTP, without a socket: what a client sends and what it reads."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade.chat import ChatRequest
from cascade.config import load
from cascade.conformal.certificate import Certificate
from cascade.conformal.scope import PLAIN, kind_of, seen
from cascade.errors import RateLimitedError, StoreError, StreamInterruptedError
from cascade.providers.fake import FakeProvider, reply
from cascade.records.traces import Store
from cascade.resilience.retry import RetryPolicy
from cascade.server import app
from cascade.server.auth import new_key
from cascade.serving.made_for import made_for
from cascade.types import Answer
from unit.certified import SURE as SURE_ENOUGH
from unit.certified import certificate, directory

from .served import ASK, CONFIG, WAIT_S, Held, asgi, living, orchestrator, post
from .test_written import SURE, UNSURE, chunks

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]},
        },
    }
]


async def test_a_kept_base_is_served_with_its_receipt_in_the_headers() -> None:
    response = await post({"small": [SURE]})
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"] == {"role": "assistant", "content": "The Danube."}
    assert response.json()["model"] == response.headers["x-cascade-served-by"] == "small"
    assert response.headers["x-cascade-asked"] == "small"
    assert response.headers["x-cascade-cost-usd"] == "0.000120000"
    assert response.headers["x-cascade-saved-usd"] == "0.001080000"
    assert response.json()["id"] == f"chatcmpl-{response.headers['x-cascade-trace-id']}"
    assert "x-cascade-certificate" not in response.headers
    assert "cascade" not in response.json()


async def test_what_happened_is_told_on_request() -> None:
    response = await post({"small": [UNSURE], "large": [SURE]}, **{"x-cascade-explain": "1"})
    shown = response.json()["cascade"]
    assert shown["served_by"] == response.headers["x-cascade-served-by"] == "large"
    assert ", ".join(shown["asked"]) == response.headers["x-cascade-asked"] == "small, large"
    assert shown["summary"] == "small and large answered; large is served"
    assert [step["step"] for step in shown["steps"]] == [1, 2]
    assert shown["stopped"] == "horizon"


async def test_a_bypass_asks_the_guide_alone() -> None:
    fake = FakeProvider({"small": [SURE], "large": [SURE]})
    response = await post(fake, **{"x-cascade-bypass": "1"})
    assert response.headers["x-cascade-served-by"] == "large"
    assert "x-cascade-saved-usd" not in response.headers
    assert [request.model for request in fake.requests] == ["large"]


async def test_a_single_model_passes_through_under_its_own_name() -> None:
    fake = FakeProvider({"small": [UNSURE]})
    response = await post(fake, {"model": "small", "seed": 1})
    assert response.json()["choices"][0]["message"]["content"] == "The Rhine?"
    sent = fake.requests[0]
    assert sent.chat is not None
    assert sent.chat.body() == {"messages": ASK, "seed": 1}
    assert sent.top_logprobs is None


async def test_images_and_standard_fields_reach_the_models_as_they_are() -> None:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    fake = FakeProvider({"small": [SURE]})
    await post(fake, {"messages": [{"role": "user", "content": parts}], "seed": 7, "stop": ["."]})
    sent = fake.requests[0].chat
    assert sent is not None
    assert sent.body() == {"messages": [{"role": "user", "content": parts}], "seed": 7, "stop": ["."]}


async def test_a_faulty_tool_call_is_not_served_while_the_guide_is_left() -> None:
    bad = reply("", tool_calls=[("get_weather", {"days": "3"})], logprobs=[-0.01])
    good = reply("", tool_calls=[("get_weather", {"days": 3})], logprobs=[-0.01])
    response = await post({"small": [bad], "large": [good]}, {"tools": TOOLS})
    assert response.headers["x-cascade-served-by"] == "large"
    assert response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"days": 3}'


@pytest.mark.parametrize("script", [{"small": [SURE]}, {"small": [UNSURE], "large": [SURE]}])
async def test_a_stream_is_the_same_message_in_pieces(script: Any) -> None:
    response = await post(script, {"stream": True, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"].startswith("text/event-stream")
    found = chunks(response.content)
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in found if one["choices"])
    assert text == "The Danube."
    assert found[-1]["usage"] == {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    assert found[-2]["cascade"]["cost_usd"] == ("0.000120000" if "large" not in script else "0.001320000")


async def test_the_headers_of_a_stream_say_what_is_known_when_it_begins() -> None:
    kept = (await post({"small": [SURE]}, {"stream": True})).headers
    assert (kept["x-cascade-served-by"], kept["x-cascade-cost-usd"]) == ("small", "0.000120000")
    flowed = (await post({"small": [UNSURE], "large": [SURE]}, {"stream": True})).headers
    assert flowed["x-cascade-served-by"] == "large"
    assert "x-cascade-cost-usd" not in flowed


async def test_an_error_before_the_first_text_is_a_status_and_after_it_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RetryPolicy, "delay_s", lambda *_: None)  # no second try: it would come after 7 s

    class Breaks(FakeProvider):
        async def astream(self, request: Any, timeout_s: float) -> Any:
            async for chunk in super().astream(request, timeout_s):
                yield chunk
                raise StreamInterruptedError("it broke")

    early = await post({"large": [RateLimitedError("slow down", retry_after_s=7)]}, {"model": "large", "stream": True})
    assert (early.status_code, early.headers["retry-after"]) == (429, "7")
    late = await post(Breaks({"large": [SURE]}), {"model": "large", "stream": True})
    assert late.status_code == 200
    first, last = [json.loads(line[6:]) for line in late.text.splitlines() if line]
    assert first["choices"][0]["delta"]["content"] == "The"
    assert last["error"]["code"] == "stream_interrupted"
    assert "[DONE]" not in late.text


@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_cascade_abstains_nothing_is_served(stream: bool) -> None:
    async with orchestrator({"small": [SURE]}) as served, asgi(served) as client:
        answer = await served.achat(ASK)

        async def abstains(*_: Any, **__: Any) -> AsyncGenerator[Answer, None]:
            yield replace(answer, text=None, answers=(), stopped="abstained")

        served.runtime.serve = abstains  # type: ignore[method-assign,assignment]
        body = {"model": "cascade", "messages": ASK, "stream": stream}
        response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (422, "abstained")


async def test_a_fault_is_served_where_no_other_model_is_left() -> None:
    response = await post({"small": [reply("", logprobs=[-9.0])], "large": [reply("")]})
    assert (response.status_code, response.headers["x-cascade-served-by"]) == (200, "large")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "cascad"}, 404, "model_not_found"),
        ({"model": "cascade:low"}, 404, "model_not_found"),
        ({"n": 2}, 400, "invalid_request"),
        ({"messages": []}, 400, "invalid_request"),
        ({"messages": [{"role": "martian"}]}, 400, "invalid_request"),
        ({"max_tokens": 0}, 400, "invalid_request"),
    ],
)
async def test_a_wrong_request_is_refused_in_openai_s_form(body: Any, status: int, code: str) -> None:
    response = await post(None, body)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.headers["x-cascade-trace-id"]


async def test_a_name_or_a_path_that_is_not_there_says_what_to_use_instead() -> None:
    """Applications ask for the model that they used before, and some give the base URL without /v1."""
    model = await post(None, {"model": "gpt-4o"})
    assert "does not exist: ask for cascade, or set server.name to the name that" in model.json()["error"]["message"]
    async with orchestrator(FakeProvider({})) as served, asgi(served) as client:
        response = await client.post("/chat/completions", json={"model": "cascade", "messages": ASK})
    assert response.status_code == 404
    assert response.json()["error"]["message"] == (
        "POST /chat/completions: there is no such path. Chat requests go to /v1/chat/completions, /v1/responses, "
        "/v1/messages; GET / lists all paths"
    )


async def test_a_mistake_of_ours_is_logged_without_keys_and_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeProvider):
        async def acomplete(self, request: Any, timeout_s: float) -> Any:
            raise ZeroDivisionError("with sk-0123456789abcdefghij")

    response = await post(Broken())
    assert response.status_code == 500
    assert "ZeroDivision" not in response.text
    assert "ZeroDivisionError" in caplog.text
    assert "sk-0123456789abcdefghij" not in caplog.text


async def test_a_request_that_takes_too_long_ends() -> None:
    for limit_s in (0.05, 1.0, 20.0):  # on a busy machine the call may not have begun by the shortest
        held = Held()
        response = await post(held, settings={"server": {"request_s": limit_s}})
        if held.waiting.is_set():
            break
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    assert held.cancelled.is_set()


async def test_more_requests_than_the_limit_are_sent_away_for_a_second() -> None:
    held = Held({"small": [SURE]})
    async with orchestrator(held, server={"max_requests": 1}) as served, asgi(served) as client:
        body = {"model": "small", "messages": ASK}
        first = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        assert await asyncio.to_thread(held.waiting.wait, WAIT_S)
        second = await client.post("/v1/chat/completions", json=body)
        held.go()
        third = (await first, await client.post("/v1/chat/completions", json=body))
    assert (second.status_code, second.headers["retry-after"]) == (503, "1")
    assert [one.status_code for one in third] == [200, 200]


async def test_models_are_listed_and_each_is_there() -> None:
    async with orchestrator(server={"name": "support"}) as served, asgi(served) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["support", "small", "large", "base", "guide"]
        assert (await client.get("/v1/models/large")).json() == listed[2]
        assert (await client.get("/v1/models/huge")).status_code == 404


async def test_keys_are_asked_for_everywhere_but_where_health_is_told() -> None:
    key = new_key()
    keys = [{"name": "app", "sha256": key.sha256}]
    async with orchestrator({"small": [SURE]}, server={"keys": keys}) as served, asgi(served) as client:
        paths = ["/v1/models", "/metrics", "/", "/nope"]
        assert [(await client.get(path)).status_code for path in paths] == [401] * 4
        assert (await client.post("/v1/chat/completions", json={})).status_code == 401
        assert [(await client.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 503]
        client.headers["authorization"] = f"Bearer {key.key}"
        assert [(await client.get(path)).status_code for path in paths] == [200, 403, 200, 404]
        body = {"model": "cascade", "messages": ASK}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_each_path_needs_its_scope(tmp_path: Path) -> None:
    made = {scope: new_key() for scope in ("ask", "feedback", "view", "metrics", "admin")}
    keys = [{"name": scope, "sha256": key.sha256, "scopes": [scope]} for scope, key in made.items()]
    paths = {
        "GET /metrics": {"metrics", "admin"},
        "GET /v1/cascades": {"view", "admin"},
        "POST /v1/cascades/cascade/kill": {"admin"},
        "POST /v1/feedback": {"ask", "feedback", "admin"},
        "GET /v1/models": {"ask", "feedback", "view", "metrics", "admin"},
    }
    settings = {"server": {"keys": keys}, "modes": {}, "traces": f"sqlite:///{tmp_path}/traces.db"}
    async with living(orchestrator({"small": [SURE]}, **settings)) as client:
        for path, allowed in paths.items():
            method, _, where = path.partition(" ")
            asked = {"json": {"on": False}} if method == "POST" else {}
            for scope, key in made.items():
                told = await client.request(method, where, headers={"authorization": f"Bearer {key.key}"}, **asked)
                assert (told.status_code == 403) is (scope not in allowed), f"{path} with {scope}: {told.text}"


async def test_an_address_with_many_wrong_keys_is_told_to_wait_and_a_right_key_passes() -> None:
    key = new_key()
    settings = {"keys": [{"name": "app", "sha256": key.sha256}]}
    async with orchestrator(server=settings) as served, asgi(served) as client:
        wrong = {"authorization": f"Bearer {key.key}x"}
        found = [await client.get("/v1/models", headers=wrong) for _ in range(25)]
        assert [one.status_code for one in found] == [401] * 20 + [429] * 5
        assert 0 < int(found[-1].headers["retry-after"]) <= 3
        assert found[-1].json()["error"]["code"] == "too_many_wrong_keys"
        assert key.key not in found[-1].text
        right = await client.get("/v1/models", headers={"authorization": f"Bearer {key.key}"})
        assert right.status_code == 200
        claude = await client.post("/v1/messages", headers=wrong, json={})
        assert (claude.status_code, claude.json()["error"]["type"]) == (429, "rate_limit_error")


async def test_a_page_that_points_its_own_name_at_this_machine_is_refused() -> None:
    assert (await post({"small": [SURE]}, host="evil.example")).status_code == 403


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405)])
async def test_paths_and_methods_that_there_are_none_of(method: str, path: str, status: int) -> None:
    async with orchestrator() as served, asgi(served) as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["message"].startswith(f"{method} {path}")


async def test_counts_of_what_was_served_and_refused() -> None:
    async with orchestrator({"small": [SURE]}) as served, asgi(served) as client:
        for model in ("cascade", "nope"):
            await client.post("/v1/chat/completions", json={"model": model, "messages": ASK})
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'cascade_requests_total{model="cascade",served_by="small",status="200"} 1' in response.text
    assert 'cascade_requests_total{model="",served_by="",status="404"} 1' in response.text
    assert "cascade_in_flight 0" in response.text


async def test_health_and_metrics_say_that_traces_fail_and_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StoreError("the store is broken")]

    def append(store: Store, rows: Any) -> int:
        if failures:
            raise failures.pop()
        return whole(store, rows)

    whole = Store.append
    monkeypatch.setattr(Store, "append", append)
    settings = {"traces": f"sqlite:///{tmp_path}/traces.db"}
    served = orchestrator({"small": [SURE, SURE]}, **settings)
    async with living(served) as client:
        for state in ("failing", "ok"):
            await client.post("/v1/chat/completions", json={"model": "cascade", "messages": ASK})
            await asyncio.to_thread(served.runtime.flush_traces)
            assert (await client.get("/readyz")).json() == {"status": "ready", "traces": state}
            assert "cascade_traces_lost_total 1\n" in (await client.get("/metrics")).text


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, 200),  # what is not recorded stops no request
        ({"modes": {}}, 200),  # the guide serves
        ({"budget": {"per_day": 1, "store": "sqlite:///{}/traces.db"}}, 503),
        ({"traces": {"store": "sqlite:///{}/traces.db", "strict": True}}, 503),
    ],
)
async def test_a_server_whose_store_is_locked_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any, status: int
) -> None:
    settings = json.loads(json.dumps({"traces": "sqlite:///{}/traces.db", **more}).replace("{}/", f"{tmp_path}/"))
    async with living(orchestrator({}, **settings)) as client:
        free = await client.get("/readyz")
        monkeypatch.setattr(app, "_PROBE_S", 0.01)
        with closing(sqlite3.connect(tmp_path / "traces.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            locked = await client.get("/readyz")
            other.execute("ROLLBACK")
    assert (free.status_code, locked.status_code) == (200, status)
    assert {*free.json().values()} == {"ready", "ok"}
    assert {*locked.json().values()} == {"failing"} | ({"ready"} if status == 200 else set())
    assert str(tmp_path) not in locked.text


@pytest.mark.parametrize(
    ("name", "shown"), [("small\r\nset-cookie: a=1", "small??set-cookie: a=1"), ("gro\u00df", "gro?")]
)
async def test_models_with_odd_names_break_no_header(name: str, shown: str) -> None:
    response = await post({}, {"model": name}, settings={"models": {"base": name, "guide": "large"}})
    assert response.headers["x-cascade-served-by"] == shown
    assert "set-cookie" not in response.headers
    assert response.json()["model"] == name


def level(threshold: float, risk: float, requests: Mapping[str, Any] | None = None, **fields: Any) -> Certificate:
    """Return the certificate of a policy that keeps the base's reply where its doubt is below a threshold."""
    told = {**made_for(load(CONFIG)), "requests": requests}
    return certificate(risk=risk, kappa=threshold, made_for=told, **fields)


async def test_each_level_is_an_alias_of_the_cascade(tmp_path: Path) -> None:
    both = [level(2.5, 0.2, covers="level", name="low"), level(0.5, 0.1, covers="level", name="high")]
    directory(tmp_path / "policy", *both, policy=SURE_ENOUGH, default="high")
    served = orchestrator({"small": [UNSURE], "large": [SURE]}, policy=str(tmp_path / "policy"))
    async with served, asgi(served) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        by = {}
        for name in ("cascade", "cascade:low", "cascade:high"):
            response = await client.post("/v1/chat/completions", json={"model": name, "messages": ASK})
            by[name] = response.headers["x-cascade-served-by"], response.headers["x-cascade-certificate"]
    assert [one["id"] for one in listed] == [
        "cascade",
        "cascade:low",
        "cascade:high",
        "small",
        "large",
        "base",
        "guide",
    ]
    assert [served_by for served_by, _ in by.values()] == ["large", "small", "large"]
    assert by["cascade"] == by["cascade:high"] != by["cascade:low"]


@pytest.mark.parametrize(("calibrated", "covers"), [(kind_of(ChatRequest(ASK)), True), (PLAIN, False)])
async def test_a_certificate_made_from_questions_covers_no_chat_request(
    tmp_path: Path, calibrated: Any, covers: bool
) -> None:
    """The request is one message without a setting: nothing but the lack of cascade's prompt tells it from them."""
    directory(tmp_path / "policy", level(2.5, 0.1, seen([calibrated] * 99)), policy=SURE_ENOUGH)
    served = orchestrator({"small": [UNSURE], "large": [SURE]}, policy=str(tmp_path / "policy"))
    async with served, asgi(served) as client:
        body = {"model": "cascade", "messages": ASK}
        response = await client.post("/v1/chat/completions", json=body, headers={"x-cascade-explain": "1"})
    said = "no certificate: the request is a chat request, and no request of the log is"
    assert ("x-cascade-certificate" in response.headers) is covers
    assert (said in response.json()["cascade"]["warnings"]) is not covers
    assert ("x-cascade-uncovered" in response.headers) is not covers


@pytest.mark.parametrize("stream", [False, True])
async def test_the_guide_answers_what_no_certificate_covers_and_a_header_says_why(tmp_path: Path, stream: bool) -> None:
    directory(tmp_path / "policy", level(2.5, 0.1, seen([kind_of(ChatRequest(ASK))] * 99)), policy=SURE_ENOUGH)
    served = orchestrator({"small": [SURE], "large": [SURE]}, policy=str(tmp_path / "policy"))
    tools = {"tools": TOOLS}
    async with served, asgi(served) as client:
        for extra, model in (({}, "small"), (tools, "large")):
            body = {"model": "cascade", "messages": ASK, "stream": stream, **extra}
            response = await client.post("/v1/chat/completions", json=body)
            assert response.headers["x-cascade-served-by"] == model
            assert ("x-cascade-uncovered" in response.headers) is bool(extra)
    assert served.service is not None
    assert (served.service.status.answered, served.service.status.certified) == (2, 1)


async def test_each_key_has_a_budget_of_its_own() -> None:
    made = {name: new_key() for name in ("app", "batch")}
    settings = {
        "server": {"keys": [{"name": name, "sha256": key.sha256} for name, key in made.items()]},
        "budget": {"per_key": 0.0002, "wait_s": 0},
    }
    async with living(orchestrator({"small": [SURE]}, **settings)) as client:
        body = {"model": "cascade", "messages": ASK, "max_tokens": 5}
        for key in made.values():
            headers = {"authorization": f"Bearer {key.key}"}
            statuses = [(await client.post("/v1/chat/completions", json=body, headers=headers)) for _ in range(2)]
            assert [one.status_code for one in statuses] == [200, 429]
            error = statuses[1].json()["error"]
            assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
            assert "retry-after" not in statuses[1].headers


async def test_no_key_reads_what_the_others_spent() -> None:
    made = {name: new_key() for name in ("app", "batch")}
    settings = {
        "server": {"keys": [{"name": name, "sha256": key.sha256} for name, key in made.items()]},
        "budget": {"per_day": 0.0002, "wait_s": 0},
    }
    async with living(orchestrator({"small": [SURE]}, **settings)) as client:
        body = {"model": "cascade", "messages": ASK, "max_tokens": 5}
        told = [
            await client.post("/v1/chat/completions", json=body, headers={"x-api-key": key.key})
            for key in made.values()
        ]
    assert [one.status_code for one in told] == [200, 429]
    assert told[0].headers["x-cascade-cost-usd"].rstrip("0") not in told[1].text
    assert "$" not in told[1].text


@pytest.mark.parametrize(("cap", "most_days"), [("per_day", 1), ("per_month", 31)])
async def test_a_spent_period_says_when_it_ends(cap: str, most_days: int) -> None:
    settings = {"budget": {cap: 0.0002, "wait_s": 0}}
    async with living(orchestrator({"small": [SURE]}, **settings)) as client:
        body = {"model": "cascade", "messages": ASK, "max_tokens": 5}
        first = await client.post("/v1/chat/completions", json=body)
        spent = await client.post("/v1/messages", json=body)
    assert [first.status_code, spent.status_code] == [200, 429]
    assert spent.json()["error"]["type"] == "rate_limit_error"
    assert 0 <= int(spent.headers["retry-after"]) <= most_days * 86_400
    assert spent.headers["x-should-retry"] == "false"


async def test_a_request_too_dear_for_an_untouched_cap_is_not_told_to_wait() -> None:
    response = await post(
        {"small": [SURE]}, {"max_tokens": 4_000}, settings={"budget": {"per_day": 0.0002, "wait_s": 0}}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (422, "budget_exceeded")
    assert "retry-after" not in response.headers
