"""Plain HTTP to any OpenAI-compatible server: what keeps `cascade` working where litellm is absent.

All calls of a process run on one event loop in the background (`resilience.background`), so the wall clock holds over
the whole exchange, also against a server that drips a byte at a time (F07). Redirects are not followed with the key
(F11); a reply is decompressed and read up to a size, not beyond (F29).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from cascade.errors import (
    ClosedError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StreamInterruptedError,
)
from cascade.providers.base import Payload
from cascade.providers.exchange import Endpoint, Exchange
from cascade.providers.registry import ProviderSettings
from cascade.resilience import background
from cascade.resilience.background import OutOfTimeError
from cascade.resilience.forks import after_fork, keep, no_fork
from cascade.types import Request

if TYPE_CHECKING:
    import httpx

_CLOSE_S = 2.0
"""How long `close` waits at most for the connections to close."""


class OpenAIHTTP:
    """Talks to OpenAI-compatible servers. Safe between threads, event loops and forks.

    Args:
        endpoints: an endpoint per model name; "" is the one for every other model.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self.endpoints = endpoints
        self._connections = _Connections()
        after_fork(self._in_child)
        self._finalizer = weakref.finalize(self, _left_open, self._connections)
        self._finalizer.atexit = False

    def _in_child(self) -> None:
        """Begin without connections: those of before are the parent's."""
        self._finalizer.detach()
        keep(self._connections)
        self._connections = _Connections()
        self._finalizer = weakref.finalize(self, _left_open, self._connections)
        self._finalizer.atexit = False

    def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request in one piece."""
        exchange = self._exchange(request, timeout_s, stream=False)
        with _mapping_errors(exchange):
            return background.run(timeout_s, self._whole(exchange))

    async def acomplete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request in one piece without blocking."""
        exchange = self._exchange(request, timeout_s, stream=False)
        with _mapping_errors(exchange):
            return await background.arun(timeout_s, self._whole(exchange))

    def stream(self, request: Request, timeout_s: float) -> Iterator[Payload]:
        """Yield the chunks of a server-sent stream."""
        exchange = self._exchange(request, timeout_s, stream=True)
        with _mapping_errors(exchange):
            for chunks in background.iterate(timeout_s, self._connections.chunks(exchange)):
                yield from chunks

    async def astream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield the chunks of a server-sent stream without blocking."""
        exchange = self._exchange(request, timeout_s, stream=True)
        with _mapping_errors(exchange):
            async with aclosing(background.aiterate(timeout_s, self._connections.chunks(exchange))) as whole:
                async for chunks in whole:
                    for chunk in chunks:
                        yield chunk

    async def _whole(self, exchange: Exchange) -> Payload:
        async with aclosing(self._connections.chunks(exchange)) as pieces:
            found = [chunk async for chunks in pieces for chunk in chunks]
        return found[0]

    def close(self) -> None:
        """Close the connections. Calls under way end with `ClosedError`."""
        if self._connections.used:
            with suppress(OutOfTimeError, ClosedError):
                background.run(_CLOSE_S, self._connections.close())

    async def aclose(self) -> None:
        """Close the connections without blocking."""
        if self._connections.used:
            with suppress(OutOfTimeError, ClosedError):
                await background.arun(_CLOSE_S, self._connections.close())

    def _exchange(self, request: Request, timeout_s: float, *, stream: bool) -> Exchange:
        with no_fork():
            import httpx  # noqa: F401 - takes a while, and is not to hold up the loop

        endpoint = self.endpoints.get(request.model) or self.endpoints.get("") or Endpoint()
        return Exchange(endpoint, request, timeout_s, stream=stream)


_LANE = 32
"""Calls that share a pool of connections. httpcore looks through the whole of a pool, and of those that wait for it,
with each call that begins or ends: 1,000 at once in one pool take ten times as long as in pools of this size."""
_LANES = 40


class _Lane:
    """A pool of connections, and how many calls use it."""

    def __init__(self, pool: httpx.AsyncHTTPTransport) -> None:
        self.pool, self.calls = pool, 0


class _Connections:
    """The connections of one provider. Everything here runs on the background loop."""

    def __init__(self) -> None:
        self._lanes: list[_Lane] = []
        self._places = asyncio.Semaphore(_LANE * _LANES)
        self._security: Any = None
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def used(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._lanes or self._tasks)

    async def chunks(self, exchange: Exchange) -> AsyncGenerator[list[Payload], None]:
        """Send a request and yield the chunks of its reply, as many as a piece of the body brings."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._tasks.add(task)  # so that `close` can cancel it
        lane: _Lane | None = None
        try:
            with _mapping_errors(exchange):
                await self._places.acquire()
                lane = self._lane()
                lane.calls += 1
                response = await lane.pool.handle_async_request(exchange.sent())
                async with aclosing(cast("Any", response.stream)) as body:
                    exchange.begin(response.status_code, response.headers)
                    async for piece in body:
                        for number, chunks in enumerate(exchange.take(piece)):
                            if number:
                                await asyncio.sleep(0)  # others have their turn, and a time-out its chance
                            if chunks:
                                yield chunks
                yield exchange.end()
        finally:
            self._tasks.discard(task)
            if lane is not None:
                lane.calls -= 1
                self._places.release()

    def _lane(self) -> _Lane:
        """Return a pool with room, without a client around it, which would be a sixth of what a call costs."""
        for lane in self._lanes:
            if lane.calls < _LANE:
                return lane
        import httpx

        if self._security is None:  # it takes 10 ms to make
            self._security = httpx.create_ssl_context(trust_env=False)
        limits = httpx.Limits(max_connections=_LANE, max_keepalive_connections=_LANE, keepalive_expiry=15.0)
        self._lanes.append(_Lane(httpx.AsyncHTTPTransport(verify=self._security, limits=limits, trust_env=False)))
        return self._lanes[-1]

    async def close(self) -> None:
        """Cancel every call under way and close the connections."""
        lanes, self._lanes = self._lanes, []
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in lanes:
            await lane.pool.aclose()


