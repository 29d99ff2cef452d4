"""The event loop that makes every HTTP call of this process, the ways to use it, and what ends a call before its reply.

The loop runs in a thread of its own, or is a server's (`adopted`). Because it outlives the callers' event loops, they
share its connections, and none is left open when a caller's loop ends. A forked child has its own loop. Blocking
callers use `run` and `iterate`; coroutines of another loop use `on_loop` and `items_on_loop`, whose wait always ends
after the given time (F07). A call that no caller waits for is cancelled, which closes its connection.

A call is ended before its reply by the question's `Deadline`, or by a `Halt`, the switch that `Orchestrator.close`
throws. A stopped call raises `ClosedError`: the question ends, the most that the call can have cost is booked, and no
further call is made. Ctrl-C does the same to the question that it interrupts.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import aclosing, closing, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

from cascade.errors import CascadeError, ClosedError, ProviderTimeoutError, UsageError
from cascade.forks import after_fork, keep, now_and_after_fork

_T = TypeVar("_T")
_END = object()
_CLOCK_S = 0.002
"""libuv counts whole milliseconds, so a timer may fire up to one too early."""
SETTLE_S = 2.0
"""The longest wait of `close` and Ctrl-C for cancelled calls; a user's own provider may not react."""
STOPPED = "Asking was stopped while a call was under way. That call may be billed; no further call was made."
NOT_BEGUN = "no call was under way"
"""The argument of a `CancelledError` that came while a call waited to begin, so that nothing can be billed."""


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
        """Whether it has passed, or will pass within the resolution of an event loop's clock."""
        return self.at_s - time.monotonic() <= _CLOCK_S


