"""A budget for retries, one for each model: when a server is down, repeating every call only makes it worse.

It is a token bucket, as in gRPC's retry throttling (gRFC A6) and the AWS SDKs: a retry takes a token, and a call that
succeeds gives one back. A call that fails on every try is a sign of an outage and empties the bucket, so that later
calls are tried once, until one succeeds.
"""

from __future__ import annotations

import threading

from cascade.errors import ProviderError, RateLimitedError
from cascade.resilience.forks import after_fork

CAPACITY = 100
"""The most retries in a row, so that up to this many simultaneous calls survive a short failure."""


class RetryBudget:
    """The tokens of one model. Safe between threads.

    A server that says when to come again (429 with Retry-After) is not down: such a retry takes no token.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.tokens = self._capacity = capacity
        self._renew()
        after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """Give a token back."""
        if self.tokens < self._capacity:
            with self._lock:
                self.tokens = min(self._capacity, self.tokens + 1)

    def gave_up(self, error: ProviderError) -> None:
        """Take all tokens if a call failed on its last try in the way that calls to a dead server fail."""
        if error.retryable and not _asked_to_wait(error):
            with self._lock:
                self.tokens = 0

    def allows(self, error: ProviderError) -> bool:
        """Take a token for a retry; return whether there was one."""
        if _asked_to_wait(error):
            return True
        with self._lock:
            if not self.tokens:
                return False
            self.tokens -= 1
            return True


def _asked_to_wait(error: ProviderError) -> bool:
    return isinstance(error, RateLimitedError) and error.retry_after_s is not None
