"""Checks every request's key, limits and time. Every failure is answered here, in the client's dialect."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from cascade.config.schema import ServerConfig
from cascade.errors import CascadeError
from cascade.records.rows import uuid7
from cascade.safety import redact
from cascade.server import access
from cascade.server.bodies import ClientLeftError, Receive
from cascade.server.dialects.base import Dialect, ReplyWriter, encoded
from cascade.server.dialects.completions import ChatCompletions
from cascade.server.metrics import Metrics
from cascade.server.pages.endpoints import needs_no_key
from cascade.server.receipt import Receipt
from cascade.server.refusals import Refusal, Refused, refusal_of, unexpected
from cascade.server.wrong_keys import WrongKeys

logger = logging.getLogger("cascade")
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no key: they show only whether the process is healthy."""
_CLIENT_LEFT = 499
"""nginx's status for a client that hung up; it is counted and never sent."""
_NO_KEY = 401
_GRACE_S = 1.0
"""Seconds after its deadline (when the best answer is served) at which an unfinished request is cut off."""
JSON = b"application/json"


@dataclass
class HttpExchange:
    """One request and its response so far.

    Attributes:
        send: ASGI's.
        trace_id: its id in the traces and in its response.
        model: the model that was asked for; "" until it is known to exist, None if the path takes none.
        status: the response's status, None until it has begun.
        key: the name of the server's key that the request carries.
        receipt: the outcome, once it is answered.
        dialect: the form of its errors.
        writer: writes its stream, once one may begin.
        mode: the mode of the cascade that answers it, if it has modes.
    """

    send: Send
    dialect: Dialect = field(default_factory=ChatCompletions)
    trace_id: str = field(default_factory=uuid7)
    model: str | None = None
    status: int | None = None
    key: str | None = None
    receipt: Receipt | None = None
    writer: ReplyWriter | None = None
    mode: str | None = None
    unsent: tuple[str, ...] = ()
    started_s: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self.started_s

    async def begin(self, status: int, content_type: bytes, headers: list[tuple[str, str]]) -> None:
        """Send the head of the response."""
        self.status = status
        raw = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
        await self.send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type), *raw]}
        )

    async def more(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def respond(self, status: int, data: bytes, headers: list[tuple[str, str]], kind: bytes = JSON) -> None:
        """Send a whole response."""
        await self.begin(status, kind, [*headers, ("content-length", str(len(data)))])
        await self.end(data)

    async def refuse(self, refusal: Refusal) -> None:
        """Send an error: as the response, or as the last event of a stream that has begun."""
        if self.status is None:
            headers = [*refusal.headers, *Receipt(self.trace_id).headers()]
            await self.respond(refusal.status, encoded(self.dialect.refused(refusal, self.trace_id)), headers)
        else:
            await self.end(b"" if self.writer is None else self.writer.broken(refusal))
        self.status = refusal.status


class Edge:
    """Wraps the application. `scope["exchange"]` is the request's `HttpExchange`.

    Args:
        app: the application that answers.
        settings: the limits, and the keys.
        metrics: counts the requests for a model.
        dialects: the dialects by their paths; on other paths errors have OpenAI's form.
    """

    def __init__(
        self, app: App, settings: ServerConfig, metrics: Metrics, dialects: Mapping[str, Dialect] | None = None
    ) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._wrong_keys = WrongKeys()
        self._dialects, self._default = dict(dialects or {}), ChatCompletions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]  # that of a dialect, or below it
        under = [one for place, one in self._dialects.items() if path == place or path.startswith(f"{place}/")]
        exchange = HttpExchange(send, under[0] if under else self._default)
        scope["exchange"], scope["app"] = exchange, self
        try:
            refusal = await self._answered(scope, receive, send)
            if refusal is not None:
                await exchange.refuse(refusal)
        except ClientLeftError:
            exchange.status = _CLIENT_LEFT
        finally:
            if exchange.model is not None:
                status = _CLIENT_LEFT if exchange.status is None else exchange.status
                self._metrics.count(exchange.model, status, exchange.seconds, exchange.receipt)

    def _admit(self, scope: Scope) -> None:
        """Check the key of a request and its scope. Raises Refused as `_key` does, and with 403 or 404."""
        if not scope["path"].isprintable():  # the router also takes "/metrics\n" for /metrics, which needs a scope
            raise Refused(404, "There is no such path: it has control characters.")
        if _open(scope, self._settings):
            return
        key = scope["exchange"].key = self._key(scope)
        needed = access.scopes_for(scope["path"], asks=scope["path"] in self._dialects)
        if needed:
            access.refuse_without(self._settings, key, *needed)

    def _key(self, scope: Scope) -> str | None:
        """Return the name of the key that a request carries. Raises Refused as `access.check` does, and with 429."""
        try:
            return access.check(Headers(scope=scope), self._settings)
        except Refused as refused:
            wait_s = self._wrong_keys.wait_s((scope.get("client") or ("",))[0]) if refused.status == _NO_KEY else None
            if wait_s is None:
                raise
            said = "Too many wrong keys came from this address. Send one of the server's keys."
            raise Refused(429, said, code="too_many_wrong_keys", retry_after_s=wait_s) from None

    def _no_path(self) -> str:
        places = ", ".join(self._dialects)
        return f"there is no such path. Chat requests go to {places}; GET /openapi.json lists all paths"

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> Refusal | None:
        """Answer a request; if it fails, return the refusal. Raises ClientLeftError."""
        settings = self._settings
        try:
            async with asyncio.timeout(settings.request_s + _GRACE_S) as clock:
                self._admit(scope)
                await self._app(scope, receive, send)
        except ClientLeftError:
            raise
        except (CascadeError, Refused) as error:
            _let_go(error)
            return refusal_of(error)
        except HTTPException as error:
            why = self._no_path() if error.status_code == HTTPStatus.NOT_FOUND else error.detail
            return refusal_of(Refused(error.status_code, f"{scope['method']} {scope['path'][:200]}: {why}"))
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end in silence, nor in a page of its own
            if isinstance(error, TimeoutError) and clock.expired():
                return refusal_of(Refused(504, f"No answer within {settings.request_s:g} s.", code="request_timeout"))
            logger.error("a request failed: %s", redact("".join(traceback.format_exception(error))))  # noqa: TRY400
            _let_go(error)
            return unexpected()
        return None


def _let_go(error: BaseException | None) -> None:
    """Break the reference cycles between an error and the frames that it passed through.

    Otherwise a full garbage collection frees them much later, and every request waits for it.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _open(scope: Scope, settings: ServerConfig) -> bool:
    """Whether a request needs no key: it checks the process, or loads a page that will ask for the key."""
    if scope["path"] in _OPEN:
        return True
    has_key = any(name in {b"authorization", b"x-api-key"} for name, _ in scope["headers"])
    return bool(settings.keys) and needs_no_key(scope["method"], scope["path"], has_key=has_key)
