"""Plain HTTP to any OpenAI-compatible server: what keeps `cascade` working where litellm is absent.

The wall clock holds over the whole exchange, also against a server that drips a byte at a time (F07); redirects are not
followed with the key (F11); an answer is read up to a size, not beyond (F29).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cascade.checks import checked_key
from cascade.errors import (
    BadResponseError,
    ConfigError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StreamInterruptedError,
    from_status,
    quote,
)
from cascade.providers.base import Payload, wire_body
from cascade.resilience.wallclock import OutOfTimeError, aiterate_within, call_within, iterate_within
from cascade.types import Request

if TYPE_CHECKING:
    import httpx

MAX_BODY_BYTES = 16 * 2**20
OPENAI_BASE = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is served, and the key that opens it. The key is in no repr.

    Raises:
        ConfigError: the key holds what no HTTP header can.
    """

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Take blanks and line ends off the key."""
        if self.api_key is not None:
            try:
                object.__setattr__(self, "api_key", checked_key(self.api_key, "the key"))
            except ValueError as error:
                raise ConfigError([f"api_key: {error}"]) from None


@dataclass(slots=True)
class OpenAIHTTP:
    """Talks to OpenAI-compatible servers.

    Args:
        endpoints: an endpoint per model name; "" is the one for every other model.
    """

    endpoints: Mapping[str, Endpoint]
    _client: httpx.Client | None = field(default=None, repr=False)
    _aclients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = field(
        default_factory=WeakKeyDictionary, repr=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request in one piece."""
        exchange = _Exchange(self._endpoint(request), request, timeout_s)
        client = self._sync()

        def whole() -> httpx.Response:
            with client.stream("POST", **exchange.arguments(stream=False)) as response:
                for piece in response.iter_bytes():
                    exchange.take(piece)
            return response

        with exchange.mapping_errors():
            response = call_within(timeout_s, whole)
        return exchange.finish(response)

    async def acomplete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request in one piece without blocking."""
        exchange = _Exchange(self._endpoint(request), request, timeout_s)
        arguments = exchange.arguments(stream=False)
        with exchange.mapping_errors():
            async with asyncio.timeout(timeout_s), self._async().stream("POST", **arguments) as response:
                async for piece in response.aiter_bytes():
                    exchange.take(piece)
        return exchange.finish(response)

    def stream(self, request: Request, timeout_s: float) -> Iterator[Payload]:
        """Yield the chunks of a server-sent stream."""
        exchange = _Exchange(self._endpoint(request), request, timeout_s)
        client = self._sync()

        def chunks() -> Iterator[Payload]:
            with client.stream("POST", **exchange.arguments(stream=True)) as response:
                for piece in response.iter_bytes():
                    yield from exchange.events(piece, response)
            yield from exchange.end_of_stream(response)

        with exchange.mapping_errors():
            yield from iterate_within(timeout_s, chunks)

    async def astream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield the chunks of a server-sent stream without blocking."""
        exchange = _Exchange(self._endpoint(request), request, timeout_s)
        client = self._async()

        async def chunks() -> AsyncGenerator[Payload, None]:
            async with client.stream("POST", **exchange.arguments(stream=True)) as response:
                async for piece in response.aiter_bytes():
                    for chunk in exchange.events(piece, response):
                        yield chunk
            for chunk in exchange.end_of_stream(response):
                yield chunk

        with exchange.mapping_errors():
            async with aclosing(aiterate_within(timeout_s, chunks())) as whole:
                async for chunk in whole:
                    yield chunk

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections, those of the running event loop too."""
        self.close()
        with self._lock:
            client = self._aclients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _endpoint(self, request: Request) -> Endpoint:
        return self.endpoints.get(request.model) or self.endpoints.get("") or Endpoint()

    def _sync(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                import httpx

                self._client = httpx.Client(follow_redirects=False, limits=_limits(httpx), trust_env=False)
            return self._client

    def _async(self) -> httpx.AsyncClient:
        """Return this event loop's client: connections cannot be shared between loops."""
        import httpx

        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._aclients.get(loop)
            if client is None:
                client = httpx.AsyncClient(follow_redirects=False, limits=_limits(httpx), trust_env=False)
                self._aclients[loop] = client
            return client


def _limits(httpx_module: Any) -> Any:
    return httpx_module.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=15.0)


