"""Clients that mean harm, or are just gone: raw bytes on a loopback port."""

from __future__ import annotations

import hmac
import json
import logging
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPResponse
from types import SimpleNamespace
from typing import Any

import pytest
from patience import until

from cascade.config import load as config_of
from cascade.config.schema import ServerConfig
from cascade.providers.fake import FakeProvider, reply
from cascade.safety import redact
from cascade.server import lifecycle
from cascade.server.auth import check, is_loopback, listening_problems, new_key
from cascade.server.connection import LimitedConnection
from cascade.server.errors import GatewayError
from cascade.server.lifecycle import Throttle, serve

from .served import ASK, CONFIG, WAIT_S, Gated, listening, orchestrator, started, write
from .test_contract import SURE

LIMITS = {"max_head_bytes": 4_000, "max_body_bytes": 20_000}


def connected(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), WAIT_S)


def read_all(open_: socket.socket) -> bytes:
    """Read until the server closes the connection; a reset is an end, too."""
    data = b""
    try:
        while piece := open_.recv(65_536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def request(body: bytes, *headers: str) -> bytes:
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode("latin-1") + body


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "cascade", "messages": ASK, **fields}).encode()


@pytest.fixture(scope="module", params=[{}])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    limits = LIMITS | request.param
    with orchestrator(FakeProvider({"small": [SURE]}), server=limits) as served, listening(served) as address:
        yield address


hurried = pytest.mark.parametrize("url", [{"body_s": 0.2}], indirect=True)
"""Its server does not wait for a busy machine either, so a request may have to be sent again."""


def sent(url: str, *pieces: bytes) -> bytes:
    """Send raw bytes, and return all that comes back until the server closes."""
    with connected(url) as open_:
        try:
            for piece in pieces:
                open_.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server closed before it had read all
        return read_all(open_)


def whole(open_: socket.socket) -> tuple[int, bytes]:
    """Read one response, in however many pieces it comes; return its status and its body."""
    with HTTPResponse(open_) as response:
        response.begin()
        return response.status, response.read()


def well(url: str) -> bool:
    """Whether the server still answers."""
    return sent(url, request(chat(), "Connection: close")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 3_000, b"a" * 3_000],  # one header that never ends
        [b"GET / HTTP/1.1\r\n", *[b"X-%d: a\r\n" % n for n in range(1_000)]],  # headers that never end
        [b"GET /" + b"a" * 3_000, b"a" * 3_000],
    ],
)
def test_a_head_that_never_ends_is_cut_off(url, pieces):
    assert b" 431 " in sent(url, *pieces).split(b"\r\n")[0]
    assert well(url)


@hurried
@pytest.mark.parametrize("start", [b"", b"POST /v1/chat/completions HT"])
def test_a_head_that_does_not_come_is_not_waited_for(url, start):
    assert sent(url, start) == b""
    until(lambda: well(url))


@hurried
def test_nor_is_a_second_head_on_the_same_connection(url):
    after = None
    while after is None:
        with connected(url) as open_, suppress(ConnectionError):
            open_.sendall(request(chat()))
            assert whole(open_)[0] == 200
            open_.sendall(b"GET /hea")
            after = read_all(open_)
    assert after == b""


def test_connections_without_a_key_push_out_only_one_another():
    key, most = new_key(), 4
    server = {"keys": [{"name": "app", "sha256": key.sha256, "scopes": ["ask", "metrics"]}], "max_requests": most}
    with_key = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nx-api-key: " + key.key.encode() + b"\r\n\r\n"
    with orchestrator(server=server) as served, listening(served) as url, ExitStack() as stack:
        known = stack.enter_context(connected(url))
        known.sendall(with_key)
        assert whole(known)[0] == 200
        idle = [stack.enter_context(connected(url)) for _ in range(2 * most)]
        for stranger in idle[most:]:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert whole(stranger)[0] == 401
        assert [read_all(stranger) for stranger in idle[:most]] == [b""] * most
        known.sendall(with_key)
        _, text = whole(known)
        assert b"cascade_newcomers %d\n" % most in text
        assert b"cascade_newcomers_closed_total %d\n" % most in text