def running_loop() -> asyncio.AbstractEventLoop:
    """Return asyncio's running loop. Raises UsageError without one, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        instead = "Elsewhere call ask, many or close in a thread: await trio.to_thread.run_sync(orchestrator.ask, …)."
        raise UsageError(f"An await of cascade needs asyncio's event loop. {instead}") from None


class Halt:
    """A switch that is off until `stop` is called. Safe to share between threads."""

    def __init__(self) -> None:
        self.stopped = False
        """Whether `stop` was called."""
        self._numbers = itertools.count()
        now_and_after_fork(self._begin)

    def _begin(self) -> None:
        """Start without calls: a forked child has none of its parent's calls."""
        self._changed = threading.Condition()
        self._cancels: dict[int, Callable[[], object]] = {}

    def stop(self) -> None:
        """Cancel everything under way, and refuse all further calls."""
        with self._changed:
            self.stopped = True
            cancels = list(self._cancels.values())
        for cancel in cancels:
            cancel()

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Within the block, cancel what the running task awaits if the switch is thrown, and raise ClosedError."""
        loop, task = running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        cancelled, ended, before = False, False, task.cancelling()

        def cancel() -> None:
            nonlocal cancelled
            if not ended:
                cancelled = True
                task.cancel()

        def stop() -> None:
            with suppress(RuntimeError):  # its loop was closed
                loop.call_soon_threadsafe(cancel)

        number = next(self._numbers)
        with self._changed:
            if self.stopped:
                raise ClosedError(STOPPED)
            self._cancels[number] = stop
        try:
            yield
        except asyncio.CancelledError:
            if cancelled and task.uncancel() <= before:
                raise ClosedError(STOPPED) from None
            raise
        finally:
            ended = True
            with self._changed:
                self._cancels.pop(number, None)
                self._changed.notify_all()

    async def covered(self, items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        """Yield items, each produced within `covering`; while the reader handles an item, nothing is cancelled."""
        async with aclosing(items) as source:
            while True:
                with self.covering():
                    item = await anext(source, _END)
                if item is _END:
                    return
                yield cast("_T", item)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until nothing is under way; return whether nothing is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._cancels, timeout_s)


# --- the loop ---


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

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, starting it if necessary."""
        with self._lock:
            loop = self._loop
            if loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), name="cascade-http", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    loop.close()
                    raise CascadeError(
                        "No thread could be started: process or container may be at a limit (ulimit -u, pids.max)."
                    ) from None
                self._loop, self._thread = loop, thread
                atexit.unregister(self.stop)
                atexit.register(self.stop)
            return loop

    def submit(self, call: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a call on the loop."""
        try:
            loop = self.loop()
        except CascadeError:
            call.close()
            raise
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
        while True:
            try:
                loop.run_forever()
                break
            except (KeyboardInterrupt, SystemExit):  # raised in a call, whose caller gets it
                continue
        loop.run_until_complete(_cancel_all())
    finally:
        loop.close()


async def _cancel_all() -> None:
    """Cancel every other task of the loop, and wait until they have ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_background = _Background()


@contextmanager
def adopted() -> Iterator[None]:
    """Make calls on the running loop while the block runs, unless the background loop was already started.

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


# --- for blocking callers ---


class _Entered(Generic[_T]):
    """A blocking caller's coroutine on the loop. The caller waits for its end, so that its cost is booked."""

    def __init__(self, call: Coroutine[Any, Any, _T], tell: Callable[[], object] = lambda: None) -> None:
        if _background.here:
            call.close()
            instead = "use the async form; under gevent, whose threads share the loop, real threads"
            raise UsageError(f"A blocking call on the loop that makes all calls would never return: {instead}.")
        self._call, self._tell, self._ended = call, tell, threading.Lock()
        self._ended.acquire()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[_T] | None = None

    def begin(self) -> asyncio.AbstractEventLoop:
        """Start it, and return the loop. A signal may interrupt the caller anywhere here."""
        self._loop = loop = _background.loop()
        loop.call_soon_threadsafe(self._start)
        return loop

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._call)  # asyncio logs an error that is not fetched
        self._task.add_done_callback(lambda done: self._end(done.cancelled() or done.exception()))

    def _end(self, _: object) -> None:
        self._ended.release()
        self._tell()

    def wait(self, ends_at_s: float) -> bool:
        """Wait for its end, at most until an instant of the monotonic clock; return whether it has ended."""
        while not self._ended.acquire(timeout=max(0.0, min(ends_at_s - time.monotonic(), _WAKE_S))):
            if time.monotonic() >= ends_at_s:
                return False
        return True

    def result(self) -> _T:
        """Return what it returned, or raise its error. Raises ClosedError if it was stopped."""
        try:
            return cast("asyncio.Task[_T]", self._task).result()
        except asyncio.CancelledError:
            raise ClosedError(STOPPED) from None

    def leave(self) -> None:
        """Cancel it if it has not ended, and give it a moment to do so."""
        if self._loop is None:
            self._call.close()
        elif self._task is None or not self._task.done():
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._stop)
                if not _background.here:  # the garbage collector may run there
                    self._ended.acquire(timeout=SETTLE_S)

    def _stop(self) -> None:
        """Cancel it. The loop runs callbacks in order, so a coroutine that has not begun by now never will."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._call.close()
            self._end(None)


_WAKE_S = 1.0
"""How often a waiting thread wakes up: a signal that comes just before the wait begins is seen only then."""


def run(call: Coroutine[Any, Any, _T], ends_at_s: float = float("inf")) -> _T:
    """Run a coroutine on the loop, blocking: return its result or raise its error. Ctrl-C cancels it.

    Raises:
        ProviderTimeoutError: it had not ended at `ends_at_s`, an instant of the monotonic clock.
        ClosedError: it was stopped.
        UsageError: the caller would block the loop, as in a server that adopted its own.
    """
    entered = _Entered(call)
    try:
        entered.begin()
        if not entered.wait(ends_at_s):
            raise ProviderTimeoutError("The call did not finish in time, and could not be stopped.", billed="maybe")
        return entered.result()
    finally:
        entered.leave()


def _next(came: queue.SimpleQueue[object]) -> object:
    while True:
        with suppress(queue.Empty):
            return came.get(timeout=_WAKE_S)


def iterate(items: AsyncGenerator[_T, None]) -> Iterator[_T]:
    """Yield the items of an async generator that runs on the loop, blocking. Raises as `run` does.

    Nothing is produced before the reader asks for it, so a reader who leaves pays for no further call.
    """
    came: queue.SimpleQueue[object] = queue.SimpleQueue()
    wanted = asyncio.Semaphore(0)

    async def pump() -> None:
        async with aclosing(items) as source:
            await wanted.acquire()
            async for item in source:
                came.put(item)
                await wanted.acquire()

    entered = _Entered(pump(), partial(came.put, _END))
    try:
        loop = entered.begin()
        while True:
            loop.call_soon_threadsafe(wanted.release)
            item = _next(came)
            if item is _END:
                entered.result()
                return
            yield cast("_T", item)
    finally:
        entered.leave()


# --- for coroutines of any loop ---


async def on_loop(call: Coroutine[Any, Any, _T], timeout_s: float) -> _T:
    """Await a coroutine that runs on the loop; cancelling the caller cancels it.

    Raises:
        TimeoutError: it took longer than `timeout_s` seconds.
        ClosedError: it was stopped.
    """
    future = _started(call)
    try:
        async with asyncio.timeout(_finite(timeout_s)):
            return await future
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and not task.cancelling() and future.cancelled():
            raise ClosedError(STOPPED) from None
        raise
    finally:
        future.cancel()


async def items_on_loop(items: AsyncGenerator[_T, None], timeout_s: float) -> AsyncGenerator[_T, None]:
    """Yield the items of an async generator that runs on the loop; `timeout_s` is for all items together.

    Raises as `on_loop` does. No time-out is active during a yield, so the reader is not cancelled. The generator is at
    most a few items ahead of the reader.
    """
    ends_at_s = time.monotonic() + timeout_s
    came: asyncio.Queue[object] = asyncio.Queue()
    room = asyncio.Semaphore(_AHEAD)
    here = _background.here
    put = came.put_nowait if here else _putting(came)

    async def pump() -> None:
        async with aclosing(items) as source:
            async for item in source:
                await room.acquire()
                put(item)

    future = _started(pump())
    release = room.release if here else partial(_background.loop().call_soon_threadsafe, room.release)
    future.add_done_callback(came.put_nowait)
    try:
        while True:
            async with asyncio.timeout(_finite(ends_at_s - time.monotonic())):
                item = await came.get()
            if item is not future:
                release()
                yield cast("_T", item)
            elif future.cancelled():
                raise ClosedError(STOPPED)
            else:
                future.result()
                return
    finally:
        future.remove_done_callback(came.put_nowait)  # otherwise unread items stay until a full garbage collection
        future.cancel()


_AHEAD = 4
"""The most items that wait for their reader. Without a limit a flood of 16 streams left 240,000 objects, and collecting
them delayed every request by 0.25 s."""


def _putting(came: asyncio.Queue[object]) -> Callable[[object], None]:
    reader = asyncio.get_running_loop()

    def put(item: object) -> None:
        with suppress(RuntimeError):  # the reader's loop was closed
            reader.call_soon_threadsafe(came.put_nowait, item)

    return put


def _started(call: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
    """Start a call; return the future that the caller's loop waits for."""
    if _background.here:
        return asyncio.create_task(call)
    return asyncio.wrap_future(_background.submit(call))


