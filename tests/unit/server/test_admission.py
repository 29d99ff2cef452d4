"""What a key may take of the server, and what all requests together may; what one request costs all others."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

from cascade.config.schema import ServerConfig
from cascade.errors import ProviderUnavailableError
from cascade.providers.base import Payload
from cascade.providers.fake import FakeProvider, reply
from cascade.resilience.health import FAILURES
from cascade.server.admission import Admission, Share, Visit
from cascade.server.auth import new_key
from cascade.server.errors import GatewayError
from cascade.types import Request

from .served import ASK, WAIT_S, Gated, asgi, orchestrator
from .test_contract import SURE

CHAT = "/v1/chat/completions"
BODY = {"model": "small", "messages": ASK}
NEW_KEYS = {name: new_key() for name in ("app", "batch")}
HEADERS = {name: {"x-api-key": key.key} for name, key in NEW_KEYS.items()}


def keys(**app: Any) -> Any:
    """Return two keys, the first with limits."""
    limits = {"app": {"limits": app}} if app else {}
    return tuple({"name": name, "sha256": key.sha256, **limits.get(name, {})} for name, key in NEW_KEYS.items())


@pytest.mark.parametrize(
    ("limits", "bodies", "statuses"),
    [
        ({"requests_per_minute": 2}, [BODY] * 3, [200, 200, 429]),
        ({"tokens_per_minute": 1}, [BODY] * 2, [200, 429]),
        ({"max_body_bytes": 100}, [BODY, {**BODY, "user": "a" * 100}], [200, 413]),
        ({"models": ["small", "cascade"]}, [BODY, {**BODY, "model": "large"}, {**BODY, "model": "x"}], [200, 403, 403]),
        ({"at_once": 1}, [BODY] * 2, [200, 200]),
    ],
)
async def test_a_key_has_limits_of_its_own(limits, bodies, statuses):
    script = {name: [SURE] * 4 for name in ("small", "large")}
    async with orchestrator(script, server={"keys": keys(**limits)}) as served, asgi(served) as client:
        responses = [await client.post(CHAT, json=body, headers=HEADERS["app"]) for body in bodies]
        others = [
            await client.post(CHAT, json=body, headers=HEADERS["batch"]) for body in bodies if "x" not in body["model"]
        ]
    assert [response.status_code for response in responses] == statuses
    assert all(("retry-after" in response.headers) is (response.status_code == 429) for response in responses)
    assert {response.status_code for response in others} == {200}


class SmallGated(Gated):
    """Holds the calls of the small model alone."""

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer."""
        if request.model != "small":
            return await FakeProvider.complete(self, request, timeout_s)
        return await super().complete(request, timeout_s)


@pytest.mark.parametrize(("most", "limits", "served_at_once"), [(200, {}, 100), (200, {"at_once": 7}, 7), (1, {}, 1)])
async def test_a_key_with_many_connections_starves_no_other(most, limits, served_at_once):
    gated = SmallGated({"small": [SURE] * 300, "large": [SURE]})
    server = {"keys": keys(**limits), "max_requests": most}
    async with orchestrator(gated, server=server) as served, asgi(served) as client:
        flood = [asyncio.create_task(client.post(CHAT, json=BODY, headers=HEADERS["app"])) for _ in range(200)]
        for refused in islice(asyncio.as_completed(flood), 200 - served_at_once):
            assert (await refused).headers["retry-after"] == "1"
        other = await client.post(CHAT, json={**BODY, "model": "large"}, headers=HEADERS["batch"])
        gated.go()
        statuses = Counter([(await task).status_code for task in flood])
        after = await client.post(CHAT, json=BODY, headers=HEADERS["app"])
    assert other.status_code == (200 if most > 1 else 503)
    assert statuses == {200: served_at_once, 429 if most > 1 else 503: 200 - served_at_once}
    assert after.status_code == 200


