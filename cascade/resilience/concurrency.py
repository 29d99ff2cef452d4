"""The number of concurrent calls to one model: no limit until its server reports that they are too many.

Additive increase, multiplicative decrease, as TCP does it: the first refusal sets the limit to a share of the calls
that were running; each further one cuts it again, but only once for all calls that began before the last cut, since
these have the same cause. Each call that succeeds while others wait raises the limit by a share of one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cascade.errors import ProviderError, ProviderUnavailableError, RateLimitedError
from cascade.resilience.portal import NOT_BEGUN, Deadline

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