@hurried
def test_a_body_that_does_not_come_is_refused(url):
    until(lambda: sent(url, request(chat(), "Connection: close")[:-5]).startswith(b"HTTP/1.1 408"))
    unread = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nbody"  # answered at once
    until(lambda: sent(url, unread).startswith(b"HTTP/1.1 200"))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_before_it_is_read(url, chunked):
    body = b'{"model": "' + b"a" * 40_000 + b'"}'
    if chunked:
        head = request(b"", "Transfer-Encoding: chunked", "Connection: close").replace(b"Content-Length: 0\r\n", b"")
        data = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        data = request(body, "Connection: close")
    answer = sent(url, data)
    assert answer.startswith(b"HTTP/1.1 413")
    assert well(url)


def test_a_client_that_reads_nothing_is_left(monkeypatch):
    """A reply of six million bytes is more than the system keeps for a connection."""
    pause, paused = LimitedConnection.pause_writing, list[LimitedConnection]()

    def hurry(connection: LimitedConnection) -> None:
        connection._patience_s /= 100
        pause(connection)
        paused.append(connection)

    monkeypatch.setattr(LimitedConnection, "pause_writing", hurry)
    provider = FakeProvider({"small": [reply("\x01" * 1_000_000)]})
    with orchestrator(provider) as served, listening(served) as address, socket.socket() as open_:
        open_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        open_.connect(("127.0.0.1", int(address.rpartition(":")[2])))
        open_.sendall(request(chat(model="small")))
        assert open_.recv(1)  # the response has begun
        until(lambda: bool(paused) and paused[0].transport.is_closing())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("stream", "after_words"), [(False, 0), (True, 0), (True, 1)])
def test_a_client_that_hangs_up_stops_the_call_behind_it(stream, after_words, half):
    """One that closes its sending half has hung up: it cannot be told from one that has gone."""
    gated = Gated({"large": [SURE]}, after_words=after_words)
    with orchestrator(gated) as served, listening(served) as address:
        with connected(address) as open_:
            open_.sendall(request(chat(model="large", stream=stream)))
            data = b""
            while after_words and b"The" not in data:  # the head may come by itself
                piece = open_.recv(65_536)
                assert piece
                data += piece
            assert gated.waiting.wait(WAIT_S)
            if half:
                open_.shutdown(socket.SHUT_WR)
                assert gated.cancelled.wait(WAIT_S)
        assert gated.cancelled.wait(WAIT_S)
        counted = b'cascade_requests_total{model="large",served_by="",status="499"} 1'
        scrape = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        until(lambda: counted in (metrics := sent(address, scrape)) and b"cascade_in_flight 0" in metrics)


def test_requests_one_after_another_on_one_connection_are_answered_in_order(url):
    """The client that pipelines has not hung up."""
    answer = sent(url, request(chat()) + request(chat(model="nope")) + request(chat(), "Connection: close"))
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"404", b"200"]


def test_a_flood_of_the_same_message_is_logged_a_few_times_and_counted():
    throttle, lines = Throttle(2), list[str]()
    for second in (*range(10), 60, -3600):  # at last the clock is set back
        record = logging.makeLogRecord({"msg": "down %d", "args": (second,), "created": float(second), "lineno": 1})
        if throttle.filter(record):
            lines.append(record.getMessage())
    assert throttle.filter(logging.makeLogRecord({"msg": "other", "lineno": 2}))
    assert (lines[:2], len(lines), "8 more" in lines[2]) == (["down 0", "down 1"], 4, True)


