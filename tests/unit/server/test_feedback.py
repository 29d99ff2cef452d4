"""`POST /v1/feedback`: kept beside the traces, and counted by the monitor of a certificate where it may be."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from stores import postgres_url

from cascade.chat import ChatRequest
from cascade.config import load
from cascade.config.schema import ServerConfig
from cascade.records.traces import Store
from cascade.server.auth import new_key, new_trace, owns
from cascade.server.feedback import MOST_CHARS, MOST_WAITING, AnswerFeedback
from cascade.serving.conditions import made_for
from cascade.types import Answer, Question
from unit.certified import SURE as SURE_ENOUGH
from unit.certified import certificate, directory

from .served import ASK, CONFIG, WAIT_S, asgi, orchestrator
from .test_contract import SURE, UNSURE

SCRIPT = {"small": [UNSURE], "large": [SURE]}


async def send_feedback(folder: Path, *bodies: dict[str, Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Send feedback on one answer; return the responses, and what is kept."""
    store = f"sqlite:///{folder}/traces.db"
    async with orchestrator(SCRIPT, traces={"store": store}) as served, asgi(served) as client:
        trace = await ask_once(client)
        responses = [await client.post("/v1/feedback", json={"trace_id": trace, **body}) for body in bodies]
    with Store(store) as traces:
        assert {row["episode_id"] for row in traces.feedback()} <= {trace}
        rows = traces.feedback()
        traces.purge()
        assert traces.feedback() == []
        return responses, rows


async def ask_once(client: Any, **headers: str) -> str:
    """Ask for one answer; return its trace."""
    body = {"model": "cascade", "messages": ASK}
    return str((await client.post("/v1/chat/completions", json=body, headers=headers)).headers["x-cascade-trace-id"])


KINDS: list[dict[str, Any]] = [{"right": False}, {"score": 0.25}, {"better": "small"}, {"better": "equal"}]


@pytest.mark.parametrize("body", KINDS)
async def test_feedback_of_each_kind_is_kept_once(tmp_path, body):
    """The first judgement stands, whatever comes after it."""
    responses, rows = await send_feedback(tmp_path, body, *KINDS, body)
    assert [response.status_code for response in responses] == [200] * 6
    assert [response.json()["counted"] for response in responses] == [False] * 6
    assert [{name: row[name] for name in ("right", "score", "better") if row[name] is not None} for row in rows] == [
        body
    ]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_a_client_that_asks_judges_its_own_answers_alone_and_certifies_nothing(tmp_path, store):
    """An adversary with a key of its own: forged feedback on another's traces, and a flood on one of its own."""
    users = {name: new_key() for name in ("app", "adversary", "judge")}
    scopes = {"judge": ["feedback"]}
    keys = [{"name": name, "sha256": key.sha256, "scopes": scopes.get(name, ["ask"])} for name, key in users.items()]
    headers = {name: {"x-api-key": key.key} for name, key in users.items()}
    with nullcontext(f"sqlite:///{tmp_path}/traces.db") if store == "sqlite" else postgres_url() as url:
        async with orchestrator(SCRIPT, traces={"store": url}, server={"keys": keys}) as served, asgi(served) as client:
            victims = [await ask_once(client, **headers["app"]) for _ in range(40)]
            own = await ask_once(client, **headers["adversary"])
            assert served.runtime.flush_traces(10)

            async def tells(name: str, trace: str, **more: Any) -> Any:
                body = {"trace_id": trace, "right": True, **more}
                return await client.post("/v1/feedback", json=body, headers=headers[name])

            tail = own[-12:]  # what its key has signed, behind what another's has not
            forged = [await tells("adversary", trace) for trace in victims]
            forged += [await tells("adversary", trace[:-12] + tail) for trace in victims]
            forged += [await tells("adversary", trace, better="nobody") for trace in (victims[0], victims[0].upper())]
            assert {response.status_code for response in forged} == {404}  # as if there were no such trace
            with Store(url) as traces:
                assert traces.feedback() == []
            flood = await asyncio.gather(*(tells("adversary", own, right=bool(number % 2)) for number in range(150)))
            assert {(response.status_code, response.json()["counted"]) for response in flood} == {(200, False)}
            assert (await tells("judge", victims[0])).status_code == 200
            with Store(url) as traces:
                rows = {(row["episode_id"], row["reviewer"]): row["right"] for row in traces.feedback()}
                assert len(rows) == len(traces.feedback())
        assert {*rows} == {(own, "adversary"), (victims[0], "judge")}


def test_a_trace_tells_whose_it_is_without_a_store():
    key, other = ServerConfig(keys=tuple({"name": name, "sha256": new_key().sha256} for name in ("one", "other"))).keys
    traces = {new_trace(key) for _ in range(100)}
    assert len(traces) == 100
    assert all(owns(key, trace) and not owns(other, trace) and not owns(None, trace) for trace in traces)
    assert not any(owns(key, odd) for odd in ("", "x", new_trace(None), new_trace(other), "\u0661" * 32))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400), ({"right": 1}, 400), ({"score": 1.5}, 400), ({"score": True}, 400), ({"better": 1}, 400),
        ({"better": "other"}, 400), ({"trace_id": "nope", "right": True}, 404), ({"trace_id": 7, "right": True}, 400),
        ({"trace_id": "\0", "right": True}, 400),
    ],
)  # fmt: skip
async def test_what_is_no_feedback_is_refused_and_not_kept(tmp_path, body, status):
    responses, rows = await send_feedback(tmp_path, body)
    assert ([response.status_code for response in responses], rows) == ([status], [])


