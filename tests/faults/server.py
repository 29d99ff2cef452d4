"""One loopback server that speaks /v1/chat/completions, and decisions, and misbehaves in a way of its own for every fault.

`server.modes[model] = "html_200"` makes that model misbehave; every other answers well. A list is a mode per call, the
last one repeated. `server.requests` holds what was asked, `server.keys` the Authorization headers.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from .bodies import PAYLOADS, encode, good
from .decisions import DECISIONS, decided, dialect_of
from .streams import STREAMS, as_stream

DRIP_S = 0.02
_JSON = "application/json"
HTML = "<html><head><title>Sign in</title></head><body>Sign in to the network " + "and pay " * 100 + "</body></html>"


class FaultServer:
    """The server, running while it is a context."""

    def __init__(self) -> None:
        self.modes: dict[str, str | list[str]] = {}
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        self.headers: dict[str, str] = {}
        self.text = ""
        self.closing, self.gate = threading.Event(), threading.Event()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.faults = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def address(self) -> str:
        """The address to configure."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def count(self, model: str | None = None) -> int:
        """Return how many requests came, for one model or for all."""
        return sum(model is None or request["model"] == model for request in self.requests)

    def mode(self, model: str) -> str:
        """Return how this call of a model misbehaves."""
        modes = self.modes.get(model, "ok")
        return modes if isinstance(modes, str) else modes[min(self.count(model), len(modes)) - 1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128  # more at once than 5, the default, would wait a second for their connections


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Say nothing."""

    def do_GET(self) -> None:
        """Note that somebody followed a redirect or looked around."""
        self._faults.paths.append(self.path)
        self._send(404, b"{}")

    def do_POST(self) -> None:
        """Answer a chat completion in the model's mode."""
        faults = self._faults
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        faults.requests.append(body)
        faults.keys.append(self.headers.get("Authorization"))
        faults.paths.append(self.path)
        mode = faults.mode(body["model"])
        try:
            self._misbehave(mode, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    @property
    def _faults(self) -> FaultServer:
        faults: FaultServer = self.server.faults
        return faults

    def _misbehave(self, mode: str, body: Mapping[str, Any]) -> None:
        if mode.isdigit():
            self._send(int(mode), _status_body(self._faults, self.headers.get("Authorization")))
        elif dialect_of(body) and mode in DECISIONS:
            self._send(200, decided(mode, body))
        elif mode in RAW:
            RAW[mode](self, body)
        elif body.get("stream"):
            self._stream(STREAMS[mode](body) if mode in STREAMS else as_stream(PAYLOADS[mode](body)))
        else:
            self._send(200, encode(PAYLOADS[mode](body)))

    def _send(self, status: int, body: bytes, kind: str = _JSON, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", headers.pop("length", str(len(body))))
        for name, value in {**self._faults.headers, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, lines: list[bytes]) -> None:
        self._start_stream()
        for line in lines:
            if line == b"RESET":
                self._reset()
                return
            if line == b"GATE":
                self._pass_gate()
                continue
            self.wfile.write(line)
            self.wfile.flush()

    def _pass_gate(self) -> None:
        while not self._faults.gate.wait(DRIP_S) and not self._faults.closing.is_set():
            pass

    def _start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def _reset(self) -> None:
        """Break the connection with a TCP reset, after what was written has arrived."""
        self.wfile.flush()
        time.sleep(0.02)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _drip(self, data: bytes) -> None:
        while True:
            self.wfile.write(data)
            self.wfile.flush()
            if self._faults.closing.wait(DRIP_S):
                return


def _status_body(faults: FaultServer, key: str | None) -> bytes:
    message = faults.text.replace("KEY", (key or "").removeprefix("Bearer ")) or f"it went wrong with {key}"
    return encode({"error": {"message": message, "type": "some_error", "param": "max_tokens"}})


def _html(handler: Any, _body: Any) -> None:
    handler._send(200, HTML.encode(), "text/html")


def _refuses_logprobs(handler: Any, body: Any) -> None:
    """Answer as OpenAI's reasoning models do, which take no log-probs."""
    if body.get("logprobs"):
        error = {"message": "Unsupported parameter: 'logprobs' is not supported with this model.", "param": "logprobs"}
        handler._send(400, encode({"error": {**error, "type": "invalid_request_error"}}))
    else:
        handler._send(200, encode(PAYLOADS["no_logprobs"](body)))


def _bad_json(handler: Any, body: Any) -> None:
    handler._send(200, encode(good(body))[:-20])


def _wrong_content_type(handler: Any, body: Any) -> None:
    handler._send(200, b"data: " + encode(good(body)) + b"\n\n", "text/event-stream")


def _json_as_html(handler: Any, body: Any) -> None:
    handler._send(200, encode(good(body)), "text/html")


def _not_an_object(handler: Any, _body: Any) -> None:
    handler._send(200, b"[1, 2]")


def _cut_short(handler: Any, body: Any) -> None:
    handler._send(200, encode(good(body))[:40], length="4000")
    handler.close_connection = True


def _invalid_utf8(handler: Any, body: Any) -> None:
    handler._send(200, encode(good(body)).replace(b"Danube", b"Dan\xff\xfeube"))


def _silent(handler: Any, _body: Any) -> None:
    handler.close_connection = True


def _quota(handler: Any, _body: Any) -> None:
    handler._send(429, encode({"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}))


def _named_invalid(handler: Any, _body: Any) -> None:
    handler._send(400, encode({"error": {"message": "Invalid response_format.", "type": "invalid_request_error"}}))


@cache
def bomb(layers: int) -> bytes:
    """Return 64 MB of blanks, packed so many times: a thousandth of that, or less, on the wire."""
    packed = b" " * 64_000_000
    for _ in range(layers):
        packed = gzip.compress(packed, 6)
    return packed


def _packed(layers: int) -> Callable[[Any, Any], None]:
    return lambda handler, _body: handler._send(200, bomb(layers), Content_Encoding=", ".join(["gzip"] * layers))


def _million_lists(handler: Any, _body: Any) -> None:
    handler._send(200, b'{"choices": [' + b"[]," * 5_000_000 + b"1]}")


def _unasked_whole(handler: Any, body: Any) -> None:
    handler._send(200, json.dumps(good(body), indent=2).encode(), "Application/JSON; charset=UTF-8")


def _flood_of_heads(handler: Any, _body: Any) -> None:
    while not handler._faults.closing.is_set():
        handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 1_000)


def _hang(handler: Any, _body: Any) -> None:
    handler._faults.closing.wait()
    handler.close_connection = True


def _gated(handler: Any, body: Any) -> None:
    """Answer well once the gate is open; of a stream the first piece comes before."""
    if body.get("stream"):
        lines = as_stream(good(body))
        handler._stream([lines[0], b"GATE", *lines[1:]])
    else:
        handler._pass_gate()
        handler._send(200, encode(good(body)))


def _slow_drip(handler: Any, _body: Any) -> None:
    handler._start_stream()
    handler._drip(b": alive\n")


def _slow_headers(handler: Any, _body: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Alive: ")
    handler._drip(b"1")  # of many headers aiohttp refuses the 129th
    handler.close_connection = True


def _huge_head(handler: Any, body: Any) -> None:
    handler._send(200, encode(good(body)), **{f"X-{number}": "a" * 1_000 for number in range(500)})


def _redirect(handler: Any, _body: Any) -> None:
    handler._send(307, b"", Location=handler._faults.text)


def _reset_at_once(handler: Any, _body: Any) -> None:
    handler._reset()


def _echo_key_in_200(handler: Any, _body: Any) -> None:
    key = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
    handler._send(200, encode({"error": {"message": f"bad key {key}", "type": "authentication_error"}}))


RAW: dict[str, Callable[[Any, Any], None]] = {
    "html_200": _html,
    "refuses_logprobs": _refuses_logprobs,
    "bad_json": _bad_json,
    "wrong_content_type": _wrong_content_type,
    "json_as_html": _json_as_html,
    "not_an_object": _not_an_object,
    "bomb": _packed(1),
    "nested_bomb": _packed(2),
    "million_lists": _million_lists,
    "whole": _unasked_whole,
    "flood_of_heads": _flood_of_heads,
    "silent": _silent,
    "quota": _quota,
    "named_invalid": _named_invalid,
    "cut_short": _cut_short,
    "invalid_utf8": _invalid_utf8,
    "hang": _hang,
    "gated": _gated,
    "slow_drip": _slow_drip,
    "slow_headers": _slow_headers,
    "huge_head": _huge_head,
    "redirect": _redirect,
    "reset": _reset_at_once,
    "echo_key_in_200": _echo_key_in_200,
}
