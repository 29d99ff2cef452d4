"""One event loop in a thread of its own, on which every HTTP call of this process runs.

Callers wait for a call, blocking or not, and the wait ends on the wall clock whatever the call does (F07): a call that
is given up is cancelled, which closes its connection. Because there is one loop, connections are kept between the
event loops of the caller and are not left behind with them. A forked child has a loop of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, suppress
from typing import Any, TypeVar, cast

from cascade.errors import ClosedError
from cascade.resilience.forks import after_fork, keep
from cascade.resilience.halting import SAYS, ruling_halt

_T = TypeVar("_T")
_END = object()


class OutOfTimeError(Exception):
    """The wall clock ran out."""


class _Background:
    """The loop and its thread, made when the first call comes."""

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
        """Begin a call."""
        with self._lock:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(loop,), name="cascade-http", daemon=True)
                self._thread.start()
                atexit.unregister(self.stop)
                atexit.register(self.stop)
        return asyncio.run_coroutine_threadsafe(call, loop)

    @property
    def began(self) -> bool:
        """Whether the loop runs."""
        return self._loop is not None

    def stop(self) -> None:
        """End the thread: the process ends."""
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
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


_background = _Background()


def begin(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Begin a call that nobody waits for, if the loop runs."""
    if _background.began:
        _background.submit(call())


def run(timeout_s: float, call: Coroutine[Any, Any, _T]) -> _T:
    """Return what a call returns, or raise what it raises; blocking.

    Raises:
        OutOfTimeError: it took longer than `timeout_s` seconds.
        ClosedError: it was stopped.
    """
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
    """Do as `run` without blocking the caller's event loop; cancelling cancels the call."""
    future = _background.submit(call)
    try:
        async with asyncio.timeout(_finite(timeout_s)) as clock:
            return await asyncio.wrap_future(future)
    except TimeoutError:
        if not clock.expired():
            raise
        raise OutOfTimeError from None
    except asyncio.CancelledError:
        raise _cancelled(future) from None
    finally:
        future.cancel()


def iterate(timeout_s: float, items: AsyncGenerator[_T, None]) -> Iterator[_T]:
    """Yield what a call yields, blocking. Raises as `run` does; `timeout_s` holds for all items together."""
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
    """Do as `iterate` without blocking. No time-out stands over a yield, so the reader is never cancelled."""
    ends_at_s = time.monotonic() + timeout_s
    came: asyncio.Queue[object] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def put(item: object) -> None:
        with suppress(RuntimeError):  # the reader's loop was closed
            loop.call_soon_threadsafe(came.put_nowait, item)

    future = _background.submit(_pumped(items, put))
    future.add_done_callback(lambda _: put(_END))
    try:
        while True:
            try:
                async with asyncio.timeout(_finite(ends_at_s - time.monotonic())):
                    item = await came.get()
            except TimeoutError:
                raise OutOfTimeError from None
            if item is _END:
                future.result()
                return
            yield cast("_T", item)
    except CancelledError:
        raise ClosedError(SAYS) from None
    finally:
        future.cancel()


async def _pumped(items: AsyncGenerator[_T, None], put: Callable[[_T], None]) -> None:
    async with aclosing(items) as whole:
        async for item in whole:
            put(item)


def _finite(timeout_s: float) -> float | None:
    return None if timeout_s == float("inf") else max(0.0, timeout_s)


def _cancelled(future: Future[Any]) -> BaseException:
    """Tell the caller's own cancellation from that of the call."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling() and future.cancelled():
        return ClosedError(SAYS)
    return asyncio.CancelledError()
