"""Plain HTTP to any OpenAI-compatible server, so that `cascade` works without litellm.

All calls of a process run on one event loop in the background (`resilience.event_loop`), so the deadline covers the
whole exchange, even with a server that sends a byte at a time (F07). Redirects are not followed, for the key's sake
(F11). A reply is read up to a limit, and only if uncompressed, so that no decompression bomb fills the memory (F29).
"""

from __future__ import annotations

import asyncio
import json
import ssl
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, partial
from urllib.parse import urlsplit

import aiohttp
import certifi
from aiohttp.abc import AbstractStreamWriter

from cascade.errors import (
    AddressError,
    BadResponseError,
    ClosedError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StreamInterruptedError,
    causes_of,
    from_status,
    quote,
)
from cascade.forks import after_fork, keep_for_ever
from cascade.providers import decision
from cascade.providers.base import TRACEPARENT, Payload
from cascade.providers.fields import OPENAI_OWN, wire_body
from cascade.providers.registry import OPENAI_BASE, Endpoint, ProviderSettings
from cascade.resilience import event_loop
from cascade.types import Request

MOST_BYTES = 16 * 2**20
"""The maximum length of any reply."""
_PLAIN_BYTES = 2 * 2**20
_TOKEN_BYTES = 64
_ALTERNATIVE_BYTES = 256
"""JSON bytes of a token with its log-prob: field names, and the text twice (also as bytes). 100–200 are usual."""
_EVENT_BYTES = 1_024
_LONGEST_WAIT_S = 2_678_400.0  # 31 days, the longest window of a quota: clients of a gateway obey what is passed on
_SLICE_BYTES = 8 * 2**10
"""How much of a body is read before other calls proceed. 4,000 empty lines of a stream take 2 ms; in slices of 64 KiB,
16 concurrent streams of such lines delayed the deadlines of all by a second."""


