"""One event loop that runs every HTTP call of this process: in its own thread, or a server's loop (`adopted`).

Callers wait for a call, blocking or not. The wait always ends after the given time (F07); the call is then cancelled,
which closes its connection. Because this loop outlives the callers' event loops, they share its connections, and none
is left open when a caller's loop ends. A forked child has its own loop.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar, cast

from cascade.errors import ClosedError, UsageError
from cascade.forks import after_fork, keep
from cascade.resilience.halting import SAYS, ruling_halt

_T = TypeVar("_T")
_END = object()


class OutOfTimeError(Exception):
    """The wall clock ran out."""


class _Background:
    """The loop and its thread, which the first call starts."""

    def __init__(self) -> None:
        self._begin()
        after_fork(self._in_child)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _in_child(self) -> None:
        keep((self._loop, self._thread))
        self._begin()

    def submit(self, call: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a call on the loop."""
        with self._lock:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(loop,), name="cascade-http", daemon=True)
                self._thread.start()
                atexit.unregister(self.stop)
                atexit.register(self.stop)
        return asyncio.run_coroutine_threadsafe(call, loop)

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Use a running loop for all calls, if none was started; None releases it."""
        with self._lock:
            if self._thread is None:
                self._loop = loop

    @property
    def here(self) -> bool:
        """Whether the caller runs on the loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    @property
    def began(self) -> bool:
        """Whether the loop has been started."""
        return self._loop is not None

    def stop(self) -> None:
        """End the thread, when the process ends."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
            thread.join(1.0)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
    finally:
        loop.close()


async def _cancel_all() -> None:
    """Cancel every other task of the loop, and wait for their ends."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_background = _Background()


@contextmanager
def adopted() -> Iterator[None]:
    """Run HTTP calls on the running loop while the block runs, unless the background loop was already started.

    This saves a server the hand-over to another thread and back, in which the threads would wait for each other.
    """
    _background.adopt(asyncio.get_running_loop())
    try:
        yield
    finally:
        _background.adopt(None)


def begin(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Start a call without waiting for its result, if the loop has been started."""
    if _background.began:
        _background.submit(call())


def run(timeout_s: float, call: Coroutine[Any, Any, _T]) -> _T:
    """Run a call, blocking: return its result or raise its error.

    Raises:
        OutOfTimeError: the call took longer than `timeout_s` seconds.
        ClosedError: the call was stopped.
        UsageError: the caller would block the loop that has to make the call, as in a server that adopted its own.
    """
    if _background.here:
        call.close()
        raise UsageError("A blocking call from the loop that makes all calls would never return: use aask or achat.")
    future = _background.submit(call)
    try:
        with ruling_halt().over(future.cancel):
            return future.result(min(max(0.0, timeout_s), threading.TIMEOUT_MAX))
    except TimeoutError:
        if future.done() and not future.cancelled():
            raise
        raise OutOfTimeError from None
    except CancelledError:
        raise ClosedError(SAYS) from None
    finally:
        future.cancel()


async def arun(timeout_s: float, call: Coroutine[Any, Any, _T]) -> _T:
    """Do the same as `run` without blocking the caller's event loop; cancelling this coroutine cancels the call."""
    future = _started(call)
    try:
        async with asyncio.timeout(_finite(timeout_s)) as clock:
            return await future
    except TimeoutError:
        if not clock.expired():
            raise
        raise OutOfTimeError from None
    except asyncio.CancelledError:
        raise _cancelled(future) from None
    finally:
        future.cancel()


def iterate(timeout_s: float, items: AsyncGenerator[_T, None]) -> Iterator[_T]:
    """Yield the items of a call, blocking. Raises as `run` does; `timeout_s` is for all items together."""
    ends_at_s = time.monotonic() + timeout_s
    came: queue.SimpleQueue[object] = queue.SimpleQueue()
    future = _background.submit(_pumped(items, came.put))
    future.add_done_callback(lambda _: came.put(_END))
    try:
        while True:
            with ruling_halt().over(future.cancel):
                left_s = max(0.0, min(ends_at_s - time.monotonic(), threading.TIMEOUT_MAX))
                try:
                    item = came.get(timeout=left_s)
                except queue.Empty:
                    raise OutOfTimeError from None
            if item is _END:
                future.result()
                return
            yield cast("_T", item)
    except CancelledError:
        raise ClosedError(SAYS) from None
    finally:
        future.cancel()


async def aiterate(timeout_s: float, items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """Do the same as `iterate` without blocking. No time-out is active during a yield, so the reader is not cancelled.

    On the background loop itself, as in a server, the call is at most a few items ahead of the reader.
    """
    ends_at_s = time.monotonic() + timeout_s
    came: asyncio.Queue[object] = asyncio.Queue()
    room = asyncio.Semaphore(_AHEAD) if _background.here else None
    loop = asyncio.get_running_loop()

    def put(item: object) -> None:
        with suppress(RuntimeError):  # the reader's loop was closed
            loop.call_soon_threadsafe(came.put_nowait, item)

    future = _started(_pumped(items, put if room is None else came.put_nowait, room))
    future.add_done_callback(came.put_nowait)
    try:
        while True:
            try:
                async with asyncio.timeout(_finite(ends_at_s - time.monotonic())):
                    item = await came.get()
            except TimeoutError:
                raise OutOfTimeError from None
            if item is not future:
                if room is not None:
                    room.release()
                yield cast("_T", item)
            elif future.cancelled():
                raise ClosedError(SAYS)
            else:
                future.result()
                return
    finally:
        future.remove_done_callback(came.put_nowait)  # otherwise unread items stay until a full collection
        future.cancel()


def _started(call: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
    """Start a call; return the future that the caller's loop waits for."""
    if _background.here:
        return asyncio.create_task(call)
    return asyncio.wrap_future(_background.submit(call))


_AHEAD = 4
"""The most items that wait for their reader. Without a limit a flood of 16 streams left 240,000 objects, and collecting
them delayed every request by 0.25 s."""


async def _pumped(
    items: AsyncGenerator[_T, None], put: Callable[[_T], None], room: asyncio.Semaphore | None = None
) -> None:
    async with aclosing(items) as whole:
        async for item in whole:
            if room is not None:
                await room.acquire()
            put(item)


def _finite(timeout_s: float) -> float | None:
    return None if timeout_s == float("inf") else max(0.0, timeout_s)


def _cancelled(future: asyncio.Future[Any]) -> BaseException:
    """Return the error to raise: the caller's own cancellation, or that the call was stopped."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling() and future.cancelled():
        return ClosedError(SAYS)
    return asyncio.CancelledError()
