"""What spares a server that is down or overloaded: a circuit breaker, and a number of concurrent calls.

After `FAILURES` consecutive failures that indicate a dead server, the circuit is open, and calls fail at once. After a
pause one call goes through as a probe: if it succeeds the circuit is closed, if it fails the pause is doubled. If a
probe ends without a result, because its caller left, another follows after the pause.

The number of concurrent calls has no limit until the server reports that they are too many. Then additive increase,
multiplicative decrease, as TCP does it: the first refusal sets the limit to a share of the calls that were running;
each further one cuts it again, but only once for all calls that began before the last cut, since these have the same
cause. Each call that succeeds while others wait raises the limit by a share of one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cascade.errors import ProviderError, ProviderTimeoutError, ProviderUnavailableError, RateLimitedError
from cascade.forks import after_fork
from cascade.resilience.portal import NOT_BEGUN, Deadline

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
        self._opens_at_s = 0.0
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

    def admit(self, model: str) -> None:
        """Raise ProviderUnavailableError, not billed, while no call may be made."""
        left_s = self.pause_s()
        if left_s is not None:
            says = f"{model} failed {FAILURES} times in a row and is asked again in {left_s:.1f} s."
            raise ProviderUnavailableError(says, model=model, retry_after_s=left_s, billed="no")

    def succeeded(self) -> None:
        """Close the circuit."""
        if self._failures:
            with self._lock:
                self._failures, self._length_s, self._probing = 0, FIRST_PAUSE_S, False

    def failed(self, error: ProviderError) -> None:
        """Count a failure; an error that is due to the request, not the server, counts as a success."""
        if isinstance(error, RateLimitedError) and error.retry_after_s is not None:
            return  # the server named a time to come again, so it is not down
        if not (error.retryable or isinstance(error, ProviderTimeoutError)):
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


FLOOR = 4
"""The lowest limit, so that one hanging call does not block all others."""
SHARE = 0.8
CEILING = 1_000
"""A limit above this is treated as no limit."""
_OVERLOADED = frozenset({503, 529})


class Limit:
    """The decision, without a clock and without waiting.

    >>> limit = Limit()
    >>> calls = [limit.begin() for _ in range(100)]
    >>> [limit.end(one, overloaded=True) for one in calls[:50]][-1], limit.allowed  # one cut for all of them
    (None, 80.0)
    """

    def __init__(self) -> None:
        self.allowed = float("inf")
        self.under_way = 0
        self._cuts = 0

    @property
    def full(self) -> bool:
        """Whether no further call may begin."""
        return self.under_way + 1 > self.allowed

    def begin(self) -> int:
        """Count a call as running; return the value to pass to `end`."""
        self.under_way += 1
        return self._cuts

    def end(self, began: int, *, overloaded: bool | None) -> None:
        """Count a call as ended, and adapt the limit unless `overloaded` is None, as for a call whose caller left."""
        if overloaded and began == self._cuts:
            self.allowed = max(float(FLOOR), SHARE * min(self.allowed, self.under_way))
            self._cuts += 1
        elif overloaded is False and self.full:
            raised = self.allowed + 1 / self.allowed
            self.allowed = raised if raised < CEILING else float("inf")
        self.under_way -= 1


def overloaded(error: ProviderError) -> bool | None:
    """Return whether a call failed because its server is overloaded; None if it failed in another way."""
    return True if isinstance(error, RateLimitedError) or error.status in _OVERLOADED else None


class Turns:
    """Lets the calls of one model begin, first come first served. One event loop uses it."""

    def __init__(self) -> None:
        self.limit = Limit()
        self._waiting: deque[asyncio.Future[int]] = deque()

    @asynccontextmanager
    async def turn(self, model: str, deadline: Deadline) -> AsyncIterator[None]:
        """Wait for a turn, and hold it while the block runs.

        Raises:
            ProviderUnavailableError: none came before the deadline. Nothing was billed.
        """
        waits = self.limit.full or self._waiting
        began = await self._granted(model, deadline) if waits else self.limit.begin()
        learned: bool | None = None
        try:
            yield
            learned = False
        except ProviderError as error:
            learned = overloaded(error)
            raise
        finally:
            self._end(began, learned)

    async def _granted(self, model: str, deadline: Deadline) -> int:
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        left_s = deadline.remaining_s()
        try:
            async with asyncio.timeout(None if left_s == float("inf") else left_s):
                return await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():  # it was granted just now, and goes to the next
                self._end(turn.result(), None)
            if isinstance(error, asyncio.CancelledError):
                error.args = (NOT_BEGUN,)
            if isinstance(error, TimeoutError):
                says = f"{model} is overloaded: the call could not begin in time."
                raise ProviderUnavailableError(says, model=model) from None
            raise

    def _end(self, began: int, learned: bool | None) -> None:
        self.limit.end(began, overloaded=learned)
        while self._waiting and not self.limit.full:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self.limit.begin())