def _finite(timeout_s: float) -> float | None:
    return None if timeout_s == float("inf") else max(0.0, timeout_s)


class Worker:
    """A thread for blocking work, one task at a time. It delays neither the loop nor the end of the process."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._act, name="cascade-work", daemon=True).start()

    def _act(self) -> None:
        while (act := self._work.get()) is not None:
            act()
            del act  # its closure holds the result

    async def do(self, work: Callable[[], _T]) -> _T:
        """Return the result of some work, or raise its error. If the caller is cancelled, the work still ends."""
        loop, context = running_loop(), copy_context()
        future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result((value, error))

        def act() -> None:
            result: tuple[Any, BaseException | None]
            try:
                result = (context.run(work), None)
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                result = (None, error)
            with suppress(RuntimeError):  # the caller's loop was closed
                loop.call_soon_threadsafe(settle, *result)

        self._work.put(act)
        value, error = await future
        if error is not None:
            try:
                raise error
            finally:
                del error, future  # error and this frame refer to each other: the data would stay
        return cast("_T", value)

    def close(self) -> None:
        """End the thread once its work is done."""
        self._work.put(None)


async def in_thread(work: Callable[[], _T]) -> _T:
    """Do blocking work in a thread of its own, and return its result or raise its error."""
    with closing(Worker()) as worker:
        return await worker.do(work)
