"""A hostile provider behind the gateway: each request ends in time, with a status that client libraries understand."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from unit.server.served import ASK, CONFIG, asgi

from cascade import Orchestrator
from cascade.resilience.breaker import FAILURES
from cascade.resilience.retry import RetryPolicy

from .server import FaultServer

CALL_S = 0.4
SLACK_S = 5.0
"""The tests' machine may be busy. No benchmark measures time under faults."""


@asynccontextmanager
async def gateway(faults: FaultServer, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = {
        **CONFIG,
        "provider": {"kind": "openai_http", "api_base": faults.address},
        "policy": {"kind": "fixed"},
        **settings,
    }
    async with Orchestrator.from_config(config) as served, asgi(served) as client:
        for guard in served._guards.values():
            guard.retry = RetryPolicy(max_retries=0)  # waits between tries are not what is looked at
        yield client


async def ask(client: httpx.AsyncClient, model: str = "small", **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": ASK, **fields}
    return await client.post("/v1/chat/completions", json=body, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("mode", "status", "again"),
    [
        ("hang", 504, False), ("slow_drip", 504, False), ("slow_headers", 504, False), ("500", 503, True),
        ("reset", 503, True), ("html_200", 502, False), ("429", 429, True),
    ],
)  # fmt: skip
async def test_each_fault_ends_in_time_with_its_status(mode: str, status: int, again: bool, stream: bool) -> None:
    with FaultServer() as faults:
        faults.modes["small"] = mode
        limits = {"timeouts": {"per_call_s": CALL_S}} if status == 504 else {}
        async with gateway(faults, **limits) as client:
            began = time.monotonic()
            found = await ask(client, stream=stream)
            assert time.monotonic() - began < CALL_S + SLACK_S
    assert found.status_code == status
    assert ("x-should-retry" not in found.headers) is again
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_storm_of_429_is_told_when_to_come_again() -> None:
    with FaultServer() as faults:
        faults.modes["small"], faults.headers = "429", {"Retry-After": "77"}
        async with gateway(faults) as client:
            found = [await ask(client) for _ in range(2 * FAILURES)]
    assert {(one.status_code, one.headers["retry-after"]) for one in found} == {(429, "77")}
    assert faults.count() == 2 * FAILURES  # a limit is no outage: no circuit opens, and nothing is tried twice


async def test_while_the_base_hangs_the_guide_serves_and_soon_at_once() -> None:
    with FaultServer() as faults:
        faults.modes["small"] = "500"
        async with gateway(faults) as client:
            found = [await ask(client, "cascade") for _ in range(2 * FAILURES)]
    assert {(one.status_code, one.headers["x-cascade-served-by"]) for one in found} == {(200, "large")}
    assert faults.count("small") == FAILURES
    assert faults.count("large") == 2 * FAILURES


async def test_a_dead_provider_is_not_asked_by_every_request() -> None:
    with FaultServer() as faults:
        faults.modes["small"] = "500"
        async with gateway(faults) as client:
            found = [await ask(client) for _ in range(5 * FAILURES)]
    assert {one.status_code for one in found} == {503}
    assert "retry-after" in found[-1].headers
    assert faults.count() == FAILURES


async def test_the_whole_request_has_one_deadline() -> None:
    with FaultServer() as faults:
        faults.modes |= {"small": "hang", "large": "hang"}
        settings = {"timeouts": {"per_call_s": 60}, "server": {"request_s": CALL_S}}
        async with gateway(faults, **settings) as client:
            began = time.monotonic()
            found = await ask(client, "cascade")
            assert time.monotonic() - began < CALL_S + SLACK_S
    assert (found.status_code, found.json()["error"]["code"]) == (504, "request_timeout")