class Exchange(aiohttp.Payload):
    """One request and its reply: post it with `own_headers` to `url`; read the response by `reply` or `chunks`."""

    _autoclose = True

    def __init__(self, endpoint: Endpoint, request: Request, timeout_s: float, *, stream: bool) -> None:
        base, dialect = endpoint.base_url or OPENAI_BASE, endpoint.dialect
        self.url = decision.url(base, dialect) if dialect else f"{base.rstrip('/')}/chat/completions"
        self.endpoint, self.request, self.timeout_s = endpoint, request, timeout_s
        self.answered = False
        """Whether any part of a body arrived."""
        self._stream = stream and dialect is None
        super().__init__(self._encoded(), content_type="application/json")
        self._size, self._traceparent = len(self._value), TRACEPARENT.get()
        self._sending = self._left = self._done = False

    def _encoded(self) -> bytes:
        model = (self.endpoint.model or self.request.wire_model).removeprefix("openai/")
        dialect = self.endpoint.dialect
        body = decision.body(self.request, dialect, model) if dialect else wire_body(self.request, model)
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return _encode(body).encode("utf-8", "replace")

    @property
    def own_headers(self) -> dict[str, str]:
        """The headers that only this call has, including the key."""
        headers = {} if self._traceparent is None else {"traceparent": self._traceparent}
        return {**headers, "Authorization": f"Bearer {key}"} if (key := self.endpoint.api_key) else headers

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the data to send, as text."""
        return str(self._value.decode(encoding, errors))

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the data, once there is a connection. Raises TimeoutError if the caller has left."""
        self._sending = True
        if self._left:
            raise TimeoutError
        await writer.write(self._value)

    def left(self) -> bool:
        """Send nothing from now on; return whether something may have been sent. Another thread may call it."""
        self._left = True  # set before `_sending` is read; `write` does the reverse, so at least one sees the other
        return self._sending

    async def reply(self, response: aiohttp.ClientResponse) -> Payload:
        """Return a reply in one piece. Raises the ProviderError that the response stands for."""
        self._refuse_coding(response)
        text, limit = bytearray(), most_bytes(self.request)
        with _MappingErrors(self):
            while data := await response.content.readany():
                self.answered = True
                text += data
                if len(text) > limit:
                    raise self._bad(_TOO_LONG)
        if response.status != 200:
            raise self._refused(response, bytes(text))
        return self._whole(response, bytes(text))

    async def chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[list[Payload], None]:
        """Yield a stream's chunks, in a list per slice of its body; a whole reply is one chunk. Raises as `reply`."""
        # A server that ignores `stream: true` sends its reply in one piece, with another content type.
        if not self._stream or response.status != 200 or _is_json(response):
            yield [await self.reply(response)]
            return
        self._refuse_coding(response)
        line, limit = bytearray(), most_bytes(self.request)
        # A stream may be longer than a whole reply, since each event adds its own fields.
        left = MOST_BYTES + self.request.max_tokens * _EVENT_BYTES
        with _MappingErrors(self):
            while data := await response.content.readany():
                self.answered = True
                for start in range(0, len(data), _SLICE_BYTES):
                    if start:
                        await asyncio.sleep(0)  # lets other tasks and time-outs run
                    cut = data[start : start + _SLICE_BYTES]
                    left -= len(cut)
                    line += cut
                    if left < 0 or len(line) > limit:
                        raise self._bad(_TOO_LONG)
                    if b"\n" in cut:
                        *lines, last = bytes(line).split(b"\n")
                        line = bytearray(last)
                        if chunks := self._events(lines):
                            yield chunks
        yield self._events([bytes(line)])

    def _refuse_coding(self, response: aiohttp.ClientResponse) -> None:
        coding = response.headers.get("content-encoding", "").strip().lower()
        if response.status == 200 and coding not in {"", "identity"}:
            raise self._bad(f"the reply has the content encoding {coding[:60]!r}, which was not requested")

    def _whole(self, response: aiohttp.ClientResponse, text: bytes) -> Payload:
        whole, dialect = self._parsed(text) if _is_json(response) else None, self.endpoint.dialect
        if not isinstance(whole, Mapping):
            raise self._not_json(text)
        return decision.completion(whole, self.request, dialect) if dialect else whole

    def _parsed(self, text: bytes) -> object:
        try:
            return decision.parsed(text) if self.endpoint.dialect else json.loads(text)
        except (ValueError, RecursionError):
            raise self._not_json(text) from None

    def _events(self, lines: Iterable[bytes]) -> list[Payload]:
        """Return the chunks in some lines of a stream."""
        chunks = list[Payload]()
        for line in map(bytes.strip, lines):
            if self._done or not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
                continue
            data = line.removeprefix(b"data:").strip()
            self._done = data == b"[DONE]"  # what follows is not part of the reply
            if not self._done and isinstance(chunk := self._parsed(data), Mapping):
                chunks.append(chunk)
        return chunks

    def _refused(self, response: aiohttp.ClientResponse, text: bytes) -> ProviderError:
        path = f" at {_server(self.url)}{urlsplit(self.url).path}; api_base usually ends in /v1"
        return from_status(
            response.status,
            _message(text.decode("utf-8", "replace")) + (path if response.status == 404 else ""),
            model=self.request.model,
            secrets=self._secrets(),
            retry_after_s=retry_after_s(response.headers),
            request_id=response.headers.get("x-request-id"),
        )

    def _not_json(self, text: bytes) -> BadResponseError:
        seen = quote(text[:2_000].decode("utf-8", "replace"), self._secrets())
        return self._bad(f"something other than a completion came: {seen}")

    def _bad(self, why: str) -> BadResponseError:
        return BadResponseError(f"{self.request.model}: {why}.", model=self.request.model, status=200)

    def _secrets(self) -> tuple[str, ...]:
        return (self.endpoint.api_key,) if self.endpoint.api_key else ()


_encode = json.JSONEncoder(ensure_ascii=False).encode
_TOO_LONG = "the reply, or a line of it, is longer than the request allows"