class _Exchange:
    """One request and its answer: pure bookkeeping, shared by the four ways to send it."""

    def __init__(self, endpoint: Endpoint, request: Request, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.address = (endpoint.base_url or OPENAI_BASE).rstrip("/")
        self.request = request
        self.timeout_s = timeout_s
        self.ends_at_s = time.monotonic() + timeout_s
        self.body = bytearray()
        self.size = 0
        self.done = False

    def arguments(self, *, stream: bool) -> dict[str, Any]:
        body = wire_body(self.request, self.request.model.removeprefix("openai/"))
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        return {
            "url": f"{self.address}/chat/completions",
            "content": json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
            "headers": headers,
            "timeout": max(0.001, self.timeout_s),
        }

    def take(self, piece: bytes) -> None:
        """Keep a piece of the body; refuse one too many, and one too late."""
        self.size += len(piece)
        if self.size > MAX_BODY_BYTES:
            raise BadResponseError(
                f"{self.request.model} sent more than {MAX_BODY_BYTES} bytes.", model=self.request.model
            )
        self.body += piece
        if time.monotonic() > self.ends_at_s:
            raise self.late()

    def finish(self, response: httpx.Response) -> Payload:
        """Return the payload of a whole answer, or raise what it means."""
        if response.status_code != 200:
            raise self._refused(response)
        if "json" not in response.headers.get("content-type", ""):
            raise self._not_json()
        try:
            payload = json.loads(bytes(self.body))
        except (ValueError, RecursionError):
            raise self._not_json() from None
        if not isinstance(payload, Mapping):
            raise self._not_json()
        return payload

    def events(self, piece: bytes, response: httpx.Response) -> Iterator[Payload]:
        """Yield the chunks whose lines are complete."""
        self.take(piece)
        if response.status_code != 200:
            return
        *lines, rest = bytes(self.body).split(b"\n")
        self.body = bytearray(rest)
        for line in lines:
            yield from self._event(line)

    def end_of_stream(self, response: httpx.Response) -> Iterator[Payload]:
        """Yield what stood in an unfinished last line; refuse an answer that was no stream."""
        if response.status_code != 200:
            raise self._refused(response)
        if self.body.strip():
            yield from self._event(bytes(self.body))

    def _event(self, line: bytes) -> Iterator[Payload]:
        line = line.strip()
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            self.body = bytearray(line)
            raise self._not_json() from None
        if isinstance(chunk, Mapping):
            yield chunk

    def mapping_errors(self) -> _Mapping:
        return _Mapping(self)

    def _refused(self, response: httpx.Response) -> ProviderError:
        text = bytes(self.body).decode("utf-8", "replace")
        return from_status(
            response.status_code,
            _message(text),
            model=self.request.model,
            secrets=self._secrets(),
            retry_after_s=retry_after_s(response.headers),
            request_id=response.headers.get("x-request-id"),
        )

    def _not_json(self) -> BadResponseError:
        seen = quote(bytes(self.body[:2_000]).decode("utf-8", "replace"), self._secrets())
        return BadResponseError(
            f"{self.request.model} sent something other than a completion: {seen}", model=self.request.model, status=200
        )

    def late(self) -> ProviderTimeoutError:
        return ProviderTimeoutError(
            f"{self.request.model} was not done in {self.timeout_s:.1f} s.", model=self.request.model
        )

    def _secrets(self) -> tuple[str, ...]:
        return (self.endpoint.api_key,) if self.endpoint.api_key else ()


class _Mapping:
    """Turns httpx's exceptions into ours; nothing foreign is chained, since it holds the request's headers (F68)."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        import httpx

        if isinstance(error, OutOfTimeError | TimeoutError):
            raise self._exchange.late() from None
        if isinstance(error, httpx.HTTPError | httpx.InvalidURL | httpx.StreamError):
            raise self._mapped(error) from None

    def _mapped(self, error: Exception) -> ProviderError:
        import httpx

        exchange = self._exchange
        model = exchange.request.model
        host = httpx.URL(exchange.address).netloc.decode("ascii", "replace").rsplit("@", 1)[-1]
        said = f"{type(error).__name__} at {host}"
        if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
            return ProviderUnavailableError(f"{model}: no connection in time ({said}).", model=model)
        if isinstance(error, httpx.TimeoutException):
            return ProviderTimeoutError(f"{model} was not done in {exchange.timeout_s:.1f} s ({said}).", model=model)
        if isinstance(error, httpx.DecodingError):
            return BadResponseError(f"{model}: the answer could not be decompressed ({said}).", model=model)
        if exchange.size and isinstance(error, httpx.TransportError):
            return StreamInterruptedError(f"{model}: the connection broke in the answer ({said}).", model=model)
        return ProviderUnavailableError(f"{model} could not be reached: {said}.", model=model)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After: seconds, milliseconds or an HTTP date; None for garbage and negative values (F02).

    >>> retry_after_s({"retry-after": "2"}), retry_after_s({"retry-after": "soon"})
    (2.0, None)
    """
    try:
        if "retry-after-ms" in headers:
            wait = float(headers["retry-after-ms"]) / 1000
        elif "retry-after" in headers:
            wait = float(headers["retry-after"])
        else:
            return None
    except ValueError:
        return _seconds_until(headers.get("retry-after", ""))
    return wait if 0 <= wait < float("inf") else None


def _seconds_until(http_date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(http_date)
    except (ValueError, OverflowError, TypeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _message(text: str) -> str:
    """Return the message inside an OpenAI-style error body, or the body itself."""
    try:
        error = json.loads(text)["error"]
        return f"{error['message']} ({error.get('type') or error.get('code') or 'no type'})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text
