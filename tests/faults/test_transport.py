"""F01-F13: the way to the model is broken, slow, or leads elsewhere; what answers at the address is no server to ask."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from patience import PATIENCE_S
from unit.builders import request

from cascade.errors import (
    AddressError,
    BadRequestError,
    BadResponseError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    RateLimitedError,
    StreamInterruptedError,
)
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import Endpoint
from cascade.resilience import event_loop

from .bench import KEY, PROVIDERS
from .bodies import QUESTION
from .server import FaultServer


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"}, 0.0),
        ({"retry-after-ms": "abc", "Retry-After": "2"}, 2.0),
        ({"retry-after-ms": "-5", "Retry-After": "2"}, 2.0),
        ({"retry-after-ms": "1500", "Retry-After": "7"}, 1.5),
        ({"retry-after-ms": "1e300", "Retry-After": "2"}, 2.0),  # clients of a gateway are told what it says
        *(({"Retry-After": f"Mon, {day} 00:00:00 GMT"}, None) for day in ("01 Jan 99999999999", "01 Jan 2924")),
        *(({"Retry-After": value}, None) for value in ("soon", "-5", "nan", "inf", "", "Mon, 99 Foo", "2700000")),
    ],
)
def test_f02_the_first_wait_that_makes_sense_counts(bench, headers, wait_s):
    """None: no value is valid, so the wait is cascade's own."""
    bench.server.headers.update(headers)
    assert bench.alone(["429", "ok"]).ask(QUESTION).text == "Danube"
    assert bench.waits == [wait_s] if wait_s is not None else 0 <= bench.waits[0] <= 8


def test_f02_a_retry_after_that_is_too_long_is_not_waited_for(bench):
    bench.server.headers["Retry_After"] = "61"
    assert bench.error("429", RateLimitedError).retry_after_s == 61
    assert (bench.waits, bench.server.count()) == ([], 1)


def test_f02_a_retry_after_beyond_the_deadline_is_not_waited_for(bench):
    bench.server.headers["Retry_After"] = "30"
    with pytest.raises(RateLimitedError):
        bench.alone("429", timeouts={"per_question_s": 10.0}).ask(QUESTION)
    assert bench.waits == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f05_where_nobody_listens_nothing_is_billed(bench, provider):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        port = bound.getsockname()[1]
        with pytest.raises(ProviderUnavailableError) as caught:
            bench.alone("ok", provider, address=f"http://127.0.0.1:{port}/v1").ask(QUESTION)
    (call,) = caught.value.calls
    assert (call.billed, call.cost_nano_usd, len(bench.waits)) == ("no", 0, 2)
    assert provider == "litellm" or f"127.0.0.1:{port}" in str(caught.value)


@pytest.mark.parametrize("way", ["ask", "stream"])
def test_f09_a_guide_that_is_down_is_not_asked_twelve_times(bench, way):
    """0.5.0 made 12 HTTP calls to a guide at 503 for one question of four rounds, and as many for the next."""
    bench.server.modes["large"] = "503"
    orchestrator, requests, rounds = bench.served(strategy={"rounds": 4}), list[int](), 4
    for _ in range(3):
        before = bench.server.count("large")
        list(orchestrator.stream(QUESTION)) if way == "stream" else orchestrator.ask(QUESTION)
        requests.append(bench.server.count("large") - before)
    assert requests[0] <= 2 + rounds
    assert max(requests[1:]) <= rounds
    bench.server.modes["large"] = ["ok"]
    orchestrator.ask(QUESTION)
    assert orchestrator.runtime.guards["large"].health["large"].tokens > 0


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_f07_the_wall_clock_of_a_stream_never_cancels_its_reader(bench, provider):
    """The clock runs out while the reader is busy with a piece: the reader is told, not cancelled."""
    async with bench.alone("stream_empty_chunks", provider, timeouts={"per_question_s": 0.15}) as orchestrator:
        with pytest.raises((ProviderTimeoutError, StreamInterruptedError)):
            async for _ in orchestrator.astream(QUESTION):
                await asyncio.sleep(0.2)
    await asyncio.sleep(0)


def test_f10_a_caller_who_leaves_before_there_is_a_connection_sends_nothing(bench):
    """The clock runs out while a name is looked up: the call counts as not billed, so it must not be sent after all."""
    provider = OpenAIHTTP({"": Endpoint(bench.server.address, KEY)})
    exchange = provider._exchange(request(), 1.0, stream=False)
    assert not exchange.left()
    with pytest.raises(ProviderTimeoutError):
        event_loop.run(event_loop.on_loop(provider._connections.reply(exchange), 1.0))
    event_loop.run(provider.close())
    assert bench.server.requests == []


