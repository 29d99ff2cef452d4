"""Plain HTTP to any OpenAI-compatible server, so that `cascade` works without litellm.

All calls of a process run on one event loop in the background (`resilience.portal`), so the deadline covers the
whole exchange, even with a server that sends a byte at a time (F07). Redirects are not followed with the key (F11); a
reply is decompressed and read only up to a limit (F29).
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from functools import cache, partial
from urllib.parse import urlsplit

import aiohttp
import certifi

from cascade.errors import (
    AddressError,
    ClosedError,
    ConfigError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StreamInterruptedError,
)
from cascade.forks import after_fork, keep_for_ever
from cascade.providers.base import Payload
from cascade.providers.exchange import Exchange
from cascade.providers.fields import OPENAI_OWN
from cascade.providers.registry import CERTIFI_ALONE, Endpoint, ProviderSettings, Trusted
from cascade.resilience import portal
from cascade.types import Request

_CLOSE_S = 2.0
"""The longest time that `close` waits for the connections to close."""


class OpenAIHTTP:
    """Talks to OpenAI-compatible servers. Safe between threads, event loops and forks.

    Args:
        endpoints: an endpoint per model name; "" is the one for every other model.
        trusted: certificate authorities besides certifi's.

    Raises:
        ConfigError: a file of trusted certificates is missing, or has none.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], trusted: Trusted = CERTIFI_ALONE) -> None:
        self.endpoints = endpoints
        self._security = _security(trusted)
        self._connect()
        after_fork(self._in_child)

    def _connect(self) -> None:
        self._connections = _Connections(self._security)
        self._finalizer = weakref.finalize(self, _left_open, self._connections)
        self._finalizer.atexit = False

    def _in_child(self) -> None:
        """Start without connections: the existing ones are the parent's."""
        self._finalizer.detach()
        keep_for_ever(self._connections)
        self._connect()

    def knows(self, model: str) -> frozenset[str]:
        """Return the optional fields that a model's server reads: OpenAI's own, or only the name of the user."""
        endpoint = self.endpoints.get(model) or self.endpoints.get("") or Endpoint()
        return OPENAI_OWN if endpoint.is_openai else frozenset({"user"})

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request in one piece."""
        exchange = self._exchange(request, timeout_s, stream=False)
        with _mapping_errors(exchange):
            return await portal.on_loop(self._whole(exchange), timeout_s)

    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield the chunks of a server-sent stream."""
        exchange = self._exchange(request, timeout_s, stream=True)
        with _mapping_errors(exchange):
            async with aclosing(portal.items_on_loop(self._connections.chunks(exchange), timeout_s)) as whole:
                async for chunks in whole:
                    for chunk in chunks:
                        yield chunk

    async def _whole(self, exchange: Exchange) -> Payload:
        async with aclosing(self._connections.chunks(exchange)) as pieces:
            found = [chunk async for chunks in pieces for chunk in chunks]
        return found[0]

    async def close(self) -> None:
        """Close the connections. Calls under way end with `ClosedError`."""
        if self._connections.used:
            with suppress(TimeoutError, ClosedError):
                await portal.on_loop(self._connections.close(), _CLOSE_S)

    def _exchange(self, request: Request, timeout_s: float, *, stream: bool) -> Exchange:
        endpoint = self.endpoints.get(request.site) or self.endpoints.get("") or Endpoint()
        return Exchange(endpoint, request, timeout_s, stream=stream)


_MOST_CONNECTIONS = 1_280
_IDLE_S = 15.0
"""How long a connection is kept for the next call."""


@cache
def _security(trusted: Trusted) -> ssl.SSLContext:
    """Return an SSL context that trusts certifi's certificates and the given ones. Making it takes 10 ms."""
    context = ssl.create_default_context(cafile=certifi.where())
    if problems := trusted.problems():
        raise ConfigError(problems)
    if trusted != CERTIFI_ALONE:
        try:
            context.load_verify_locations(trusted.file, trusted.folders)
        except OSError as error:
            raise ConfigError([f"SSL_CERT_FILE: {trusted.file} holds no certificates ({error.strerror})"]) from None
    return context