def test_what_a_first_call_would_load_is_loaded_before_anybody_asks(monkeypatch):
    done = list[str]()
    litellm = SimpleNamespace(completion=lambda *_, mock_response: done.append("litellm"))
    monkeypatch.setattr("cascade.providers.litellm.load_litellm", lambda: litellm)
    monkeypatch.setattr(lifecycle, "_served", lambda *_: done.append("served"))
    monkeypatch.setattr(lifecycle.asyncio.Runner, "run", lambda *_: None)
    monkeypatch.setattr(lifecycle.gc, "freeze", lambda: None)
    serve({"": config_of({**CONFIG, "provider": "litellm", "server": {"port": 0}})})
    assert (done[0], done[-1]) == ("litellm", "served")
    done.clear()
    serve({"": config_of({**CONFIG, "server": {"port": 0}})})
    assert done == ["served"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_request_end_and_takes_no_other(number, loopback, tmp_path, monkeypatch):
    """The process listens no more, answers what was asked before, and ends well."""
    from faults import server as faults

    arrived, go = threading.Event(), threading.Event()

    def waits(handler: Any, body: Any) -> None:
        arrived.set()
        go.wait(WAIT_S)
        handler._send(200, faults.encode(faults.PAYLOADS["ok"](body)))

    monkeypatch.setitem(faults.RAW, "waits", waits)
    loopback.modes["small"] = "waits"
    provider = {"kind": "openai_http", "api_base": loopback.address}
    with started(write(tmp_path / "cascade.yaml", provider=provider)) as (process, url):
        with connected(url) as open_:
            open_.sendall(request(chat(model="small")))
            assert arrived.wait(WAIT_S)
            process.send_signal(number)
            until(lambda: is_free(int(url.rpartition(":")[2])))
            go.set()
            assert read_all(open_).startswith(b"HTTP/1.1 200")
        assert process.wait(WAIT_S) == 0


def is_free(port: int) -> bool:
    """Return whether nobody listens there; connections that come faster than they are taken would hold up a signal."""
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


KEY, OTHER = new_key(), new_key()
KEYED = ServerConfig(keys=({"name": "app", "sha256": KEY.sha256}, {"name": "batch", "sha256": OTHER.sha256}))
PLAIN, ANY = ServerConfig(), ServerConfig(any_address=True)


def expiring(days: int) -> ServerConfig:
    expires = (datetime.now(UTC).date() + timedelta(days=days)).isoformat()
    return ServerConfig(keys=({"name": "app", "sha256": KEY.sha256, "expires": expires},))


@pytest.mark.parametrize(
    ("headers", "settings", "result"),
    [
        ({"authorization": f"Bearer {KEY.key}"}, KEYED, "app"),
        ({"authorization": f"bearer  {OTHER.key} "}, KEYED, "batch"),
        *(({"authorization": text}, KEYED, 401) for text in ("", "Bearer", "Bearer ", "Bearer \udcff\u20ac")),
        *(({"authorization": text}, KEYED, 401) for text in (f"Basic {KEY.key}", KEY.key, f"Bearer {KEY.key}x")),
        ({"authorization": f"Bearer {KEY.sha256}"}, KEYED, 401),
        ({"x-api-key": KEY.key}, expiring(-1), 401),
        ({"x-api-key": KEY.key}, expiring(1), "app"),
        # without keys this machine is served, by no name of somebody else
        *(({"host": host}, PLAIN, None) for host in ("localhost", "127.3.2.1:1", "localhost:8400", "[::1]:8400")),
        *(
            ({"host": host}, PLAIN, 403)
            for host in ("", "evil.example", "127.0.0.1.evil.example:8400", "10.0.0.1", "[")
        ),
        ({"host": "localhost@evil.example"}, PLAIN, 403),
        ({"host": "gateway.internal"}, ANY, None),  # where the configuration says so
    ],
)
def test_who_is_served(headers, settings, result):
    if not isinstance(result, int):
        key = check(headers, settings)
        assert (None if key is None else key.name) == result
        return
    with pytest.raises(GatewayError) as caught:
        check(headers, settings)
    assert caught.value.status == result
    assert "sk-cascade" not in str(caught.value)


def test_every_key_is_compared_and_in_constant_time(monkeypatch):
    compared, real = list[str](), hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda left, right: compared.append(right) or real(left, right))
    check({"authorization": f"Bearer {KEY.key}"}, KEYED)
    assert compared == [KEY.sha256, OTHER.sha256]  # also after the one that fits


def test_keys_are_long_random_and_known_to_the_redaction():
    assert KEY.key != OTHER.key
    assert len(KEY.key) - len("sk-cascade-") == 43  # 256 bits
    assert KEY.key not in redact(f"it is {KEY.key}")


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        *(({"host": host}, False) for host in ("127.0.0.1", "127.0.0.2", "::1", "LOCALHOST")),
        *(({"host": host}, True) for host in ("0.0.0.0", "::", "example.com", "local")),
        ({"host": "0.0.0.0", "any_address": True}, False),
        ({"host": "0.0.0.0", "keys": ({"name": "a", "sha256": "0" * 64},)}, False),
    ],
)
def test_other_machines_are_listened_to_with_keys_or_on_demand(settings, refused):
    assert bool(list(listening_problems(ServerConfig(**settings)))) is refused
    assert len(settings) > 1 or is_loopback(settings["host"]) is not refused