def test_f11_a_redirect_is_not_followed(bench):
    with FaultServer() as other:
        bench.server.text = f"{other.address}/chat/completions"
        bench.error("redirect", BadResponseError)
    assert (other.keys, other.paths) == ([], [])


@pytest.mark.parametrize("provider", PROVIDERS[1:])
def test_f11_litellm_never_takes_the_key_to_another_host(bench, provider):
    with FaultServer() as other:
        bench.server.text = f"{other.address}/chat/completions"
        bench.alone("redirect", provider).ask(QUESTION)
    assert bench.server.keys == [f"Bearer {KEY}"]
    assert not any(other.keys)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f12_a_captive_portal_is_no_completion(bench, provider):
    error = bench.error("html_200", BadResponseError, provider)
    assert bench.server.count() == 2
    assert "Sign in to the network" in str(error)
    assert len(str(error)) < 200 + 100
    assert KEY not in str(error)


def test_f03_a_path_that_is_not_there_is_named_without_the_key(bench):
    error = bench.error("404", BadRequestError)
    assert bench.server.address.removeprefix("http://") + "/chat/completions" in str(error)
    assert KEY not in str(error)


def test_f13_a_clock_that_jumps_back_changes_nothing(bench):
    backwards = count(2e9, -3600.0)
    bench.patch.setattr(time, "time", lambda: next(backwards))
    orchestrator, _ = bench.scripted(None, timeouts={"per_question_s": 60.0})
    answer = orchestrator.ask(QUESTION)
    latencies = [call.completion.latency_s for call in answer.calls if call.completion]
    assert answer.text
    assert len(latencies) == 2
    assert all(0 <= latency < 10 for latency in [answer.latency_s, *latencies])


async def test_f10_a_caller_who_is_cancelled_before_the_request_is_sent_is_known_to_owe_nothing(bench):
    provider, begun = OpenAIHTTP({"": Endpoint(bench.server.address, KEY)}), threading.Event()

    async def connecting(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    bench.patch.setattr(provider._connections, "reply", connecting)
    task = asyncio.create_task(provider.complete(request(), 60.0))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.args == (event_loop.NOT_BEGUN,)


LOCALHOST = Path(__file__).parent / "localhost.pem"
"""A certificate for localhost that signs itself, valid until 2126, and its key, which opens nothing else."""
_WHOLE = json.dumps(
    {
        "choices": [{"message": {"role": "assistant", "content": "Danube"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
).encode()
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_WHOLE), _WHOLE)
_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"
"""TLS's alert 70, protocol_version: OpenSSL's reply to plain HTTP."""


@asynccontextmanager
async def listening(reply: bytes, *, tls: bool) -> AsyncIterator[tuple[int, list[int]]]:
    """Yield the port of a server with one reply, and a list with an entry for each request that it read."""
    read: list[int] = []
    answers: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(asyncio.current_task())
        read.append(len(await reader.readuntil(b"\r\n\r\n")))
        writer.write(reply)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    security = None
    if tls:
        security = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        security.load_cert_chain(LOCALHOST)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=security)
    async with server:
        yield server.sockets[0].getsockname()[1], read
        await asyncio.gather(*filter(None, answers))  # TLS ends when the client agrees, which must be before the loop


async def test_a_certificate_that_nobody_vouches_for_is_named_and_not_retried(bench):
    async with listening(_REPLY, tls=True) as (port, read):
        cascade = bench.alone("ok", address=f"https://localhost:{port}/v1")
        with pytest.raises(AddressError, match=rf"localhost:{port} could not be verified: self-signed.*SSL_CERT_FILE"):
            await cascade.aask(QUESTION)
    assert (bench.waits, read) == ([], [])


async def test_a_certificate_for_another_name_is_named(bench):
    bench.patch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    async with listening(_REPLY, tls=True) as (port, _):
        cascade = bench.alone("ok", address=f"https://127.0.0.1:{port}/v1")
        with pytest.raises(AddressError, match=r"could not be verified: IP address mismatch"):
            await cascade.aask(QUESTION)


async def test_the_issuer_in_ssl_cert_file_is_trusted(bench):
    bench.patch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    async with listening(_REPLY, tls=True) as (port, read):
        cascade = bench.alone("ok", address=f"https://localhost:{port}/v1")
        assert (await cascade.aask(QUESTION)).text == "Danube"
    assert len(read) == 1


async def test_tls_at_an_http_address_says_to_use_https():
    async with listening(_ALERT, tls=False) as (port, _):
        provider = OpenAIHTTP({"": Endpoint(f"http://127.0.0.1:{port}/v1")})
        with pytest.raises(AddressError, match=r"seems to speak TLS: use https:// in api_base"):
            await provider.complete(request(), 5.0)
        await provider.close()
