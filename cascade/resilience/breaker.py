"""The circuit breaker, which spares a server that is down.

After `FAILURES` consecutive failures that indicate a dead server, the circuit is open, and calls fail at once. After a
pause one call goes through as a probe: if it succeeds the circuit is closed, if it fails the pause is doubled. If a
probe ends without a result, because its caller left, another follows after the pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cascade.errors import ProviderError, ProviderTimeoutError, ProviderUnavailableError, RateLimitedError
from cascade.forks import after_fork

FAILURES = 10
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0


class Breaker:
    """The circuit of one model. Safe between threads.

    Args:
        clock: seconds, monotonic.

    >>> now = 0.0
    >>> breaker = Breaker(lambda: now)
    >>> for _ in range(FAILURES):
    ...     breaker.failed(ProviderUnavailableError("gone"))
    >>> breaker.pause_s()
    2.0
    >>> now = 2.0
    >>> breaker.pause_s(), breaker.pause_s()  # the first is the probe
    (None, 2.0)
    >>> breaker.succeeded()
    >>> breaker.pause_s() is None
    True
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._length_s = FIRST_PAUSE_S
        self._opens_at_s = self._limited_until_s = 0.0
        self._probing = False
        self._renew()
        after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def pause_s(self) -> float | None:
        """Return None if a call may be made, else the seconds until one may; a call after a pause is the probe."""
        if self._failures < FAILURES:
            return None
        with self._lock:
            left_s = self._opens_at_s - self._clock()
            if left_s > 0:
                return left_s
            self._opens_at_s = self._clock() + self._length_s
            self._probing = True
            return None

    def succeeded(self) -> None:
        """Close the circuit."""
        if self._failures:
            with self._lock:
                self._failures, self._length_s, self._probing = 0, FIRST_PAUSE_S, False

    def failed(self, error: ProviderError, *, lost: bool = False) -> None:
        """Count a failure; an error that is due to the request, not the server, counts as a success.

        `lost`: it is due to the server, whatever its class.
        """
        if isinstance(error, RateLimitedError) and error.retry_after_s is not None:
            self._limited_until_s = self._clock() + min(error.retry_after_s, LONGEST_PAUSE_S)
            return  # the server named a time to come again, so it is not down
        if not (lost or error.retryable or isinstance(error, ProviderTimeoutError)):
            self.succeeded()
            return
        with self._lock:
            if self._failures >= FAILURES and not self._probing:
                return  # it began before the circuit was open
            if self._probing:
                self._length_s = min(LONGEST_PAUSE_S, 2 * self._length_s)
            self._failures, self._probing = min(FAILURES, self._failures + 1), False
            self._opens_at_s = self._clock() + self._length_s

    @property
    def open(self) -> bool:
        """Whether calls fail at once, except for a probe."""
        return self._failures >= FAILURES

    @property
    def limited(self) -> bool:
        """Whether the server named a time to come again that has not come: others are better asked."""
        return self._clock() < self._limited_until_s

    @property
    def rests(self) -> bool:
        """Whether calls fail at once now: it is open, and no probe is due."""
        return self.open and self._clock() < self._opens_at_s


def resting(model: str, left_s: float) -> ProviderUnavailableError:
    """Return the error, not billed, of a model that is not asked for some seconds."""
    says = f"{model} failed {FAILURES} times in a row and is asked again in {left_s:.1f} s."
    return ProviderUnavailableError(says, model=model, retry_after_s=left_s, billed="no")
