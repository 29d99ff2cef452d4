"""One HTTP request to an OpenAI-compatible server and its reply: bookkeeping without a connection.

A reply is read up to a limit, and only if it is not compressed: no bomb fills the memory (F29).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from cascade.errors import (
    BadResponseError,
    ProviderError,
    from_status,
    quote,
)
from cascade.providers import decision
from cascade.providers.base import TRACEPARENT, Payload
from cascade.providers.fields import wire_body
from cascade.providers.registry import OPENAI_BASE, Endpoint
from cascade.types import Request

MOST_BYTES = 16 * 2**20
"""The maximum length of any reply."""
_PLAIN_BYTES = 2 * 2**20
_TOKEN_BYTES = 64
_ALTERNATIVE_BYTES = 256
"""JSON of one token with its log-prob: field names, and the text twice (as bytes, too). 100–200 are usual."""
_EVENT_BYTES = 1_024
_SLICE_BYTES = 8 * 2**10
"""How much of a body is read before other calls proceed. 4,000 empty lines of a stream take 2 ms; in slices of 64 KiB,
16 concurrent streams of such lines delayed the deadlines of all by a second."""


class Exchange:
    """One request and its reply, whole or as a stream of server-sent events.

    Usage: post `body` with `headers` to `url`, pass the response's head to `begin`, each raw piece of its body to
    `take`, and call `end`. Both yield chunks of a stream; a whole reply is one chunk.
    """

    def __init__(self, endpoint: Endpoint, request: Request, timeout_s: float, *, stream: bool) -> None:
        self.endpoint = endpoint
        base, dialect = endpoint.base_url or OPENAI_BASE, endpoint.dialect
        self.url = decision.url(base, dialect) if dialect else f"{base.rstrip('/')}/chat/completions"
        self.request = request
        self.timeout_s = timeout_s
        self._stream = stream and dialect is None
        self._content, self._traceparent = self._encoded(), TRACEPARENT.get()
        self._sending = self._left = self._done = False
        self._most_line = most_bytes(request)
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._most = self._came = 0
        self._kept = bytearray()  # of a stream the unfinished line, else everything

    def _encoded(self) -> bytes:
        model = (self.endpoint.model or self.request.wire_model).removeprefix("openai/")
        dialect = self.endpoint.dialect
        body = decision.body(self.request, dialect, model) if dialect else wire_body(self.request, model)
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")

    @property
    def headers(self) -> dict[str, str]:
        """The headers to send, with the key."""
        headers = {
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Content-Length": str(len(self._content)),
            "Content-Type": "application/json",
            "User-Agent": "cascade",
        }
        if self._traceparent is not None:
            headers["traceparent"] = self._traceparent
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        return headers

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the data to send, once there is a connection. Raises TimeoutError if the caller has left."""
        self._sending = True
        if self._left:
            raise TimeoutError
        yield self._content

    def left(self) -> bool:
        """Send nothing from now on; return whether something may have been sent. Another thread may call it."""
        self._left = True  # before the other is read, as `body` writes before it reads: one of the two sees the other
        return self._sending

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and the headers of the response."""
        self._status, self._headers = status, headers
        # A server that ignores `stream: true` sends its reply in one piece, with another content type.
        self._stream = self._stream and status == 200 and not _is_json(headers)
        # A stream may be longer than a whole reply, since each event adds its own fields.
        self._most = MOST_BYTES + self.request.max_tokens * _EVENT_BYTES if self._stream else self._most_line
        coding = headers.get("content-encoding", "").strip().lower()
        if status == 200 and coding not in {"", "identity"}:
            raise self._bad(f"the reply has the content encoding {coding[:60]!r}, which was not asked for")

    @property
    def answered(self) -> bool:
        """Whether any part of a body arrived."""
        return self._came > 0

    def take(self, piece: bytes) -> Iterator[list[Payload]]:
        """Take a raw piece of the body; yield, slice by slice, the chunks whose lines are complete."""
        for start in range(0, len(piece), _SLICE_BYTES):
            self._kept += (part := piece[start : start + _SLICE_BYTES])
            self._came += len(part)
            if max(self._came - self._most, len(self._kept) - self._most_line) > 0:
                raise self._bad("the reply, or a line of it, is longer than the request allows")
            yield self._whole_lines() if self._stream and b"\n" in part else []

    def _whole_lines(self) -> list[Payload]:
        *lines, rest = bytes(self._kept).split(b"\n")
        self._kept = bytearray(rest)
        return [chunk for line in lines if (chunk := self._event(line)) is not None]

    def end(self) -> list[Payload]:
        """Return the remaining chunks when the body has ended, or raise the error that the reply means."""
        text = bytes(self._kept)
        if self._status != 200:
            raise self._refused(text)
        if self._stream:
            last = self._event(text)
            return [] if last is None else [last]
        whole = self._parsed(text) if _is_json(self._headers) else None
        if not isinstance(whole, Mapping):
            raise self._not_json(text)
        dialect = self.endpoint.dialect
        return [decision.completion(whole, self.request, dialect) if dialect else whole]

    def _parsed(self, text: bytes) -> object:
        try:
            return decision.parsed(text) if self.endpoint.dialect else json.loads(text)
        except (ValueError, RecursionError):
            raise self._not_json(text) from None

    def _event(self, line: bytes) -> Payload | None:
        """Return the chunk in a line of a stream; None for any other line."""
        line = line.strip()
        if self._done or not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return None
        data = line.removeprefix(b"data:").strip()
        self._done = data == b"[DONE]"  # what follows is no part of the reply
        chunk = None if self._done else self._parsed(data)
        return chunk if isinstance(chunk, Mapping) else None

    def _refused(self, text: bytes) -> ProviderError:
        return from_status(
            self._status,
            _message(text.decode("utf-8", "replace")),
            model=self.request.model,
            secrets=self._secrets(),
            retry_after_s=retry_after_s(self._headers),
            request_id=self._headers.get("x-request-id"),
        )

    def _not_json(self, text: bytes) -> BadResponseError:
        seen = quote(text[:2_000].decode("utf-8", "replace"), self._secrets())
        model = self.request.model
        return BadResponseError(f"{model} sent something other than a completion: {seen}", model=model, status=200)

    def _bad(self, why: str) -> BadResponseError:
        return BadResponseError(f"{self.request.model}: {why}.", model=self.request.model, status=self._status)

    def _secrets(self) -> tuple[str, ...]:
        return (self.endpoint.api_key,) if self.endpoint.api_key else ()


def _is_json(headers: Mapping[str, str]) -> bool:
    """Whether the content type is that of one JSON value, in any case of its letters."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return "json" in kind and "ndjson" not in kind and "jsonl" not in kind


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read how long a server asks to wait: the first valid one of `retry-after-ms` and `retry-after` (F02).

    >>> retry_after_s({"retry-after": "2"}), retry_after_s({"retry-after-ms": "abc", "retry-after": "2"})
    (2.0, 2.0)
    >>> retry_after_s({"retry-after": "soon"}) is None
    True
    """
    waits = (_seconds(headers.get("retry-after-ms", ""), 1_000), _seconds(headers.get("retry-after", ""), 1))
    given_waits = [wait for wait in waits if wait is not None]
    return given_waits[0] if given_waits else _seconds_until(headers.get("retry-after", ""))


def _seconds(number: str, unit: int) -> float | None:
    """Return a wait in seconds; None if it is not a number, negative, or infinite."""
    try:
        wait = float(number) / unit
    except ValueError:
        return None
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
        kinds = dict.fromkeys(str(error[name]) for name in ("type", "code") if error.get(name))
        return f"{error['message']} ({', '.join(kinds) or 'no type'})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text


def most_bytes(request: Request) -> int:
    """Return the most bytes that a reply may have: 2 MiB plus room for its tokens and log-probs.

    A reply is parsed in one piece, which takes 0.1 to 0.3 s for 2 MiB of the slowest JSON, so its length is limited
    beforehand.
    """
    token = _TOKEN_BYTES
    if request.top_logprobs is not None:
        token += (1 + request.top_logprobs) * _ALTERNATIVE_BYTES
    return min(MOST_BYTES, _PLAIN_BYTES + request.max_tokens * token)
