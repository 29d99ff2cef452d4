"""Decide when to retry a failed call, and when to stop calling a failing server; only `providers.guard` acts on it.

Exactly one layer retries; retries of the underlying libraries are off (F08). The wait is an exponential backoff with
full jitter; a server's Retry-After is obeyed up to a minute (F02).

Retries of a model have a budget, since repeating every call to a server that is down makes matters worse. It is a token
bucket, as in gRPC's retry throttling (gRFC A6) and the AWS SDKs: a retry takes a token, and a call that succeeds gives
some back. A call that fails on every try is a sign of an outage and empties the bucket, so that later calls are tried
only once, until one succeeds.

In a server, a model also has a circuit breaker. After `FAILURES` consecutive failures that indicate a dead server, the
circuit is open and calls fail at once. After a pause, one call goes through as a probe: if it succeeds, the circuit is
closed; if it fails, the pause is doubled. If a probe ends without a result because its caller left, another follows
after the pause.

An open circuit stops only the keys whose calls have failed since the last success; other keys still get through. So the
requests of one key, which may be the reason why a server fails, block no other key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential

from cascade.errors import ProviderError, ProviderTimeoutError, ProviderUnavailableError, RateLimitedError
from cascade.resilience.event_loop import Deadline

MAX_RETRY_AFTER_S = 60.0
"""A longer Retry-After is not obeyed (as in the Anthropic and Portkey clients)."""
FAILURES = 10
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
CALLER: ContextVar[str | None] = ContextVar("CALLER", default=None)
"""The server key on whose behalf a call is made."""
CAPACITY = 100
"""The most retries in a row, so that up to this many simultaneous calls survive a short failure."""
SHARED_CAPACITY, SHARED_REFILL = 20, 0.075
"""For a server, whose callers retry themselves: after the first 20 retries at most 1.1 calls for each needed one if a
tenth fails, and 1.2 if all fail. Further failures reach the caller."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how long after a failure, a call is retried."""

    max_retries: int = 2
    first_wait_s: float = 0.5
    longest_wait_s: float = 8.0

    def delay_s(self, error: ProviderError, retries_done: int, deadline: Deadline) -> float | None:
        """Return how long to wait before the next try, or None to give up.

        The class of the error says whether and how often a retry makes sense. There is no retry if the wait would
        pass the deadline.
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


class Health:
    """The health of the server of a model, or of one of its deployments, as its calls show it.

    Threads may share it. If two count at the same time, a failure may be lost, which costs a call.

    Args:
        shared: whether callers retry themselves, as a server's clients do. Then there is a circuit breaker, and the
            smaller budget of retries, from which those that the failing server asked for are also taken.

    >>> now = 0.0
    >>> health = Health(shared=True, clock=lambda: now)
    >>> for _ in range(FAILURES):
    ...     health.failed(ProviderUnavailableError("gone"))
    >>> health.pause_s()
    2.0
    >>> now = 2.0
    >>> health.pause_s(), health.pause_s()  # the first is the probe
    (None, 2.0)
    >>> health.succeeded()
    >>> health.pause_s() is None
    True
    """

    def __init__(self, *, shared: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared, self._clock = shared, clock
        self.tokens: float = SHARED_CAPACITY if shared else CAPACITY
        self._failures, self._length_s, self._probing = 0, FIRST_PAUSE_S, False
        self._opens_at_s = self._limited_until_s = 0.0
        self._failed, self._warned = set[str | None](), False

    def pause_s(self) -> float | None:
        """Return the seconds until the caller may make a call, None if it may now; a call after a pause is a probe."""
        if not self.open or CALLER.get() not in self._failed:
            return None
        left_s = self._opens_at_s - self._clock()
        if left_s > 0:
            return left_s
        self._opens_at_s = self._clock() + self._length_s
        self._probing = True
        return None

    def succeeded(self) -> None:
        """Close the circuit, and give back the tokens for a success."""
        capacity, refill = (SHARED_CAPACITY, SHARED_REFILL) if self._shared else (CAPACITY, 1.0)
        self.tokens = min(capacity, self.tokens + refill)
        self._recovered()

    def _recovered(self) -> None:
        self._failures, self._length_s, self._probing = 0, FIRST_PAUSE_S, False
        self._failed.clear()
        self._warned = False

    def outage(self, *, warned_before: bool) -> bool:
        """Return whether to warn that the server fails: at most once until its next success.

        After an earlier warning (`warned_before`), a few failures are not enough: the circuit must be open.
        """
        is_new = not self._warned and (self.open if warned_before else self._failures > 0)
        self._warned |= is_new
        return is_new

    def failed(self, error: ProviderError, *, lost: bool = False) -> None:
        """Count a failure; one caused by the request, not by the server, closes the circuit as a success does.

        `lost`: the server caused it, whatever the error's class.
        """
        if _asked_to_wait(error):
            self._limited_until_s = self._clock() + min(error.retry_after_s or 0.0, LONGEST_PAUSE_S)
        elif not (lost or error.retryable or isinstance(error, ProviderTimeoutError)):
            self._recovered()
        else:
            self._count()

    def _count(self) -> None:
        self._failed.add(CALLER.get())
        if not self.open or self._probing:  # else the call began before the circuit opened
            if self._probing:
                self._length_s = min(LONGEST_PAUSE_S, 2 * self._length_s)
            self._failures, self._probing = min(FAILURES, self._failures + 1), False
            self._opens_at_s = self._clock() + self._length_s

    @property
    def open(self) -> bool:
        """Whether calls fail at once, except for a probe."""
        return self._shared and self._failures >= FAILURES

    @property
    def limited(self) -> bool:
        """Whether the server asked to wait and that time is not over, so that other servers are preferred."""
        return self._clock() < self._limited_until_s

    @property
    def rests(self) -> bool:
        """Whether calls fail at once now: the circuit is open, and no probe is due."""
        return self.open and self._clock() < self._opens_at_s

    def gave_up(self, error: ProviderError) -> None:
        """Take all tokens if a call's last try failed with a sign of a dead server."""
        if error.retryable and not _asked_to_wait(error):
            self.tokens = 0

    def allows(self, error: ProviderError) -> bool:
        """Take a token for a retry; return whether there was one."""
        if not self._shared and _asked_to_wait(error):
            return True
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


def _asked_to_wait(error: ProviderError) -> bool:
    """Return whether the server named a time to wait, and so is not down."""
    return isinstance(error, RateLimitedError) and error.retry_after_s is not None


def resting(model: str, left_s: float) -> ProviderUnavailableError:
    """Return the error, not billed, of a model that is not called for `left_s` seconds."""
    says = f"{model} failed {FAILURES} times in a row and will be tried again in {left_s:.1f} s."
    return ProviderUnavailableError(says, model=model, retry_after_s=left_s, billed="no")