def _left_open(connections: _Connections) -> None:
    """Close the connections of a provider that nobody closed."""
    if connections.used:
        background.begin(partial(connections.close))


@contextmanager
def _mapping_errors(exchange: Exchange) -> Iterator[None]:
    """Turn foreign errors into ours; nothing foreign is chained, since it holds the request's headers (F68)."""
    import httpx

    try:
        yield
    except (OutOfTimeError, TimeoutError, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise _mapped(error, exchange) from None


def _mapped(error: Exception, exchange: Exchange) -> ProviderError:
    """Return the error of ours that a foreign one means. What broke once the request was sent may be billed."""
    import httpx

    model = exchange.request.model
    host = httpx.URL(exchange.address).netloc.decode("ascii", "replace").rsplit("@", 1)[-1]
    said = f"{type(error).__name__} at {host}"
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return ProviderUnavailableError(f"{model}: no connection in time ({said}).", model=model)
    if isinstance(error, OutOfTimeError | TimeoutError | httpx.TimeoutException):
        return ProviderTimeoutError(f"{model} was not done in {exchange.timeout_s:.1f} s ({said}).", model=model)
    if isinstance(error, httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol | httpx.InvalidURL):
        return ProviderUnavailableError(f"{model} could not be reached: {said}.", model=model)
    if exchange.answered:
        return StreamInterruptedError(f"{model}: the connection broke in the answer ({said}).", model=model)
    says = f"{model}: the connection broke before an answer came ({said}); the call may be billed."
    return ProviderUnavailableError(says, model=model, billed="maybe")


def create(settings: ProviderSettings) -> OpenAIHTTP:
    """Return the provider."""
    return OpenAIHTTP(settings.endpoints)
