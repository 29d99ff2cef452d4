"""What a client reads when its request fails: OpenAI's error object, with the status its client library acts on.

The messages are those of cascade's own errors, which hold no key and no address with one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cascade.episodes.store import StoreError
from cascade.errors import (
    AddressError,
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    BudgetExceededError,
    CascadeError,
    ClosedError,
    ContextTooLongError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitedError,
    RefusedError,
    StreamInterruptedError,
    UsageError,
)
from cascade.safety.keys import redact


class Refused(Exception):  # noqa: N818 - it says what happened to the request
    """A request that the server itself refuses. `status` is HTTP's; the rest stands in OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after_s = status, code, param, retry_after_s


class Refusal(NamedTuple):
    """An error as a client reads it: the status, the JSON body, and headers."""

    status: int
    body: dict[str, Any]
    headers: tuple[tuple[str, str], ...] = ()


class _Meaning(NamedTuple):
    """How an error of ours reads outside. `again` says whether the client library is to try again by itself."""

    status: int
    kind: str
    code: str
    again: bool = False


_MEANINGS: tuple[tuple[type[CascadeError], _Meaning], ...] = (
    # The first that fits counts: special cases stand before their parents.
    (ClosedError, _Meaning(503, "server_error", "stopping", again=True)),
    (UsageError, _Meaning(400, "invalid_request_error", "invalid_request")),
    (BudgetExceededError, _Meaning(422, "invalid_request_error", "budget_exceeded")),
    (ContextTooLongError, _Meaning(400, "invalid_request_error", "context_length_exceeded")),
    (BadRequestError, _Meaning(400, "invalid_request_error", "refused_by_provider")),
    (RefusedError, _Meaning(400, "invalid_request_error", "content_filter")),
    (RateLimitedError, _Meaning(429, "rate_limit_error", "rate_limited_by_provider", again=True)),
    (ProviderTimeoutError, _Meaning(504, "timeout_error", "provider_timeout")),
    (AddressError, _Meaning(502, "server_error", "provider_address")),
    (AuthenticationError, _Meaning(502, "server_error", "provider_refused_key")),
    (BadResponseError, _Meaning(502, "server_error", "bad_provider_response")),
    (StreamInterruptedError, _Meaning(502, "server_error", "stream_interrupted")),
    (StoreError, _Meaning(503, "server_error", "store_unavailable", again=True)),
    (ProviderError, _Meaning(503, "server_error", "provider_unavailable", again=True)),
    (CascadeError, _Meaning(500, "server_error", "not_served")),
)
_SPENT = _Meaning(429, "insufficient_quota", "insufficient_quota")
"""As OpenAI says it. The client library would repeat a 429 within seconds, so it is told not to."""
_UNPROCESSABLE = 422
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def refusal_of(error: CascadeError | Refused) -> Refusal:
    """Return what a client reads of an error.

    >>> refusal_of(Refused(404, "There is no such path.")).body["error"]["type"]
    'not_found_error'
    >>> refusal_of(RateLimitedError("slow down", retry_after_s=1.5)).headers
    (('retry-after', '2'),)
    """
    if isinstance(error, Refused):
        kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
        again = error.retry_after_s is not None
        return _refusal(
            _Meaning(error.status, kind, error.code or "", again), str(error), error.param, error.retry_after_s
        )
    meaning = next(meaning for kind, meaning in _MEANINGS if isinstance(error, kind))
    if isinstance(error, BadRequestError) and error.status == _UNPROCESSABLE:
        meaning = meaning._replace(status=_UNPROCESSABLE)
    if isinstance(error, BudgetExceededError) and error.spent:
        meaning = _SPENT
    if isinstance(error, StoreError) and error.answer is not None:
        meaning = meaning._replace(again=False)  # it is paid for: another try would pay again
    waits = error.retry_after_s if isinstance(error, ProviderError | BudgetExceededError) else None
    return _refusal(meaning, str(error), None, waits)


def unexpected() -> Refusal:
    """Return what a client reads of an error that is a mistake in cascade: nothing of what went wrong."""
    said = "The gateway failed. Its log says how."
    return _refusal(_Meaning(500, "server_error", "internal_error"), said, None, None)


def _refusal(meaning: _Meaning, message: str, param: str | None, retry_after_s: float | None) -> Refusal:
    """Put an error together. `x-should-retry` is what OpenAI's client libraries obey before the status."""
    error = {"message": redact(message), "type": meaning.kind, "param": param, "code": meaning.code or None}
    headers: list[tuple[str, str]] = []
    if retry_after_s is not None:
        headers.append(("retry-after", str(math.ceil(retry_after_s))))
    if not meaning.again:
        headers.append(("x-should-retry", "false"))
    return Refusal(meaning.status, {"error": error}, tuple(headers))