def _is_json(response: aiohttp.ClientResponse) -> bool:
    """Return whether the content type is that of a single JSON value."""
    kind = response.content_type.lower()
    return "json" in kind and "ndjson" not in kind and "jsonl" not in kind


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return how long a server asks to wait, in seconds, by `retry-after-ms` or else `retry-after` (F02).

    >>> retry_after_s({"retry-after": "2"}), retry_after_s({"retry-after-ms": "abc", "retry-after": "2"})
    (2.0, 2.0)
    >>> retry_after_s({"retry-after": "soon"}) is None
    True
    """
    after = headers.get("retry-after", "")
    waits = _seconds(headers.get("retry-after-ms", ""), 1_000), _seconds(after, 1), _seconds_until(after)
    return next((wait for wait in waits if wait is not None and 0 <= wait <= _LONGEST_WAIT_S), None)


def _seconds(number: str, unit: int) -> float | None:
    """Return a wait in seconds; None if it is not a number."""
    try:
        return float(number) / unit
    except ValueError:
        return None


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
        kinds = dict.fromkeys(str(error[name]) for name in ("type", "code") if error.get(name))
        return f"{error['message']} ({', '.join(kinds) or 'no type'})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text


def most_bytes(request: Request) -> int:
    """Return the most bytes that a reply may have: 2 MiB plus room for its tokens and log-probs, up to `MOST_BYTES`.

    A reply is parsed in one piece, which takes 0.1 to 0.3 s for 2 MiB of the slowest JSON, so its length is limited
    beforehand.
    """
    token = _TOKEN_BYTES
    if request.top_logprobs is not None:
        token += (1 + request.top_logprobs) * _ALTERNATIVE_BYTES
    return min(MOST_BYTES, _PLAIN_BYTES + request.max_tokens * token)


_CLOSE_S = 2.0
"""The longest time that `close` waits for the connections to close."""


class OpenAIHTTP:
    """Talks to OpenAI-compatible servers. Safe between threads, event loops and forks.

    Args:
        endpoints: an endpoint per model name; "" is the one for every other model.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self.endpoints = endpoints
        _security(ssl.get_default_verify_paths())  # takes 20 ms, once, and so delays no call
        self._connect()
        after_fork(self._in_child)

    def _connect(self) -> None:
        self._connections = _Connections()
        self._finalizer = weakref.finalize(self, _left_open, self._connections)
        self._finalizer.atexit = False

    def _in_child(self) -> None:
        """Start without connections: the existing ones are the parent's."""
        self._finalizer.detach()
        keep_for_ever(self._connections)
        self._connect()

    def knows(self, model: str) -> frozenset[str]:
        """Return the optional fields that a model's server reads: all of OpenAI's own, or else only `user`."""
        endpoint = self.endpoints.get(model) or self.endpoints.get("") or Endpoint()
        return OPENAI_OWN if endpoint.is_openai else frozenset({"user"})

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request in one piece."""
        exchange = self._exchange(request, timeout_s, stream=False)
        with _MappingErrors(exchange):
            return await event_loop.on_loop(self._connections.reply(exchange), timeout_s)

    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield the chunks of a server-sent stream."""
        exchange = self._exchange(request, timeout_s, stream=True)
        with _MappingErrors(exchange):
            async with aclosing(event_loop.items_on_loop(self._connections.chunks(exchange), timeout_s)) as whole:
                async for chunks in whole:
                    for chunk in chunks:
                        yield chunk

    async def close(self) -> None:
        """Close the connections. Calls under way end with `ClosedError`."""
        if self._connections.used:
            with suppress(TimeoutError, ClosedError):
                await event_loop.on_loop(self._connections.close(), _CLOSE_S)

    def _exchange(self, request: Request, timeout_s: float, *, stream: bool) -> Exchange:
        endpoint = self.endpoints.get(request.site) or self.endpoints.get("") or Endpoint()
        return Exchange(endpoint, request, timeout_s, stream=stream)


_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "cascade"}
_MOST_CONNECTIONS = 1_280
_IDLE_S = 15.0
"""How long a connection is kept for the next call."""


@cache
def _security(others: ssl.DefaultVerifyPaths) -> ssl.SSLContext:
    """Return an SSL context that trusts certifi's certificates, and those of the system or of `SSL_CERT_FILE`."""
    context = ssl.create_default_context(cafile=certifi.where())
    with suppress(OSError, TypeError):  # a file without certificates adds none, nor does a system without any
        context.load_verify_locations(others.cafile, others.capath)
    return context