@pytest.mark.parametrize("path", ["/v1/feedback", "/v1/messages"])
async def test_whatever_has_a_body_takes_a_place_and_no_thread_of_large_ones(path):
    gated, busy = SmallGated({"small": [SURE], "large": [SURE]}), threading.Event()
    server, large = {"keys": keys(at_once=1)}, {**BODY, "model": "large", "messages": ASK * 2_000}
    async with orchestrator(gated, server=server) as served, asgi(served) as client:
        waiting = asyncio.create_task(client.post(CHAT, json=BODY, headers=HEADERS["app"]))
        await asyncio.to_thread(gated.waiting.wait, WAIT_S)
        refused = await client.post(path, json={"trace_id": "0197", "right": True}, headers=HEADERS["app"])
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            pool.submit(busy.wait)
            async with asyncio.timeout(WAIT_S):
                read = await client.post(CHAT, json=large, headers=HEADERS["batch"])
            busy.set()
        gated.go()
        assert (refused.status_code, read.status_code, (await waiting).status_code) == (429, 200, 200)


async def test_what_fails_for_one_key_holds_back_no_other():
    down, poison = (
        ProviderUnavailableError("500", retryable=True, billed="no"),
        {**BODY, "messages": [{"role": "user", "content": "poison"}]},
    )
    provider = FakeProvider(lambda request: down if "poison" in request.chat.canonical else SURE)
    async with orchestrator(provider, server={"keys": keys()}) as served, asgi(served) as client:
        for guard in served.runtime.guards.values():
            guard.sleep = lambda _: asyncio.sleep(0)

        async def ask(name: str, body: dict[str, Any]) -> tuple[int, bool]:
            """Return the status, and whether the model was asked."""
            before = len(provider.requests)
            status = (await client.post(CHAT, json=body, headers=HEADERS[name])).status_code
            return status, len(provider.requests) > before

        for _ in range(FAILURES):
            await ask("app", poison)
        assert [await ask("app", BODY), await ask("batch", poison)] == [(503, False), (503, True)]
        assert [await ask("batch", BODY), await ask("app", BODY)] == [(503, False)] * 2  # all have failed
        served.runtime.guards["small"].health["small"].succeeded()
        for _ in range(FAILURES):
            await ask("app", poison)
        assert [await ask(name, BODY) for name in ("app", "batch", "app")] == [(503, False), (200, True), (200, True)]


def buffered(visit: Visit, pieces: int) -> GatewayError | None:
    """Buffer pieces of 100 kB; return why one was refused."""
    try:
        for _ in range(pieces):
            visit.buffer(100_000)
    except GatewayError as error:
        return error
    return None


def test_bodies_under_way_have_one_bound_together():
    """Forty slow bodies of 19 MB took 800 MB."""
    admission = Admission(ServerConfig(keys=keys()), ())
    app, batch = admission.settings.keys
    visits = [admission.visit(app if number % 2 else batch) for number in range(80)]
    refused = [error for visit in visits if (error := buffered(visit, 190))]
    assert {error.retry_after_s for error in refused} == {1}
    assert len(refused) >= 70
    assert admission.buffered.used <= admission.settings.max_buffered_bytes == 200_000_000
    for visit in visits:
        visit.end()
        visit.end()  # nothing is given back twice
    assert admission.buffered.used == 0


def test_buckets_fill_as_time_goes_by():
    now = [0.0]
    limits = {"requests_per_minute": 6, "tokens_per_minute": 600}
    admission = Admission(ServerConfig(keys=keys(**limits)), (), lambda: now[0])
    app, batch = admission.settings.keys
    for _ in range(6):
        admission.visit(app)
    with pytest.raises(GatewayError) as caught:
        admission.visit(app)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 10.0)
    admission.visit(batch)
    now[0] = 10.0
    visit = admission.visit(app)
    visit.begin()
    visit.tokens = 900
    visit.end()
    now[0] = 20.0
    late = admission.visit(app)
    with pytest.raises(GatewayError) as caught:
        late.begin()
    assert caught.value.retry_after_s == pytest.approx(20.1)  # 600 - 900 + 100 tokens: one more than nothing
    now[0] = 41.0
    admission.visit(app).begin()


