"""Decide when a failed call is made again; only `providers.guard` acts on it.

Exactly one layer retries; retries of the underlying libraries are off (F08). The wait is an exponential
backoff with full jitter; a server's Retry-After is obeyed up to a minute (F02).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential

from cascade.errors import ProviderError, RateLimitedError
from cascade.forks import after_fork
from cascade.resilience.portal import Deadline

MAX_RETRY_AFTER_S = 60.0
"""A longer Retry-After is not obeyed (as in the Anthropic and Portkey clients)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how long after a failure, the same call is made again."""

    max_retries: int = 2
    first_wait_s: float = 0.5
    longest_wait_s: float = 8.0

    def delay_s(self, error: ProviderError, retries_done: int, deadline: Deadline) -> float | None:
        """Return how long to wait before the next try, or None to give up.

        Args:
            error: the error; its class says whether and how often a retry makes sense.
            retries_done: how many retries this call has had.
            deadline: the question's deadline; there is no retry if the wait would pass it.
        """
        if not error.retryable or retries_done >= min(self.max_retries, error.max_retries):
            return None
        wait = self._backoff_s(retries_done) if error.retry_after_s is None else error.retry_after_s
        if wait > MAX_RETRY_AFTER_S or wait >= deadline.remaining_s():
            return None
        return max(0.0, wait)

    def _backoff_s(self, retries_done: int) -> float:
        state = RetryCallState(AsyncRetrying(), None, (), {})
        state.attempt_number = retries_done + 1
        return wait_random_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s)(state)


# --- A budget for retries, one for each model: when a server is down, repeating every call only makes it worse ---
# It is a token bucket, as in gRPC's retry throttling (gRFC A6) and the AWS SDKs: a retry takes a token, and a call that
# succeeds gives one back. A call that fails on every try is a sign of an outage and empties the bucket, so that later
# calls are tried once, until one succeeds.

CAPACITY = 100
"""The most retries in a row, so that up to this many simultaneous calls survive a short failure."""


SHARED_CAPACITY, SHARED_REFILL = 20, 0.075
"""For a server, whose callers retry themselves: after the first 20 retries at most 1.1 calls for each needed one if a
tenth fails, and 1.2 if all fail. Further failures reach the caller."""


class RetryBudget:
    """The tokens of one model. Safe between threads.

    A server that names a time to come again (429 with Retry-After) is not down: its reply does not empty the bucket.

    Args:
        capacity: the most tokens.
        refill: how many tokens a success gives back. Below 1 it bounds the retries' share of all calls.
        free_when_asked: whether a retry at the time that the server named is free.
    """

    def __init__(self, capacity: int = CAPACITY, refill: float = 1.0, *, free_when_asked: bool = True) -> None:
        self.tokens: float = capacity
        self._capacity, self._refill, self._free_when_asked = capacity, refill, free_when_asked
        self._renew()
        after_fork(self._renew)

    @classmethod
    def shared(cls) -> RetryBudget:
        """Return the budget of a server, whose callers retry themselves, so every retry takes a token."""
        return cls(SHARED_CAPACITY, SHARED_REFILL, free_when_asked=False)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """Give back the tokens for a success."""
        if self.tokens < self._capacity:
            with self._lock:
                self.tokens = min(self._capacity, self.tokens + self._refill)

    def gave_up(self, error: ProviderError) -> None:
        """Take all tokens if a call's last try failed with a sign of a dead server."""
        if error.retryable and not _asked_to_wait(error):
            with self._lock:
                self.tokens = 0

    def allows(self, error: ProviderError) -> bool:
        """Take a token for a retry; return whether there was one."""
        if self._free_when_asked and _asked_to_wait(error):
            return True
        with self._lock:
            if self.tokens < 1:
                return False
            self.tokens -= 1
            return True


def _asked_to_wait(error: ProviderError) -> bool:
    return isinstance(error, RateLimitedError) and error.retry_after_s is not None