class _Connections:
    """The connections of one provider. Everything here runs on the background loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def used(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._tasks)

    async def reply(self, exchange: Exchange) -> Payload:
        """Send a request and return its reply."""
        with _MappingErrors(exchange):  # here, too: aiohttp's errors would keep these frames
            async with self._sent(exchange) as response:
                return await exchange.reply(response)

    async def chunks(self, exchange: Exchange) -> AsyncGenerator[list[Payload], None]:
        """Send a request and yield the chunks of its reply, in one list per piece of the body."""
        with _MappingErrors(exchange):
            async with self._sent(exchange) as response, aclosing(exchange.chunks(response)) as parts:
                async for chunks in parts:
                    yield chunks

    def _sent(self, exchange: Exchange) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._tasks.add(task)  # so that `close` can cancel it
        task.add_done_callback(self._tasks.discard)
        return self._opened().post(exchange.url, data=exchange, headers=exchange.own_headers, allow_redirects=False)

    def _opened(self) -> aiohttp.ClientSession:
        """Return the pool of connections, which a task keeps open until it is cancelled."""
        if self._session is None or self._session.closed:
            self._session = _session()
            self._tasks.add(asyncio.create_task(_kept_open(self._session)))
        return self._session

    async def close(self) -> None:
        """Cancel every call under way and close the connections."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _session() -> aiohttp.ClientSession:
    security = _security(ssl.get_default_verify_paths())  # which reads the variables
    resolver, jar = aiohttp.ThreadedResolver(), aiohttp.DummyCookieJar()
    pool = aiohttp.TCPConnector(limit=_MOST_CONNECTIONS, keepalive_timeout=_IDLE_S, ssl=security, resolver=resolver)
    endless = aiohttp.ClientTimeout()  # the caller enforces the deadline
    return aiohttp.ClientSession(
        connector=pool, headers=_HEADERS, cookie_jar=jar, timeout=endless, auto_decompress=False
    )


async def post(url: str, data: bytes, limit_s: float) -> str | None:
    """Post JSON to an address of the operator's; return None, or the reason for a failure, without the address.

    The reply is not read, and no redirect is followed.
    """
    try:
        async with (
            asyncio.timeout(limit_s),
            _session() as session,
            session.post(
                url, data=data, headers={"Content-Type": "application/json"}, allow_redirects=False
            ) as response,
        ):
            return None if response.status < 300 else f"status {response.status}"
    except (TimeoutError, OSError, ValueError, aiohttp.ClientError) as error:
        return type(error).__name__


async def _kept_open(session: aiohttp.ClientSession) -> None:
    """Keep a pool open until this task is cancelled, by `close` or at the end of the loop."""
    async with session:
        await asyncio.get_running_loop().create_future()


def _left_open(connections: _Connections) -> None:
    """Close the connections of a provider that was left open."""
    if connections.used:
        event_loop.begin(partial(connections.close))


class _MappingErrors:
    """Converts foreign errors; they are not chained, since they contain the request's headers (F68)."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, asyncio.CancelledError) and not self._exchange.left():
            error.args = (event_loop.NOT_BEGUN,)
        elif isinstance(error, TimeoutError | aiohttp.ClientError):
            mapped = _mapped(error, self._exchange)
            for cause in causes_of(error):  # their frames refer to each other, and hold what was read
                cause.__traceback__ = None
            raise mapped from None


def _mapped(error: Exception, exchange: Exchange) -> ProviderError:
    """Return cascade's error for a foreign one. A call that broke after the request was sent may be billed."""
    model, billed = exchange.request.model, "maybe" if exchange.left() else "no"
    cause = f"{type(error).__name__} at {_server(exchange.url)}"
    if isinstance(error, TimeoutError):
        says = f"{model} did not finish in {exchange.timeout_s:.1f} s ({cause})."
        return ProviderTimeoutError(says, model=model, billed=billed)
    if (wrong := _wrong_address(error, exchange.url)) is not None:
        return AddressError(f"{model} could not be asked: {wrong}", model=model)
    if billed == "no":
        return ProviderUnavailableError(f"{model} could not be reached: {cause}.", model=model)
    if exchange.answered:
        return StreamInterruptedError(f"{model}: the connection broke during the answer ({cause}).", model=model)
    says = f"{model}: the connection broke before an answer came ({cause}); the call may be billed."
    return ProviderUnavailableError(says, model=model, billed=billed)


def _server(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


_TLS_ALERT = r"b'\x15\x03"
"""The start of a TLS server's reply to plain HTTP (RFC 8446, section 5.1), as aiohttp quotes it."""


def _wrong_address(error: Exception, url: str) -> str | None:
    """Return what is wrong with the address and what to do; None if the error does not show it."""
    server = _server(url)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        refusal = error.certificate_error
        why = refusal.verify_message if isinstance(refusal, ssl.SSLCertVerificationError) else str(refusal)
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
    return OpenAIHTTP(settings.endpoints)
