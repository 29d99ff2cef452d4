"""Foreign calls that end on time, whatever their own time-outs do.

A library's time-out bounds one read or one retry, so a server that drips a byte a second outlives it (F07). Here the
call runs in a daemon thread and the wait for it ends on the wall clock; what is still running is left behind and its
result dropped.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TypeVar, cast

_T = TypeVar("_T")
_END = object()


class OutOfTimeError(Exception):
    """The wall clock ran out."""


def call_within(timeout_s: float, call: Callable[[], _T]) -> _T:
    """Return what `call` returns or raise what it raises, or raise `OutOfTimeError` after `timeout_s` seconds."""
    return next(iterate_within(timeout_s, lambda: iter((call(),))))


def iterate_within(timeout_s: float, start: Callable[[], Iterator[_T]]) -> Iterator[_T]:
    """Yield what an iterator yields; raise `OutOfTimeError` once it has taken `timeout_s` seconds in all."""
    ends_at_s = time.monotonic() + timeout_s
    results: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        try:
            for item in start():
                results.put((item, None))
                if stopped.is_set():
                    return
            results.put((_END, None))
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread, which raises it
            results.put((_END, error))

    threading.Thread(target=work, name="cascade-call", daemon=True).start()
    try:
        while True:
            try:
                item, error = results.get(timeout=max(0.0, min(ends_at_s - time.monotonic(), threading.TIMEOUT_MAX)))
            except queue.Empty:
                raise OutOfTimeError from None
            if error is not None:
                raise error
            if item is _END:
                return
            yield cast("_T", item)
    finally:
        stopped.set()


async def aiterate_within(timeout_s: float, source: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """Do as `iterate_within` without blocking. No time-out stands over a yield, so the reader is never cancelled."""
    ends_at_s = time.monotonic() + timeout_s
    try:
        while True:
            try:
                async with asyncio.timeout(max(0.0, ends_at_s - time.monotonic())):
                    item = await anext(source)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise OutOfTimeError from None
            yield item
    finally:
        await source.aclose()
