"""Adds limits to uvicorn's connections: on the size and the time of a request's head, and against ambiguous heads.

A head is ambiguous if a proxy in front could read it differently; it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cascade.server.admission import ADMITTED, Newcomers

_LINGER_S = 1.0
"""Seconds for which a stopping server waits for a request on an idle connection."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class LimitedConnection(HttpToolsProtocol):
    """A connection that is closed when the head of a request is too large, too slow or ambiguous.

    Args:
        max_head_bytes: the most bytes before a head is complete, and the most bytes of its headers.
        patience_s: how long a head may take, from the connection or from its first byte, a body after its response, and
            how long a client may pause reading.
    """

    def __init__(self, max_head_bytes: int, patience_s: float, newcomers: Newcomers, **others: Any) -> None:
        super().__init__(**others)
        self._newcomers = newcomers
        self._max_head_bytes, self._patience_s = max_head_bytes, patience_s
        self._head_bytes = 0
        self._in_head, self._too_large, self._last = True, False, False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def _start(self, timer: str, wait_s: float, act: Callable[[], None]) -> None:
        self._stop(timer)
        self._timers[timer] = self.loop.call_later(wait_s, act)

    def _stop(self, timer: str) -> None:
        if timer in self._timers:
            self._timers.pop(timer).cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first head."""
        super().connection_made(transport)
        self._start("head", self._patience_s, transport.close)
        self._newcomers.add(self, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        for timer in [*self._timers]:
            self._stop(timer)
        self._newcomers.pop(self, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read, for a limited time."""
        super().pause_writing()
        self._start("unread", self._patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the clock, since the client reads again."""
        self._stop("unread")
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Handle a piece of data; close the connection if the head becomes too large."""
        self._head_bytes += len(data) if self._in_head else 0
        super().data_received(data)
        if not self._in_head or not self._head_bytes or self.transport.is_closing():
            return
        if self._head_bytes > self._max_head_bytes:
            self._refuse_head()
        elif "head" not in self._timers:
            self._start("head", self._patience_s, self.transport.close)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header of the head; ignore trailers (RFC 9110, 6.5), which come after the body."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check a complete head. A ValueError makes the parser give up, and uvicorn answer with 400."""
        self._stop("head")
        # The piece that completes a head may also hold a body, or further requests.
        size = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if min(self._head_bytes, size) > self._max_head_bytes:
            self._too_large = True
            raise ValueError
        if _ambiguous(self.headers, self.parser.get_http_version()):
            raise ValueError
        self._in_head, self._head_bytes = False, 0
        scope: Any = self.scope
        scope[ADMITTED] = partial(self._newcomers.pop, self, None)
        super().on_headers_complete()
        if self._last:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close after the running request, or after the next one if it comes at once, so that none is dropped."""
        self._last = True
        cycle: Any = self.cycle  # None before the first request
        if cycle is None or cycle.response_complete:
            self._start("head", _LINGER_S, self.transport.close)
        elif not cycle.response_started:
            cycle.keep_alive = False  # the response's headers say so, unless it has begun

    def on_response_complete(self) -> None:
        """Wait for the rest of the request and for the next one; only briefly if the server is stopping."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._last:
            self._start("head", _LINGER_S, self.transport.close)
        elif not self._in_head:
            self._start("body", self._patience_s, self.transport.close)

    def on_message_complete(self) -> None:
        """Expect the head of the next request."""
        super().on_message_complete()
        self._stop("body")
        self._in_head = True

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not a request, or a request with too large a head."""
        if self._too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        self.transport.write(_TOO_LARGE)
        self.transport.close()


_ONCE = frozenset({b"host", b"authorization", b"x-api-key", b"content-type", b"transfer-encoding"})


def _ambiguous(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    """Return whether two readers may understand a head differently (RFC 9112, 3.2, 6.1 and 11.2)."""
    every = {name for name, _ in headers}
    names = [name for name, _ in headers if name in _ONCE]
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    return (
        version not in {"1.0", "1.1"}
        or len(names) > len({*names})
        or (version == "1.1" and b"host" not in names)
        # after an upgrade that it ignores, uvicorn reads whatever follows, even a body, as the next request
        or (b"upgrade" in every and not every.isdisjoint({b"content-length", b"transfer-encoding"}))
        or (bool(codings) and (codings != [b"chunked"] or version == "1.0"))
    )
