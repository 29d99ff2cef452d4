"""A hostile provider behind the gateway: each request ends in time, with a status that client libraries understand."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S
from unit.server.served import ASK, CONFIG, asgi, orchestrator

from cascade import Orchestrator
from cascade.errors import ProviderTimeoutError
from cascade.providers import guard, openai_http
from cascade.providers.base import Payload
from cascade.providers.exchange import Exchange
from cascade.providers.fake import FakeProvider, reply
from cascade.resilience import portal
from cascade.resilience.breaker import FAILURES
from cascade.resilience.retry import RetryPolicy
from cascade.types import Request

from .server import FaultServer

CALL_S = 0.25
"""Where nothing would ever end by itself. `benchmarks/gateway_faults.py` measures by how much it is missed."""


@asynccontextmanager
async def gateway(faults: FaultServer, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = {
        **CONFIG,
        "provider": {"kind": "openai_http", "api_base": faults.address},
        "policy": {"kind": "fixed"},
        **settings,
    }
    async with Orchestrator.from_config(config) as served, asgi(served) as client:
        for one in served.runtime.guards.values():
            one.retry = RetryPolicy(max_retries=0)  # waits between tries are not what is looked at
        yield client


async def ask(client: httpx.AsyncClient, model: str = "small", headers: Any = None, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": ASK, **fields}
    return await client.post("/v1/chat/completions", json=body, timeout=PATIENCE_S, headers=headers)


def guards(client: Any) -> Any:
    """Return the guards of the application behind a client."""
    return client._transport.app._app.routes[0].endpoint.orchestrator.runtime.guards


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("mode", "status", "again"),
    [
        ("hang", 504, False), ("slow_drip", 504, False), ("slow_headers", 504, False), ("500", 503, True),
        ("reset", 503, True), ("html_200", 502, False), ("429", 429, True),
    ],
)  # fmt: skip
async def test_each_fault_ends_in_time_with_its_status(
    mode: str, status: int, again: bool, stream: bool, loopback: FaultServer
) -> None:
    loopback.modes["small"] = mode
    limits = {"timeouts": {"per_call_s": CALL_S}} if status == 504 else {}
    async with gateway(loopback, **limits) as client:
        found = await ask(client, stream=stream)
    assert found.status_code == status
    assert ("x-should-retry" not in found.headers) is again
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Exchange]]]:
    """Yield what HTTP exchanges are still held; nothing is collected but what nobody refers to."""
    made: list[weakref.ref[Exchange]] = []

    def noted(*given: Any, **more: Any) -> Exchange:
        exchange = Exchange(*given, **more)
        made.append(weakref.ref(exchange))
        return exchange

    monkeypatch.setattr(openai_http, "Exchange", noted)
    gc.disable()
    yield made
    gc.enable()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["hang", "slow_drip", "huge_head", "reset", "html_200", "cut_short", "500", "429"])
async def test_what_a_failed_request_read_is_freed_with_it(
    mode: str, stream: bool, read: list[weakref.ref[Exchange]], loopback: FaultServer
) -> None:
    """A full collection of what floods had left behind held up every request for 0.25 s (`benchmarks/gateway_faults`)."""
    loopback.modes["small"] = [mode, mode, "ok", mode]
    async with gateway(loopback) as client:
        for one in guards(client).values():
            one.retry = RetryPolicy(max_retries=1, first_wait_s=0.0)
        headers = {"x-cascade-deadline-s": str(CALL_S)}
        found = [await ask(client, headers=headers, stream=stream) for _ in range(3)]
        del found[:]
        for _ in range(20):  # what runs on the loop of the calls ends there
            await portal.on_loop(asyncio.sleep(0), PATIENCE_S)
        assert len(read) >= 3
        assert [one() for one in read if one() is not None] == []


async def test_a_storm_of_429_is_told_when_to_come_again(loopback: FaultServer) -> None:
    loopback.modes["small"], loopback.headers = "429", {"Retry-After": "77"}
    async with gateway(loopback) as client:
        found = [await ask(client) for _ in range(2 * FAILURES)]
    assert {(one.status_code, one.headers["retry-after"]) for one in found} == {(429, "77")}
    assert loopback.count() == 2 * FAILURES  # a limit is no outage: no circuit opens, and nothing is tried twice


async def test_while_the_base_hangs_the_guide_serves_and_soon_at_once(loopback: FaultServer) -> None:
    loopback.modes["small"] = "500"
    async with gateway(loopback) as client:
        found = [await ask(client, "cascade") for _ in range(2 * FAILURES)]
    assert {(one.status_code, one.headers["x-cascade-served-by"]) for one in found} == {(200, "large")}
    assert loopback.count("small") == FAILURES
    assert loopback.count("large") == 2 * FAILURES


LATE_S = 100.0


class Late(FakeProvider):
    """Answers at once, but for the models that never do. Its clock goes on by what is waited for them, and else stands."""

    def __init__(self, *never: str) -> None:
        super().__init__({"small": [reply("The Rhine.", logprobs=[-2.0] * 4)] * 2})
        self.never, self.now_s = set(never), 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        if request.model in self.never:
            self.now_s += timeout_s
            raise ProviderTimeoutError("late")
        return await super().complete(request, timeout_s)


@pytest.mark.parametrize("header", [False, True])
async def test_the_whole_request_has_one_deadline_and_then_the_best_there_is_is_served(
    header: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {} if header else {"server": {"request_s": LATE_S}}
    headers = {"x-cascade-deadline-s": str(LATE_S)} if header else {}
    late = Late("large")
    for module in (guard, portal):
        monkeypatch.setattr(module, "time", late)
    async with orchestrator(late, **given) as served, asgi(served) as client:
        found = await ask(client, "cascade", headers)
        assert late.now_s == pytest.approx(LATE_S, rel=0.01)
        late.never.add("small")
        nothing = await ask(client, "cascade", headers)
        wrong = await ask(client, "cascade", {"x-cascade-deadline-s": "soon"})
        metrics = (await client.get("/metrics")).text
    assert (found.status_code, found.headers["x-cascade-served-by"]) == (200, "small")
    assert found.headers["x-cascade-broken-off"] == "deadline"
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (504, "provider_timeout")
    assert wrong.status_code == 400
    assert 'cascade_broken_off_total{by="deadline"} 1' in metrics


async def test_clients_in_a_hurry_open_no_circuit(loopback: FaultServer) -> None:
    loopback.modes["small"] = "hang"
    async with gateway(loopback) as client:
        for _ in range(2 * FAILURES):
            assert (await ask(client, headers={"x-cascade-deadline-s": "0.01"})).status_code == 504
        loopback.modes["small"] = "ok"
        assert (await ask(client)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_serves_for_a_model_that_is_down_and_says_so(stream: bool, loopback: FaultServer) -> None:
    models = {**CONFIG["models"], "base": {**CONFIG["models"]["base"], "fallbacks": ["guide"]}}
    loopback.modes["small"] = "500"
    async with gateway(loopback, models=models) as client:
        found = [await ask(client, stream=stream) for _ in range(2 * FAILURES)]
        metrics = (await client.get("/metrics")).text
    assert {(one.status_code, one.headers["x-cascade-served-by"]) for one in found} == {(200, "large")}
    assert ("x-cascade-certificate" in found[0].headers) is False
    assert loopback.count("small") == FAILURES  # then the circuit is open, and the fallback is asked at once
    assert f'cascade_replaced_calls_total{{model="small"}} {2 * FAILURES}' in metrics


async def test_a_stream_is_tried_again_before_its_first_text(loopback: FaultServer) -> None:
    loopback.modes["small"] = ["503", "ok"]
    async with gateway(loopback) as client:
        for one in guards(client).values():
            one.retry = RetryPolicy(first_wait_s=0.0)
        found = await ask(client, stream=True)
    assert found.status_code == 200
    assert loopback.count("small") == 2
