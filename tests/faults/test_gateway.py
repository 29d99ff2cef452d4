"""A hostile provider behind the gateway: each request ends in time, with a status that client libraries understand."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S, until
from unit.server.served import ASK, CONFIG, WAIT_S, Gated, asgi, listening, orchestrator
from unit.server.test_attacks import chat, connected, request, sent
from unit.server.test_contract import SURE

from cascade import Orchestrator
from cascade.budget.caps import Account
from cascade.config.schema import ServerConfig
from cascade.errors import ProviderTimeoutError
from cascade.providers import guard, openai_http
from cascade.providers.base import Payload
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.openai_http import Exchange
from cascade.resilience import event_loop
from cascade.resilience.health import FAILURES, RetryPolicy
from cascade.server.auth import new_key
from cascade.server.body import parsed_object
from cascade.server.errors import GatewayError
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
        for guard in served.runtime.guards.values():
            guard.retry = RetryPolicy(max_retries=0)  # waits between tries are not what is looked at
        yield client


async def ask(client: httpx.AsyncClient, model: str = "small", headers: Any = None, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": ASK, **fields}
    return await client.post("/v1/chat/completions", json=body, timeout=PATIENCE_S, headers=headers)


def guards(client: Any) -> Any:
    """Return the guards of the application behind a client."""
    return client._transport.app.edge.cascades[0].runtime.guards


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("mode", "status", "again"),
    [
        ("hang", 504, False), ("slow_drip", 504, False), ("slow_headers", 504, False), ("500", 503, True),
        ("reset", 503, True), ("html_200", 502, False), ("429", 429, True),
    ],
)  # fmt: skip
async def test_each_fault_ends_in_time_with_its_status(mode, status, again, stream, loopback):
    loopback.modes["small"] = mode
    limits = {"timeouts": {"per_call_s": CALL_S}} if status == 504 else {}
    async with gateway(loopback, **limits) as client:
        response = await ask(client, stream=stream)
    assert response.status_code == status
    assert ("x-should-retry" not in response.headers) is again
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Exchange]]]:
    """Yield what HTTP exchanges are still held; nothing is collected but what nobody refers to."""
    exchanges: list[weakref.ref[Exchange]] = []

    def noted(*given: Any, **more: Any) -> Exchange:
        exchange = Exchange(*given, **more)
        exchanges.append(weakref.ref(exchange))
        return exchange

    monkeypatch.setattr(openai_http, "Exchange", noted)
    gc.disable()
    yield exchanges
    gc.enable()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["hang", "slow_drip", "huge_head", "reset", "html_200", "cut_short", "500", "429"])
async def test_what_a_failed_request_read_is_freed_with_it(mode, stream, read, loopback):
    """A full collection of what floods had left behind held up every request for 0.25 s (`benchmarks/gateway_faults`)."""
    loopback.modes["small"] = [mode, mode, "ok", mode]
    async with gateway(loopback) as client:
        for guard in guards(client).values():
            guard.retry = RetryPolicy(max_retries=1, first_wait_s=0.0)
        headers = {"x-cascade-deadline-s": str(CALL_S)}
        count = 0
        while count < 3 or len(read) < 3:  # the deadline may pass before a busy machine makes an exchange
            await ask(client, headers=headers, stream=stream)
            count += 1
        await asyncio.to_thread(
            until, lambda: not any(exchange() for exchange in read)
        )  # what was left on another loop ends there


async def test_a_storm_of_429_is_told_when_to_come_again(loopback):
    loopback.modes["small"], loopback.headers = "429", {"Retry-After": "77"}
    async with gateway(loopback) as client:
        answers = [await ask(client) for _ in range(2 * FAILURES)]
    assert {(answer.status_code, answer.headers["retry-after"]) for answer in answers} == {(429, "77")}
    assert loopback.count() == 2 * FAILURES  # a limit is no outage: no circuit opens, and nothing is tried twice


async def test_while_the_base_hangs_the_guide_serves_and_soon_at_once(loopback):
    loopback.modes["small"] = "500"
    async with gateway(loopback) as client:
        answers = [await ask(client, "cascade") for _ in range(2 * FAILURES)]
    assert {(answer.status_code, answer.headers["x-cascade-served-by"]) for answer in answers} == {(200, "large")}
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
async def test_the_whole_request_has_one_deadline_and_then_the_best_there_is_is_served(header, monkeypatch):
    given = {} if header else {"server": {"request_s": LATE_S}}
    headers = {"x-cascade-deadline-s": str(LATE_S)} if header else {}
    late = Late("large")
    for module in (guard, event_loop):
        monkeypatch.setattr(module, "time", late)
    async with orchestrator(late, **given) as served, asgi(served) as client:
        best = await ask(client, "cascade", headers)
        assert late.now_s == pytest.approx(LATE_S, rel=0.01)
        late.never.add("small")
        nothing = await ask(client, "cascade", headers)
        wrong = await ask(client, "cascade", {"x-cascade-deadline-s": "soon"})
        metrics = (await client.get("/metrics")).text
    assert (best.status_code, best.headers["x-cascade-served-by"]) == (200, "small")
    assert best.headers["x-cascade-broken-off"] == "deadline"
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (504, "provider_timeout")
    assert wrong.status_code == 400
    assert 'cascade_broken_off_total{by="deadline"} 1' in metrics


async def test_clients_in_a_hurry_open_no_circuit(loopback):
    loopback.modes["small"] = "hang"
    async with gateway(loopback) as client:
        for _ in range(2 * FAILURES):
            assert (await ask(client, headers={"x-cascade-deadline-s": "0.01"})).status_code == 504
        loopback.modes["small"] = "ok"
        assert (await ask(client)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_serves_for_a_model_that_is_down_and_says_so(stream, loopback):
    models = {**CONFIG["models"], "base": {**CONFIG["models"]["base"], "fallbacks": ["guide"]}}
    loopback.modes["small"] = "500"
    async with gateway(loopback, models=models) as client:
        answers = [await ask(client, stream=stream) for _ in range(2 * FAILURES)]
        metrics = (await client.get("/metrics")).text
    assert {(answer.status_code, answer.headers["x-cascade-served-by"]) for answer in answers} == {(200, "large")}
    assert ("x-cascade-certificate" in answers[0].headers) is False
    assert loopback.count("small") == FAILURES  # then the circuit is open, and the fallback is asked at once
    assert f'cascade_replaced_calls_total{{model="small"}} {2 * FAILURES}' in metrics


async def test_a_stream_is_tried_again_before_its_first_text(loopback):
    loopback.modes["small"] = ["503", "ok"]
    async with gateway(loopback) as client:
        for guard in guards(client).values():
            guard.retry = RetryPolicy(first_wait_s=0.0)
        response = await ask(client, stream=True)
    assert response.status_code == 200
    assert loopback.count("small") == 2


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"name": "f", "description": "It does.", "parameters": SCHEMA}
PICTURE = "data:image/png;base64,iVBORw0KGgo="
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"},
                                         {"type": "image_url", "image_url": {"url": PICTURE}}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
        "tools": [{"type": "function", "function": TOOL}], "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "max_tokens": 10, "n": 1, "logprobs": True, "top_logprobs": 2, "user": "ann", "temperature": 0.5,
        "stop": ["x"], "stream": False, "stream_options": {"include_usage": True}, "parallel_tool_calls": True,
        "modalities": ["text"],
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"},
                                         {"type": "input_image", "image_url": PICTURE}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
        ],
        "instructions": "Be brief.", "tools": [{"type": "function", **TOOL}],
        "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": 10, "stream": False,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
    },
    "/v1/messages": {
        "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 10,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "f"},
        "metadata": {"user_id": "ann"}, "stop_sequences": ["x"], "stream": False, "thinking": {"type": "disabled"},
    },
}  # fmt: skip
JUNK: tuple[Any, ...] = ([], [{}], None, 7, "x", {"type": []})


def paths(value: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in inside:
        yield (*so_far, name)
        yield from paths(inner, (*so_far, name))


def replaced(body: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    changed = deepcopy(body)
    at: Any = changed
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = junk
    return changed


WRITTEN = reply('{"name": "f", "arguments": {"a": 1}}', logprobs=[-0.1] * 9)
"""JSON where a request asks for it, and a tool call as text where it offers tools."""


@pytest.mark.parametrize("answer", [reply("", tool_calls=[("f", {"a": 1})], logprobs=[-0.1] * 9), WRITTEN])
@pytest.mark.parametrize("path", BODIES)
async def test_no_body_makes_the_server_fail(path, answer):
    provider = FakeProvider(lambda _: answer)
    async with orchestrator(provider, budget={"caps": [{"usd": 1e6}]}) as served, asgi(served) as client:
        whole = {"model": "cascade", **BODIES[path]}
        valid = await client.post(path, json=whole)
        assert valid.status_code == 200, valid.text
        failed = []
        for way in paths(whole):
            for junk in JUNK:
                response = await client.post(path, content=_encoded(replaced(whole, way, junk)), headers=_JSON)
                if response.status_code not in {200, 400, 404, 502}:
                    failed.append((way, junk, response.text))
    assert not failed


@pytest.mark.parametrize(
    ("written", "fits"),
    [
        ("18446744073709551615", True), ("-9223372036854775808", True), ('"123456789012345678901"', True),
        ("0.1234567890123456789", True), ("18446744073709551616", False), ("-9223372036854775809", False),
        ("9" * 300, False),
    ],
)  # fmt: skip
def test_a_whole_number_is_kept_to_the_digit_or_refused(written, fits):
    """The reader of JSON makes 18446744073709551616 a float: the models would read another number than was sent."""
    body = f'{{"tools": [{written}]}}'.encode()
    if fits:
        assert parsed_object(body, ServerConfig()) == {"tools": [json.loads(written)]}
        return
    with pytest.raises(GatewayError, match="more than 64 bits"):
        parsed_object(body, ServerConfig())


_JSON = {"content-type": "application/json"}


def _encoded(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value)


KEY, EXPIRED = new_key(), new_key()
YESTERDAY = (datetime.now(UTC).date() - timedelta(days=2)).isoformat()
PROVIDER_KEY, PASSWORD = "sk-upstream-0123456789abcdef", "hunter2hunter2"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    keys = [{"name": "app", "sha256": KEY.sha256}, {"name": "old", "sha256": EXPIRED.sha256, "expires": YESTERDAY}]
    limits = {"max_head_bytes": 8_000, "max_body_bytes": 20_000, "body_s": 5.0, "keys": keys}
    with orchestrator(FakeProvider({"small": [SURE]}), server=limits) as served, listening(served) as address:
        yield address


BEARER = f"Authorization: Bearer {KEY.key}"
CHUNKED = "Transfer-Encoding: chunked"
CHUNK = b"%x\r\n%s\r\n0\r\n" % (len(chat()), chat())
CHUNKS = (
    ((BEARER,), CHUNKED, CHUNK + b"\r\n", 200),
    ((), CHUNKED, CHUNK + BEARER.encode() + b"\r\n\r\n", 401),  # a key that comes after the body opens nothing
    ((BEARER,), CHUNKED, CHUNK.replace(b"\r\n", b"\n") + b"\n", 400),
    ((BEARER,), CHUNKED, b"0x" + CHUNK + b"\r\n", 400),
    ((BEARER,), CHUNKED, b"F" * 17 + b"\r\n", 400),
    ((BEARER,), "Transfer-Encoding: gzip, chunked", CHUNK + b"\r\n", 400),
    ((BEARER,), "Transfer-Encoding: identity, chunked", CHUNK + b"\r\n", 400),
    ((BEARER, CHUNKED), CHUNKED, CHUNK + b"\r\n", 400),
)
PATHS = (
    "/v1/models/../../etc/passwd",
    "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "//evil.example/v1/models",
    "/ui/../x",
)


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        *[(request(chat(), "Connection: close", f"Authorization: Bearer {key}"), {401})
          for key in (EXPIRED.key, KEY.key[:-1], KEY.key + "A", KEY.key.upper(), KEY.sha256, "")],
        *[(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\nConnection: close\r\n\r\n".encode(), {400, 404})
          for path in PATHS],
        *[(f"{method} /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\nConnection: close\r\n\r\n".encode(),
           {400, 405}) for method in ("GET", "PUT", "DELETE", "TRACE", "CONNECT", "BREW")],
        (request(chat(), BEARER, "Connection: close", CHUNKED), {400}),
        (request(chat(), BEARER, "Connection: close", "Content-Length: 3"), {400}),
        (request(chat(), BEARER, "Connection: close", "Content-Length : 3"), {400}),
        (request(chat(), BEARER, "Connection: close").replace(b"Content-Length: ", b"Content-Length: +"), {400}),
        (request(b"", BEARER, "Connection: close", "Transfer-Encoding: xchunked").replace(b"Content-Length: 0\r\n", b""),
         {400, 411}),
        (request(b"", BEARER, "Connection: close", CHUNKED).replace(b"Content-Length: 0\r\n", b"") + b"-1\r\nabc\r\n",
         {400}),
        (request(b'{"model": "cascade", "messages": [{"role": "user", "content": "\xff\xfe"}]}', BEARER,
                 "Connection: close"), {400}),
        (request(b"\xff\xfe" + chat(), BEARER, "Connection: close"), {400}),
        (request(b'{"a":' * 500 + b"1" + b"}" * 500, BEARER, "Connection: close"), {400}),
        (request(chat(messages=[{"role": "user", "content": "\ud800"}]), BEARER, "Connection: close"), {200, 400}),
        *[(request(b"", *heads, "Connection: close", coding).replace(b"Content-Length: 0\r\n", b"") + body, {status})
          for heads, coding, body, status in CHUNKS],
        *[(request(chat(), BEARER, "Connection: close", again), {400})
          for again in (CHUNKED, "Host: evil.example", "Authorization: Bearer x", "Content-Type: text/plain", "X-A: a\r\n b",
                        "X-A: a\rTransfer-Encoding: chunked", "Transfer-Encoding\t: chunked")],
        (request(chat(), BEARER, "Connection: close").replace(b"\r\n", b"\n"), {400}),
        (request(chat(), BEARER, "Connection: close").replace(b"Host: localhost\r\n", b""), {400}),
        (request(chat(), BEARER, "Connection: Upgrade", "Upgrade: h2c"), {400}),  # its body would be the next request
        (b"GET /v1/models\r\n\r\n", {400}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
        *[(f"GET /v1/models HTTP/{version}\r\nHost: localhost\r\n{BEARER}\r\n\r\n".encode(), {400})
          for version in ("0.9", "1.9", "3.0")],
        (request(chat(), BEARER, "Connection: close", "X-Long: " + "a" * 9_000), {431}),
        *[(request(chat(model=name), BEARER, "Connection: close", "X-Cascade-Group: \xe9"), {404})
          for name in ("a" * 9_000, "x\r\nSet-Cookie: a=1")],
        *[(request(body, BEARER, "Connection: close"), {400})
          for body in (b"[" * 9_000, b"\x00" * 100, b"", b'"' + b"\\u0000" * 1_000)],
        (request(chat(**{"a" * 9_000: 1}), BEARER, "Connection: close"), {400}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
    ],
)  # fmt: skip
def test_no_attack_gets_through_and_the_server_serves_on(url, data, statuses):
    answer = sent(url, data)
    assert len(answer) < 4_000
    assert answer.count(b"HTTP/1.1 ") == 1  # what is smuggled behind a request is answered by nothing
    assert int(answer.split(b" ", 2)[1]) in statuses
    assert b"set-cookie" not in answer.partition(b"\r\n\r\n")[0].lower()
    for secret in (KEY.key, EXPIRED.key, KEY.sha256, b"Traceback", b"root:"):
        assert (secret if isinstance(secret, bytes) else secret.encode()) not in answer
    assert sent(url, request(chat(), BEARER, "Connection: close")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/metrics", "/v1/chat/completions", "/v1/messages", "/ui"])
async def test_a_line_end_behind_a_path_takes_no_scope_away(path):
    """The router's patterns end with "$", which also matches before a last line end."""
    keys = [{"name": "nobody", "sha256": KEY.sha256, "scopes": ("view",)}, {"name": "admin", "sha256": EXPIRED.sha256}]
    async with orchestrator(SURE, server={"keys": keys}) as served, asgi(served) as client:
        for method in ("GET", "POST"):
            reply = await client.request(method, f"{path}%0A", json=ASK, headers={"authorization": f"Bearer {KEY.key}"})
            assert reply.status_code == 404, reply.text


