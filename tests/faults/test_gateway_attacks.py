"""Clients and providers that mean harm: what they send gets through no check, into no log, on no bill of others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from patience import until
from unit.server.served import ASK, CONFIG, WAIT_S, Held, asgi, listening, orchestrator
from unit.server.test_attacks import chat, connected, request, sent
from unit.server.test_contract import SURE

from cascade import Orchestrator
from cascade.providers.fake import FakeProvider
from cascade.resilience.retry import RetryPolicy
from cascade.server.auth import new_key

from .server import FaultServer

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
          for again in ("Host: evil.example", "Authorization: Bearer x", "Content-Type: text/plain", "X-A: a\r\n b",
                        "X-A: a\rTransfer-Encoding: chunked", "Transfer-Encoding\t: chunked")],
        (request(chat(), BEARER, "Connection: close").replace(b"\r\n", b"\n"), {400}),
        (request(chat(), BEARER, "Connection: close").replace(b"Host: localhost\r\n", b""), {400}),
        (b"GET /v1/models\r\n\r\n", {400}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
        *[(f"GET /v1/models HTTP/{version}\r\nHost: localhost\r\n{BEARER}\r\n\r\n".encode(), {400})
          for version in ("0.9", "1.9", "3.0")],
        (request(chat(), BEARER, "Connection: close", "X-Long: " + "a" * 9_000), {431}),
        (request(chat(model="a" * 9_000), BEARER, "Connection: close"), {404}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
    ],
)  # fmt: skip
def test_no_attack_gets_through_and_the_server_serves_on(url: str, data: bytes, statuses: set[int]) -> None:
    answer = sent(url, data)
    assert answer.count(b"HTTP/1.1 ") == 1  # what is smuggled behind a request is answered by nothing
    assert int(answer.split(b" ", 2)[1]) in statuses
    for secret in (KEY.key, EXPIRED.key, KEY.sha256, b"Traceback", b"root:"):
        assert (secret if isinstance(secret, bytes) else secret.encode()) not in answer
    assert sent(url, request(chat(), BEARER, "Connection: close")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/metrics", "/v1/chat/completions", "/v1/messages", "/ui"])
async def test_a_line_end_behind_a_path_takes_no_scope_away(path: str) -> None:
    """The router's patterns end with "$", which also matches before a last line end."""
    keys = [{"name": "nobody", "sha256": KEY.sha256, "scopes": ("view",)}, {"name": "admin", "sha256": EXPIRED.sha256}]
    async with orchestrator(SURE, server={"keys": keys}) as served, asgi(served) as client:
        for method in ("GET", "POST"):
            said = await client.request(method, f"{path}%0A", json=ASK, headers={"authorization": f"Bearer {KEY.key}"})
            assert said.status_code == 404, said.text


@pytest.mark.parametrize("mode", ["401", "403", "500", "html_200", "echo_key_in_200", "bad_json", "reset", "redirect"])
async def test_no_error_shows_the_providers_key_or_address(mode: str, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", PROVIDER_KEY)
    with FaultServer() as faults:
        faults.modes["small"], faults.text = mode, f"the key KEY at http://u:{PASSWORD}@{faults.address[7:]}"
        provider = {"kind": "openai_http", "api_base": faults.address, "api_key_env": "UPSTREAM_KEY"}
        served = Orchestrator.from_config({**CONFIG, "provider": provider})
        async with served, asgi(served) as client:
            for guard in served.runtime.guards.values():
                guard.retry = RetryPolicy(max_retries=0)
            found = [await client.post("/v1/chat/completions", json={"model": "small", "messages": ASK, "stream": stream})
                     for stream in (False, True)]  # fmt: skip
    for one in found:
        assert one.status_code >= 400
        said = one.text + str(one.headers) + caplog.text
        assert PROVIDER_KEY not in said
        assert PASSWORD not in said
        assert "/v1/chat" not in said


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_gives_back_what_was_held_for_it(stream: bool) -> None:
    held = Held({"large": [SURE]}, after_words=1 if stream else 0)
    with orchestrator(held, budget={"total": 1.0}) as served, listening(served) as address:
        with connected(address) as open_:
            open_.sendall(request(chat(model="large", stream=stream)))
            assert held.waiting.wait(WAIT_S)
        assert held.cancelled.wait(WAIT_S)
        ledger = served.runtime._spending.ledger
        until(lambda: not ledger.account("total").held)
        stands = ledger.account("total")
    assert stands.held == 0
    assert stands.spent > 0  # the provider may bill it