class _Connections:
    """The connections of one provider. Everything here runs on the background loop."""

    def __init__(self, security: ssl.SSLContext) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._security = security
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def used(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._tasks)

    async def chunks(self, exchange: Exchange) -> AsyncGenerator[list[Payload], None]:
        """Send a request and yield the chunks of its reply, those of each piece of the body together."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._tasks.add(task)  # so that `close` can cancel it
        try:
            with _mapping_errors(exchange):
                sent = self._opened().post(
                    exchange.url, data=exchange.body(), headers=exchange.headers, allow_redirects=False
                )
                async with sent as response:
                    exchange.begin(response.status, _joined(response.headers))
                    async for piece in response.content.iter_any():
                        for number, chunks in enumerate(exchange.take(piece)):
                            if number:
                                await asyncio.sleep(0)  # lets other tasks and time-outs run
                            if chunks:
                                yield chunks
                yield exchange.end()
        finally:
            self._tasks.discard(task)
            del task  # task, error and this frame refer to each other: the data would stay

    def _opened(self) -> aiohttp.ClientSession:
        """Return the pool of connections, which a task holds until it is cancelled."""
        if self._session is None or self._session.closed:
            self._session = _session(self._security)
            self._tasks.add(asyncio.create_task(_held(self._session)))
        return self._session

    async def close(self) -> None:
        """Cancel every call under way and close the connections."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _session(security: ssl.SSLContext) -> aiohttp.ClientSession:
    resolver, jar = aiohttp.ThreadedResolver(), aiohttp.DummyCookieJar()
    pool = aiohttp.TCPConnector(limit=_MOST_CONNECTIONS, keepalive_timeout=_IDLE_S, ssl=security, resolver=resolver)
    endless = aiohttp.ClientTimeout()  # the caller enforces the deadline
    return aiohttp.ClientSession(connector=pool, cookie_jar=jar, timeout=endless, auto_decompress=False)


async def post(url: str, data: bytes, limit_s: float, trusted: Trusted = CERTIFI_ALONE) -> str | None:
    """Post JSON to an address of the operator's; return why it was not taken, without the address, or None.

    The reply is not read, and no redirect is followed.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "cascade"}
    try:
        async with (
            asyncio.timeout(limit_s),
            _session(_security(trusted)) as session,
            session.post(url, data=data, headers=headers, allow_redirects=False) as response,
        ):
            return None if response.status < 300 else f"status {response.status}"
    except (TimeoutError, OSError, ValueError, aiohttp.ClientError, ConfigError) as error:
        return type(error).__name__


async def _held(session: aiohttp.ClientSession) -> None:
    """Close a pool when this task is cancelled: by `close`, or by the end of the loop."""
    async with session:
        await asyncio.get_running_loop().create_future()


def _joined(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers by lower-case name; the values of a repeated name are joined with commas."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def _left_open(connections: _Connections) -> None:
    """Close the connections of a provider that was left open."""
    if connections.used:
        portal.begin(partial(connections.close))


@contextmanager
def _mapping_errors(exchange: Exchange) -> Iterator[None]:
    """Convert foreign errors; they are not chained, since they contain the request's headers (F68)."""
    try:
        yield
    except asyncio.CancelledError as error:
        if not exchange.left():
            error.args = (portal.NOT_BEGUN,)
        raise
    except (TimeoutError, aiohttp.ClientError) as error:
        raise _mapped(error, exchange) from None


def _mapped(error: Exception, exchange: Exchange) -> ProviderError:
    """Return cascade's error for a foreign one. A call that broke after the request was sent may be billed."""
    model, billed = exchange.request.model, "maybe" if exchange.left() else "no"
    said = f"{type(error).__name__} at {urlsplit(exchange.url).netloc.rpartition('@')[2]}"
    if isinstance(error, TimeoutError):
        says = f"{model} was not done in {exchange.timeout_s:.1f} s ({said})."
        return ProviderTimeoutError(says, model=model, billed=billed)
    if (wrong := _wrong_address(error, exchange.url)) is not None:
        return AddressError(f"{model} could not be asked: {wrong}", model=model)
    if billed == "no":
        return ProviderUnavailableError(f"{model} could not be reached: {said}.", model=model)
    if exchange.answered:
        return StreamInterruptedError(f"{model}: the connection broke in the answer ({said}).", model=model)
    says = f"{model}: the connection broke before an answer came ({said}); the call may be billed."
    return ProviderUnavailableError(says, model=model, billed=billed)


_TLS_ALERT = r"b'\x15\x03"
"""The start of a TLS server's reply to plain HTTP (RFC 8446, section 5.1), as aiohttp quotes it."""


def _wrong_address(error: Exception, url: str) -> str | None:
    """Return what is wrong with the address and what to do; None if the error does not show it."""
    server = urlsplit(url).netloc.rpartition("@")[2]
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        found = error.certificate_error
        why = found.verify_message if isinstance(found, ssl.SSLCertVerificationError) else str(found)
        return (
            f"the certificate of {server} could not be verified: {why.rstrip('.')}. If you trust its issuer, name "
            "the issuer's PEM file in the variable SSL_CERT_FILE; an expired certificate or one for another name is "
            "for the server's owner to renew."
        )
    if isinstance(error, aiohttp.ClientResponseError) and _TLS_ALERT in error.message:
        return f"the server {server} seems to speak TLS: use https:// in api_base."
    return None


def create(settings: ProviderSettings) -> OpenAIHTTP:
    """Return the provider."""
    return OpenAIHTTP(settings.endpoints, settings.trusted)
