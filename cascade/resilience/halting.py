"""What ends a call before its reply: the question's deadline, and a switch that `Orchestrator.close` and Ctrl-C throw.

A stopped call raises `ClosedError`. The question then ends, the most that the call can have cost is booked, and no
further call is made.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import NamedTuple

from cascade.errors import ClosedError
from cascade.forks import after_fork

_CLOCK_S = 0.002
"""libuv counts whole milliseconds, so a timer may fire up to one too early."""
SETTLE_S = 2.0
"""The longest wait of `close` and Ctrl-C for cancelled calls; a user's own provider may not react."""
SAYS = "Asking was stopped while a call was under way. That call may be billed; no further call was made."


class Deadline(NamedTuple):
    """An instant on the monotonic clock, so that a step of the wall clock changes nothing (F13); by default never."""

    at_s: float = float("inf")

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def remaining_s(self) -> float:
        """Return the seconds left, 0 once it has passed."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether it has passed, or will within the resolution of an event loop's clock."""
        return self.at_s - time.monotonic() <= _CLOCK_S


class Halt:
    """A switch that is off until `stop`. Safe between threads."""

    def __init__(self) -> None:
        self._stopped = False
        self._numbers = itertools.count()
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        """Start without calls: a forked child has none of its parent's calls."""
        self._changed = threading.Condition()
        self._cancels: dict[int, Callable[[], object]] = {}
        self._working = 0

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """Cancel every call under way, and refuse all further ones."""
        with self._changed:
            self._stopped = True
            cancels = list(self._cancels.values())
            self._changed.notify_all()
        for cancel in cancels:
            cancel()

    def check(self) -> None:
        """Raise ClosedError once stopped."""
        if self._stopped:
            raise ClosedError(SAYS)

    @contextmanager
    def over(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Call `cancel` if the switch is thrown while the block runs. Raises ClosedError if it was thrown before."""
        number = next(self._numbers)
        with self._changed:
            self.check()
            self._cancels[number] = cancel
        try:
            yield
        finally:
            self._cancels.pop(number, None)

    def ruling(self) -> Ruling:
        """Make `ruling_halt` return this switch while a block runs, so that it can stop the blocking calls inside."""
        return Ruling(self)

    @asynccontextmanager
    async def covering(self) -> AsyncIterator[None]:
        """If the switch is thrown, cancel what the running task awaits in the block, and raise ClosedError."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        cancelled = False

        def cancel() -> None:
            nonlocal cancelled
            if not done:
                cancelled = True
                task.cancel()

        done, before = False, task.cancelling()

        def stop() -> None:
            with suppress(RuntimeError):  # its loop was closed
                loop.call_soon_threadsafe(cancel)

        with self.over(stop):
            try:
                yield
            except asyncio.CancelledError:
                if cancelled and task.uncancel() <= before:
                    raise ClosedError(SAYS) from None
                raise
            finally:
                done = True

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a question as under way while the block runs."""
        with self._changed:
            self.check()
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until no question is under way; return whether that was reached."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._working, timeout_s)

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds. Raises ClosedError as soon as the switch is thrown."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, seconds)
        self.check()


class Ruling:
    """The block of `Halt.ruling`; a class, since each call enters one. Raises ClosedError once the switch is thrown."""

    __slots__ = ("_before", "_halt")

    def __init__(self, halt: Halt) -> None:
        self._halt = halt

    def __enter__(self) -> None:
        self._halt.check()
        self._before = _ruling.set(self._halt)

    def __exit__(self, *_: object) -> None:
        _ruling.reset(self._before)


NEVER = Halt()
"""A switch that is never thrown."""
_ruling: ContextVar[Halt] = ContextVar("cascade_halt", default=NEVER)


def ruling_halt() -> Halt:
    """Return the switch that can stop the current blocking call; `NEVER` if there is none."""
    return _ruling.get()