@pytest.mark.parametrize("mode", ["401", "403", "500", "html_200", "echo_key_in_200", "bad_json", "reset", "redirect"])
async def test_no_error_shows_the_providers_key_or_address(mode, monkeypatch, caplog):
    monkeypatch.setenv("UPSTREAM_KEY", PROVIDER_KEY)
    with FaultServer() as faults:
        faults.modes["small"], faults.text = mode, f"the key KEY at http://u:{PASSWORD}@{faults.address[7:]}"
        provider = {"kind": "openai_http", "api_base": faults.address, "api_key_env": "UPSTREAM_KEY"}
        served = Orchestrator.from_config({**CONFIG, "provider": provider})
        async with served, asgi(served) as client:
            for guard in served.runtime.guards.values():
                guard.retry = RetryPolicy(max_retries=0)
            both = [await client.post("/v1/chat/completions", json={"model": "small", "messages": ASK, "stream": stream})
                    for stream in (False, True)]  # fmt: skip
    for response in both:
        assert response.status_code >= 400
        output = response.text + str(response.headers) + caplog.text
        assert PROVIDER_KEY not in output
        assert PASSWORD not in output
        assert "/v1/chat" not in output


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_gives_back_what_its_call_did_not_cost(stream):
    gated = Gated({"large": [SURE]}, after_words=1 if stream else 0)
    settings: Any = {"budget": {"caps": [{"usd": 1.0}]}, "server": {"limits": {"at_once": 1}}}
    with orchestrator(gated, **settings) as served, listening(served) as address:
        with connected(address) as open_:
            open_.sendall(request(chat(model="large", stream=stream)))
            assert gated.waiting.wait(WAIT_S)
        until(served.runtime.spending.unsettled.total)
        assert sent(address, request(chat(), "Connection: close")).startswith(b"HTTP/1.1 429")  # its place is taken
        gated.go()
        ledger = served.runtime.spending.ledger
        until(lambda: not ledger.account("all").held)
        stands = ledger.account("all")
    assert stands == Account(100 * 10_000 + 10 * 20_000, 0)
    assert not gated.cancelled.is_set()