async def test_a_client_that_leaves_a_stream_spends_what_it_has_read():
    """1.0: it spent a quarter of its prompt's bytes, however much it had read before it hung up."""
    text, left = "a" * 8_000, asyncio.Event()
    gated = Gated(lambda _: reply(text, logprobs=[-0.01]), after_words=1)
    sent, pieces = list[dict[str, Any]](), iter([json.dumps({**BODY, "stream": True}).encode()])

    async def receive() -> dict[str, Any]:
        if (piece := next(pieces, None)) is not None:
            return {"type": "http.request", "body": piece, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if b"aaaa" in message.get("body", b""):
            left.set()

    server = {"keys": keys(tokens_per_minute=1_500)}
    names = {**HEADERS["app"], "content-type": "application/json"}
    headers = [(name.encode(), value.encode()) for name, value in names.items()]
    async with orchestrator(gated, server=server) as served, asgi(served) as client:
        app = client._transport.app  # type: ignore[attr-defined]
        await app(
            {"type": "http", "method": "POST", "path": CHAT, "headers": headers, "query_string": b""}, receive, send
        )
        assert sent[-1]["more_body"] is True
        assert (await client.post(CHAT, json=BODY, headers=HEADERS["app"])).status_code == 429


async def test_a_request_that_ends_without_an_answer_spends_what_it_sent():
    """Else a client that hangs up at the end has no limit."""
    admission = Admission(ServerConfig(keys=keys(tokens_per_minute=100)), ())
    visit = admission.visit(admission.settings.keys[0])
    visit.begin()
    visit.buffer(800)
    visit.end()
    with pytest.raises(GatewayError):
        admission.visit(admission.settings.keys[0]).begin()


def test_a_share_is_never_passed_and_one_that_is_alone_takes_all():
    share = Share(10)
    assert [share.take("all", 4, shares=False) for _ in range(3)] == [True, True, False]
    assert share.take("a", 2)
    assert not share.take("b", 1)


WIDE: dict[str, bytes] = {
    "empty messages": b'{"model": "small", "messages": [' + b"{}," * 49_000 + b"{}]}",
    "messages": b'{"model": "small", "messages": [' + b'{"role":"user","content":""},' * 16_000 + b'{"role":"user"}]}',
    "good messages": json.dumps({**BODY, "messages": ASK * 16_000}).encode(),
    "nested lists": b'{"model": "small", "messages": [' + (b"[" * 50 + b"]" * 50 + b",") * 950 + b"{}]}",
    "tools": json.dumps({**BODY, "tools": [{"type": "function", "function": {"name": "f"}}] * 9_000}).encode(),
    "fields": json.dumps({**BODY, **{f"field{number}": 1 for number in range(49_000)}}).encode(),
    "parts": json.dumps({**BODY, "messages": [{"role": "user", "content": ["a"] * 49_000}]}).encode(),
    "too wide": b"[" * 300_000,
    "few": json.dumps(BODY).encode(),
}


@pytest.mark.parametrize("name", WIDE)
async def test_what_a_request_costs_the_loop_does_not_grow_with_it(name):
    """Calls made on the loop's thread, as a measure of the time for which all others wait; a megabyte took 4 s."""
    answers = {"small": [reply("Hi.", logprobs=[-0.1])] * 2}
    async with orchestrator(answers) as served, asgi(served) as client:
        await client.post(CHAT, json=BODY)
        measured = await counted(
            lambda: client.post(CHAT, content=WIDE[name], headers={"content-type": "application/json"})
        )
    assert measured[0] < (200_000 if name == "tools" else 20_000)  # a tool is looked at 16 times: 20 ms for all
    assert len(measured[1].content) < 3_000


async def counted(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many functions this thread called meanwhile, C's too, and the result."""
    calls = 0

    def noted(_frame: Any, event: str, _given: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(noted)
    try:
        result = await work()
    finally:
        sys.setprofile(before)
    return calls, result
