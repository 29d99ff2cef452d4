"""Turns errors into responses: OpenAI's error object, with the status that its client library acts on.

The messages are those of cascade's own errors, which contain no key and no address with a key.
"""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

from cascade import errors
from cascade.errors import BadRequestError, BudgetExceededError, CascadeError, StoreError
from cascade.safety import redact

logger = logging.getLogger("cascade")


class GatewayError(Exception):
    """A request that the server itself refuses. `status` is HTTP's; the rest goes into OpenAI's error object."""

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
    """An error response: the status, the JSON body, and headers."""

    status: int
    body: dict[str, Any]
    headers: tuple[tuple[str, str], ...] = ()


class _Meaning(NamedTuple):
    """The response to a class of errors. `again` says whether the client library should try again by itself."""

    status: int
    kind: str
    code: str
    again: bool = False


_MEANINGS: tuple[tuple[type[CascadeError], _Meaning], ...] = (
    # The first match counts: subclasses come before their parents.
    (errors.ClosedError, _Meaning(503, "server_error", "stopping", again=True)),
    (errors.RefusedFieldError, _Meaning(400, "invalid_request_error", "field_not_passed_on")),
    (errors.UsageError, _Meaning(400, "invalid_request_error", "invalid_request")),
    (BudgetExceededError, _Meaning(422, "invalid_request_error", "budget_exceeded")),
    (errors.ContextTooLongError, _Meaning(400, "invalid_request_error", "context_length_exceeded")),
    (BadRequestError, _Meaning(400, "invalid_request_error", "refused_by_provider")),
    (errors.RefusedError, _Meaning(400, "invalid_request_error", "content_filter")),
    (errors.QuotaError, _Meaning(503, "server_error", "provider_without_credit")),
    (errors.RateLimitedError, _Meaning(429, "rate_limit_error", "rate_limited_by_provider", again=True)),
    (errors.ProviderTimeoutError, _Meaning(504, "timeout_error", "provider_timeout")),
    (errors.AddressError, _Meaning(502, "server_error", "provider_address")),
    (errors.AuthenticationError, _Meaning(502, "server_error", "provider_refused_key")),
    (errors.BadResponseError, _Meaning(502, "server_error", "bad_provider_response")),
    (errors.StreamInterruptedError, _Meaning(502, "server_error", "stream_interrupted")),
    (StoreError, _Meaning(503, "server_error", "store_unavailable", again=True)),
    (errors.ProviderError, _Meaning(503, "server_error", "provider_unavailable", again=True)),
    (CascadeError, _Meaning(500, "server_error", "not_served")),
)
_SPENT = _Meaning(429, "insufficient_quota", "insufficient_quota")
"""OpenAI's wording. The header prevents the client library from repeating a 429 within seconds."""
_UNPROCESSABLE = 422
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def refusal_of(error: CascadeError | GatewayError) -> Refusal:
    """Return the response to an error.

    A client reads neither the address of a store nor what others spent; the log has the first.

    >>> refusal_of(GatewayError(404, "There is no such path.")).body["error"]["type"]
    'not_found_error'
    >>> refusal_of(errors.RateLimitedError("slow down", retry_after_s=1.5)).headers
    (('retry-after', '2'),)
    """
    if isinstance(error, GatewayError):
        kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
        again = error.retry_after_s is not None
        return _refusal(
            _Meaning(error.status, kind, error.code or "", again), str(error), error.param, error.retry_after_s
        )
    meaning = next(meaning for kind, meaning in _MEANINGS if isinstance(error, kind))
    message, param, wait_s = str(error), None, None
    if isinstance(error, BadRequestError) and error.status == _UNPROCESSABLE:
        meaning = meaning._replace(status=_UNPROCESSABLE)
    elif isinstance(error, BudgetExceededError):
        meaning, wait_s = _SPENT if error.spent else meaning, error.retry_after_s
        if error.cap not in {None, "per_key"}:
            message = f"The request does not fit under this gateway's budget.{error.cap}."
    elif isinstance(error, StoreError):
        meaning = meaning._replace(again=error.answer is None)  # already paid: a retry would pay again
        logger.warning("a store failed: %s", redact(message))
        message = "A store of this gateway does not answer. Try again later."
    elif isinstance(error, errors.RefusedFieldError):
        param = error.fields[0] if error.fields else None
    elif isinstance(error, errors.ProviderError):
        wait_s = error.retry_after_s
    return _refusal(meaning, message, param, wait_s)


def unexpected() -> Refusal:
    """Return the response to an unexpected error, which is a bug in cascade; it contains no details of the error."""
    return _refusal(_Meaning(500, "server_error", "internal_error"), "The gateway failed. See its log.", None, None)


def _refusal(meaning: _Meaning, message: str, param: str | None, retry_after_s: float | None) -> Refusal:
    """Build an error response. OpenAI's client libraries obey `x-should-retry` before the status."""
    error = {"message": redact(message), "type": meaning.kind, "param": param, "code": meaning.code or None}
    headers: list[tuple[str, str]] = []
    if retry_after_s is not None:
        headers.append(("retry-after", str(math.ceil(retry_after_s))))
    if not meaning.again:
        headers.append(("x-should-retry", "false"))
    return Refusal(meaning.status, {"error": error}, tuple(headers))