async def test_feedback_on_a_trace_that_is_written_waits_for_no_other(tmp_path, monkeypatch):
    store, waits = f"sqlite:///{tmp_path}/traces.db", list[float]()
    async with orchestrator(SCRIPT, traces={"store": store}) as served, asgi(served) as client:
        trace = await ask_once(client)
        assert served.runtime.flush_traces(10)
        monkeypatch.setattr(served.runtime, "flush_traces", lambda timeout_s: waits.append(timeout_s) or True)
        body = {"trace_id": trace, "right": True}
        responses = [
            await client.post("/v1/feedback", json={**body, "trace_id": named}) for named in (trace, new_trace(None))
        ]
    assert [response.status_code for response in responses] == [200, 404]
    assert len(waits) == 1


async def test_feedback_that_waits_for_its_trace_leaves_the_threads_to_others(tmp_path, monkeypatch):
    waits, ends, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    traces = {"store": f"sqlite:///{tmp_path}/traces.db"}
    async with orchestrator(SCRIPT, traces=traces) as served, asgi(served) as client:
        await ask_once(client)
        monkeypatch.setattr(
            served.runtime, "flush_traces", lambda _: loop.call_soon_threadsafe(waits.set) and ends.wait(WAIT_S)
        )
        with ThreadPoolExecutor(1) as pool:
            loop.set_default_executor(pool)
            body = {"trace_id": new_trace(None), "right": True}
            posting = asyncio.create_task(client.post("/v1/feedback", json=body))
            await waits.wait()
            async with asyncio.timeout(WAIT_S):
                assert await asyncio.to_thread(int) == 0
            assert not posting.done()
            ends.set()
            assert (await posting).status_code == 404


async def test_without_traces_there_is_nowhere_to_keep_it():
    async with orchestrator(SCRIPT) as served, asgi(served) as client:
        response = await client.post("/v1/feedback", json={"trace_id": "x", "right": True})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "no_traces")


def test_only_what_would_be_counted_is_held_and_never_more_than_so_much():
    with orchestrator(SCRIPT) as served:
        endpoint = AnswerFeedback(served)
        plain = served.chat(ASK)
        endpoint.hold("plain", plain)
        for number in range(MOST_WAITING + 5):
            endpoint.hold(
                str(number),
                Answer(Question("?"), "a", ("a",), (), "policy", 0.1, audited=True, certificate=certificate()),
            )
        assert len(endpoint.waiting) == MOST_WAITING
        assert "plain" not in endpoint.waiting
        assert "0" not in endpoint.waiting
        large = Question.of_chat(ChatRequest([{"role": "user", "content": "a" * (MOST_CHARS // 3)}]))
        for name in "abc":
            endpoint.hold(name, Answer(large, "a", ("a",), (), "policy", 0.1, audited=True, certificate=certificate()))
        assert [*endpoint.waiting] == ["b", "c"]


@pytest.mark.parametrize("kind", ["error", "regret"])
async def test_feedback_on_an_audited_answer_is_counted_by_the_monitor_once(tmp_path, kind):
    signed = certificate(made_for={**made_for(load(CONFIG)), "requests": None}, kappa=0.5, kind=kind, confidence=0.9)
    settings = {
        "policy": directory(tmp_path / "policy", signed, policy=SURE_ENOUGH),
        "guarantee": {"promise": kind},
        "audits": {"probability": 1, "seed": 1},
        "traces": {"store": f"sqlite:///{tmp_path}/traces.db"},
    }
    counted = []
    new_keys = {scope: new_key() for scope in ("ask", "feedback")}
    keys = [{"name": scope, "sha256": key.sha256, "scopes": [scope]} for scope, key in new_keys.items()]
    ask, tell = ({"x-api-key": key.key} for key in new_keys.values())
    script = {"small": [SURE], "large": [SURE]}
    async with orchestrator(script, **settings, server={"keys": keys}) as served, asgi(served) as client:
        for right in (True, False):
            messages = [{"role": "user", "content": f"Is it the Danube? Say {right}."}]  # a question counts once
            chat = {"model": "cascade", "messages": messages}
            answered = await client.post("/v1/chat/completions", json=chat, headers=ask)
            assert "x-cascade-certificate" in answered.headers
            body = {"trace_id": answered.headers["x-cascade-trace-id"], "right": right}
            replies = [(await client.post("/v1/feedback", json=body, headers=key)).json() for key in (ask, tell, tell)]
            assert replies[0]["counted"] is False  # a client that asks does not certify what it was answered
            counted.append([(reply["counted"], reply["reason"]) for reply in replies[1:]])
        ((issued, _),) = served.runtime.service.holding
        monitor = served.runtime.service.monitors.of(issued).monitor
        assert (monitor and (monitor.audits, monitor.misses)) == {"error": (2, 1), "regret": None}[kind]
    again = (False, "this key has judged the answer before, and its first judgement stands")
    assert kind == "regret" or counted == [[(True, "not missed"), again], [(True, "missed"), again]]
