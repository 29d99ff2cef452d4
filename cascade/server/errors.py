"""Turns errors into responses: OpenAI's error object, with the status that its client library acts on.

The messages come from cascade's own errors, which contain no key and no address with a key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from cascade import errors
from cascade.errors import BadRequestError, BudgetExceededError, CascadeError, StoreError, logger
from cascade.safety import redact


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


_MEANINGS: Mapping[type[CascadeError], tuple[int, str, bool]] = {
    errors.ClosedError: (503, "stopping", True),
    errors.RefusedFieldError: (400, "field_not_passed_on", False),
    errors.UsageError: (400, "invalid_request", False),
    BudgetExceededError: (422, "budget_exceeded", False),
    errors.ContextTooLongError: (400, "context_length_exceeded", False),
    BadRequestError: (400, "refused_by_provider", False),
    errors.RefusedError: (400, "content_filter", False),
    errors.QuotaError: (503, "provider_without_credit", False),
    errors.RateLimitedError: (429, "rate_limited_by_provider", True),
    errors.ProviderTimeoutError: (504, "provider_timeout", False),
    errors.AddressError: (502, "provider_address", False),
    errors.AuthenticationError: (502, "provider_refused_key", False),
    errors.BadResponseError: (502, "bad_provider_response", False),
    errors.StreamInterruptedError: (502, "stream_interrupted", False),
    StoreError: (503, "store_unavailable", True),
    errors.ProviderError: (503, "provider_unavailable", True),
    CascadeError: (500, "not_served", False),
}
"""By the error's class, or its nearest parent: the status, the code, and whether the client library should retry."""
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
_SPENT = "insufficient_quota"
"""OpenAI's word for it. A header prevents the client library from repeating such a 429 within seconds."""
_UNPROCESSABLE = 422
_LONGEST, _LONGEST_PARAM = 10_000, 100
"""The most characters of a message and of a field's name, since a client may have written much of them."""


def refusal_of(error: CascadeError | GatewayError) -> Refusal:
    """Return the response to an error.

    A client sees neither the address of a store, which is logged, nor what others spent.

    >>> refusal_of(GatewayError(404, "There is no such path.")).body["error"]["type"]
    'not_found_error'
    >>> refusal_of(errors.RateLimitedError("slow down", retry_after_s=1.5)).headers
    (('retry-after', '2'),)
    """
    if isinstance(error, GatewayError):
        return _refusal(error, again=error.retry_after_s is not None)
    status, code, again = next(_MEANINGS[kind] for kind in type(error).__mro__ if kind in _MEANINGS)
    message, param, wait_s = str(error), None, None
    if isinstance(error, BadRequestError) and error.status == _UNPROCESSABLE:
        status = _UNPROCESSABLE
    elif isinstance(error, BudgetExceededError):
        again = error.cap == "unsettled_per_key"  # it is free again within seconds
        if error.spent:
            status, code, wait_s = 429, "rate_limit_exceeded" if again else _SPENT, error.retry_after_s
        if error.cap is not None and error.cap.partition(" ")[0] != "key":
            message = error.public or "The request does not fit under this gateway's budget."
    elif isinstance(error, StoreError):
        again = error.answer is None  # already paid: a retry would pay again
        logger.warning("a store failed: %s", redact(message))
        message = "A store of this gateway does not answer. Try again later."
    elif isinstance(error, errors.RefusedFieldError):
        param = error.fields[0] if error.fields else None
    elif isinstance(error, errors.ProviderError):
        wait_s = error.retry_after_s
    return _refusal(GatewayError(status, message, code=code, param=param, retry_after_s=wait_s), again=again)


def _refusal(error: GatewayError, *, again: bool) -> Refusal:
    """Build an error response. OpenAI's client libraries obey `x-should-retry` before the status."""
    status, code, message, param = error.status, error.code, str(error), error.param and error.param[:_LONGEST_PARAM]
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]} …"
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"message": redact(message), "type": code if code == _SPENT else kind, "param": param, "code": code}
    waits = () if error.retry_after_s is None else (("retry-after", str(math.ceil(error.retry_after_s))),)
    retries = () if again else (("x-should-retry", "false"),)
    return Refusal(status, {"error": body}, (*waits, *retries))
